// SPDX-License-Identifier: Apache-2.0
// How long a plan takes with millions of pieces: a large model's tensors as
// 16,384 ranks hold them, to be written by fewer. Near-linear: one more piece
// must cost the same at a hundred thousand pieces and at millions.
//
//   plan_bench [TENSORS [PIECES [TARGETS]]]
//
// PIECES and TARGETS are per tensor; source pieces are a grid of rows and eight
// parts of each row, target pieces are rows.
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>

#include "reshard/plan/planner.h"
#include "reshard/plan/work.h"
#include "reshard/run/journal.h"

namespace ckpt {
namespace {

constexpr uint64_t kRows = 16384, kColumns = 16384, kSplit = 8;

double now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

uint64_t resident() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) >> 10;
}

// The time since the last call.
void row(const char* what, uint64_t pieces) {
  static double last = now();
  const double took = now() - last;
  fmt::print("{:<18}{:8.3f} s  {:7.0f} ns a piece  {:6} MiB\n", what, took,
             1e9 * took / static_cast<double>(pieces), resident());
  last = now();
}

Tensor tensor_of(size_t index, uint64_t rows, uint64_t columns,
                 std::vector<uint64_t>& used) {
  Tensor tensor{.name = fmt::format("layers.{}.w", index),
                .dtype = DType::bf16,
                .shape = {kRows, kColumns}};
  tensor.pieces.reserve(rows * columns);
  for (uint64_t r = 0; r < rows; ++r)
    for (uint64_t c = 0; c < columns; ++c) {
      const uint64_t high = kRows / rows, wide = kColumns / columns;
      const uint64_t file = (tensor.pieces.size() + index * 7) % used.size();
      tensor.pieces.push_back(
          {.box = {{r * high, c * wide}, {high, wide}},
           .flat = {},
           .extent = {.offset = used[file],
                      .strides = {},
                      .file = static_cast<uint32_t>(file)}});
      used[file] += high * wide * 2;
    }
  return tensor;
}

Catalog catalog_of(size_t tensors, uint64_t rows, uint64_t columns,
                   uint64_t files) {
  Catalog catalog;
  catalog.path = "bench";
  std::vector<uint64_t> used(files);
  for (size_t i = 0; i < tensors; ++i)
    catalog.tensors.push_back(tensor_of(i, rows, columns, used));
  for (uint64_t f = 0; f < files; ++f)
    catalog.files.push_back(
        {.path = fmt::format("rank_{}", f), .size = used[f]});
  return catalog;
}

int run(size_t tensors, uint64_t pieces, uint64_t targets) {
  row("", 1);
  const uint64_t all = tensors * pieces;
  Catalog source = catalog_of(tensors, pieces / kSplit, kSplit, 16384);
  Target target{.catalog = catalog_of(tensors, targets, 1, targets)};
  for (const File& file : target.catalog.files)
    target.files.push_back({.path = file.path, .size = file.size});
  fmt::print("{} source and {} target pieces\n", all, tensors * targets);
  row("two catalogs", all);
  const reshard::Plan plan = reshard::make_plan(source, target);
  row("make_plan", all);
  reshard::fingerprint(plan, source, target);
  row("fingerprint", all);
  auto items = reshard::cut_items(plan, 16 << 20);
  row("cut_items", all);
  reshard::WorkQueue queue(plan, std::move(items), 1);
  while (queue.next(0)) {
  }
  row("work queue", all);
  fmt::print("{} jobs, {} lanes, {} moves; a Piece has {} bytes\n",
             plan.jobs.size(), plan.lanes.size(), plan.moves.size(),
             sizeof(Piece));
  return 0;
}

}  // namespace
}  // namespace ckpt

int main(int argc, char** argv) {
  const auto number = [&](int i, uint64_t otherwise) {
    return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise;
  };
  return ckpt::run(number(1, 1500), number(2, 1024), number(3, 64));
}
