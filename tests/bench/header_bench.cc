// SPDX-License-Identifier: Apache-2.0
// How long 100,000 tensors take to open: the header of one safetensors file,
// the catalog made from it, and an index with as many names. The aim is 60 ms
// for a header in a Release build (an inspect starts in milliseconds).
//
//   header_bench [TENSORS]
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "containers/hf/index.h"
#include "containers/safetensors/header.h"
#include "formats/safetensors/safetensors.h"
#include "lib/text/utf8.h"

namespace ckpt {
namespace {

// Processor time, as wall time says little on a shared machine.
double milliseconds() {
  return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// The best of a few runs, in milliseconds.
template <class Function>
double best_of(int runs, Function function) {
  double best = 1e300;
  for (int i = 0; i < runs; ++i) {
    const double begin = milliseconds();
    function();
    best = std::min(best, milliseconds() - begin);
  }
  return best;
}

// Names like those of a mixture of experts.
std::vector<std::string> names(size_t count) {
  std::vector<std::string> all;
  for (size_t i = 0; i < count; ++i)
    all.push_back(fmt::format("model.layers.{}.mlp.experts.{}.{}_proj.weight",
                              i / 768, i / 3 % 256,
                              i % 3 == 0   ? "gate"
                              : i % 3 == 1 ? "up"
                                           : "down"));
  return all;
}

void row(std::string_view what, double took, size_t bytes) {
  fmt::print("{:<28} {:7.1f} ms  {:6.0f} MB/s\n", what, took,
             static_cast<double>(bytes) / took / 1e3);
}

int run(size_t count) {
  const std::vector<std::string> all = names(count);
  std::vector<safetensors::Described> tensors;
  for (const std::string& name : all)
    tensors.push_back(
        {.name = name, .dtype = "BF16", .shape = {8, 64}, .bytes = 1024});
  const std::string header = safetensors::encode_header(
      tensors, safetensors::Metadata{{"format", "pt"}});
  const std::string json = header.substr(8);
  const uint64_t size = header.size() + 1024 * count;

  const auto folder = std::filesystem::temp_directory_path() /
                      fmt::format("ckpt_header_bench_{}", ::getpid());
  std::filesystem::create_directories(folder);
  const std::string file = folder / "model.safetensors";
  std::ofstream(file, std::ios::binary) << header;
  std::filesystem::resize_file(file, size);
  std::vector<formats::IndexEntry> entries;
  for (const std::string& name : all)
    entries.push_back({name, "model.safetensors"});
  const std::string index = formats::write_index(entries, 1024 * count);
  std::ofstream(folder / "i.json", std::ios::binary) << index;

  fmt::print("{} tensors, header {:.1f} MB\n", count,
             static_cast<double>(header.size()) / 1e6);
  bool valid = true;
  row("UTF-8 check", best_of(9, [&] { valid &= text::is_utf8(json); }),
      json.size());
  const double parse =
      best_of(9, [&] { safetensors::parse_header(json, size, file); });
  row("parse_header", parse, json.size());
  const auto reader = safetensors::make_reader();
  row("read_catalog", best_of(9, [&] { reader->read_catalog(file, {}); }),
      json.size());
  row("read_index", best_of(9, [&] { formats::read_index(folder, "i.json"); }),
      index.size());
  std::filesystem::remove_all(folder);
  return valid && parse * 100'000 / static_cast<double>(count) < 150 ? 0 : 1;
}

}  // namespace
}  // namespace ckpt

int main(int argc, char** argv) {
  return ckpt::run(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100'000);
}
