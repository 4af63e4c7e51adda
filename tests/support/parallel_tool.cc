// SPDX-License-Identifier: Apache-2.0
// ckpt/parallel.h for tests: one process of a job under mpirun.
//
//   parallel_tool save PATH FORMAT [TP] [--between WORD]
//   parallel_tool load PATH OUT
//
// Saves two tensors cut over the ranks (rows; columns), one that all have, and
// an object for each rank; loads what each requests. WORD: "change" overwrites
// the tensors between the phases, "drop" abandons the save, "kill" ends rank 0
// there, "fail" makes the last rank give too few bytes.
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "ckpt/parallel.h"

namespace {

using namespace ckpt;

constexpr uint64_t kRows = 12, kColumns = 24;  // of 2, 3 and 4 ranks

float value_at(uint64_t row, uint64_t column) {
  return static_cast<float>(row) * 1000 + static_cast<float>(column);
}

std::vector<std::byte> part(const Box& box) {
  std::vector<std::byte> bytes(volume(box) * sizeof(float));
  auto* out = reinterpret_cast<float*>(bytes.data());
  for (uint64_t r = 0; r < box.shape[0]; ++r)
    for (uint64_t c = 0; c < box.shape[1]; ++c)
      *out++ = value_at(box.offset[0] + r, box.offset[1] + c);
  return bytes;
}

struct Job {
  std::shared_ptr<Communicator> ranks = join_job();
  std::vector<std::vector<std::byte>> bytes;
  std::vector<Box> boxes;

  void add(const Box& box) {
    boxes.push_back(box);
    bytes.push_back(part(box));
  }
  RankState state(bool broken) {
    const uint64_t rank = ranks->rank(), size = ranks->size();
    add({{rank * kRows / size, 0}, {kRows / size, kColumns}});
    add({{0, rank * kColumns / size}, {kRows, kColumns / size}});
    add(Box::whole({kRows, kColumns}));
    RankState state;
    const char* const names[] = {"rows.weight", "columns.weight",
                                 "whole.weight"};
    for (size_t i = 0; i < boxes.size(); ++i)
      state.tensors.push_back({.name = names[i],
                               .dtype = DType::f32,
                               .shape = {kRows, kColumns},
                               .box = boxes[i],
                               .bytes = bytes[i],
                               .tp = TpRule::split(i == 1 ? 1 : 0)});
    state.tensors[2].replica = {rank};
    if (broken && rank + 1 == size)
      state.tensors[0].bytes = state.tensors[0].bytes.first(4);
    state.objects.push_back({.key = "rng_state",
                             .json = std::to_string(rank),
                             .at = {rank},
                             .grid = {size}});
    state.common = R"({"iteration": 7})";
    return state;
  }
};

int save(const std::vector<std::string>& words) {
  Job job;
  Layout layout{.format = words[2]};
  if (layout.format == "dcp") layout.topology.dp = job.ranks->size();
  layout.single_file = words[1].ends_with(".safetensors");
  std::string between;
  for (size_t i = 3; i < words.size(); ++i) {
    if (words[i] == "--between")
      between = words[++i];
    else
      layout.topology.tp = static_cast<uint32_t>(std::stoul(words[i]));
  }
  SaveOptions options{.threads = 1, .sync = false};
  options.note = [](const std::string& line) { std::cerr << line << "\n"; };
  PendingSave pending = begin_save(job.ranks, job.state(between == "fail"),
                                   layout, words[1], options);
  if (between == "change")
    for (auto& bytes : job.bytes) std::memset(bytes.data(), 0xff, bytes.size());
  if (between == "kill") {
    while (!pending.written()) ::usleep(1000);
    if (job.ranks->rank() == 0) ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }
  if (between == "drop") return 0;
  const Preview preview = pending.finish();
  if (job.ranks->rank() == 0)
    std::cout << "files " << preview.target.files.size() << "\n";
  return 0;
}

// All request one whole tensor, and each its own rows and columns; then each
// writes what it got to OUT.RANK.
int load(const std::vector<std::string>& words) {
  Job job;
  job.state(false);
  const Box all = Box::whole({kRows, kColumns});
  const LoadRequest requests[] = {
      {.name = "whole.weight", .box = all},
      {.name = "rows.weight", .box = job.boxes[1]},
      {.name = "columns.weight", .box = job.boxes[0]},
      {.name = "rows.weight", .box = all}};
  const LoadResult got = load_shards(*job.ranks, words[1], requests,
                                     {.strict = StrictHandling::kRaiseAll});
  std::ofstream out(words[2] + "." + std::to_string(job.ranks->rank()));
  for (size_t i = 0; i < got.tensors.size(); ++i)
    out << (got.tensors[i]->bytes == part(*requests[i].box) ? "same" : "other")
        << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() < 3) return 2;
    return words[0] == "save" ? save(words) : load(words);
  } catch (const ckpt::Error& error) {
    std::cerr << "error: " << error.what() << std::endl;
    // The launcher ends the others; all have the same error.
    ::_exit(static_cast<int>(error.code()));
  }
}
