// SPDX-License-Identifier: Apache-2.0
#include "tests/support/recut.h"

#include <algorithm>
#include <string>

#include "reshard/plan/planner.h"

namespace ckpt::test {
namespace {

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

uint32_t few(Random& random) { return static_cast<uint32_t>(1 + random() % 4); }

}  // namespace

Recut random_recut(Random& random, const std::function<void(Tensor&)>& change) {
  Recut recut;
  const size_t tensors = 1 + random() % 5;
  for (size_t i = 0; i < tensors; ++i) {
    Tensor tensor = random_tensor(random, "t" + std::to_string(i));
    Tensor wanted = tensor;
    if (change) change(wanted);
    tensor.pieces = random_pieces(random, tensor.shape, random() % 2);
    wanted.pieces = random_pieces(random, wanted.shape, random() % 2);
    recut.source.tensors.push_back(std::move(tensor));
    recut.target.catalog.tensors.push_back(std::move(wanted));
  }
  place_randomly(random, recut.source, few(random), true);
  place_randomly(random, recut.target.catalog, few(random), false);
  set_target_files(recut.target);
  return recut;
}

void set_target_files(Target& target) {
  target.files.clear();
  for (const File& file : target.catalog.files)
    target.files.push_back({.path = "out" + std::to_string(target.files.size()),
                            .size = file.size});
}

void write_source(Catalog& source, const TempDir& dir) {
  const auto files = files_of(source);
  for (size_t f = 0; f < files.size(); ++f)
    source.files[f].path =
        dir.write("f" + std::to_string(f), text_of(files[f]));
}

void add_file(Catalog& source, const TempDir& dir,
              std::span<const std::byte> bytes) {
  source.files.push_back(
      {.path = dir.write("s", text_of(bytes)), .size = bytes.size()});
}

Moved move_to_memory(const Recut& recut, const reshard::RunOptions& options) {
  const reshard::Plan plan = reshard::make_plan(recut.source, recut.target);
  Moved moved;
  std::vector<std::span<std::byte>> spans;
  for (const TargetFile& file : recut.target.files)
    moved.files.emplace_back(file.size, std::byte{0x55});
  for (auto& file : moved.files) spans.emplace_back(file);
  reshard::Output output(std::move(spans));
  moved.result = reshard::run(plan, recut.source, output, options);
  reshard::check_replicas(plan, moved.result, recut.source);
  return moved;
}

}  // namespace ckpt::test
