// SPDX-License-Identifier: Apache-2.0
#include "reshard/run/read.h"

#include <algorithm>

#include "reshard/plan/planner.h"

namespace ckpt::reshard {
namespace {

// Two blocks of it are less than a huge page, which the kernel fills with zeros
// at the first touch: that takes longer than to read a small tensor.
constexpr uint64_t kSmall = uint64_t{256} << 10;

}  // namespace

std::vector<std::byte> read_box(const Catalog& catalog, const Tensor& tensor,
                                const Box& box, const RunOptions& options) {
  std::vector<std::byte> bytes(byte_size(tensor.dtype, box.shape).value_or(0));
  read_box(catalog, tensor, box, bytes, options);
  return bytes;
}

void read_box(const Catalog& catalog, const Tensor& tensor, const Box& box,
              std::span<std::byte> out, const RunOptions& options) {
  const Plan plan = make_box_plan(catalog, tensor, box);
  Output output({out});
  RunOptions own = options;
  if (plan.bytes_read <= kSmall) own.block = std::min(own.block, kSmall);
  run(plan, catalog, output, own);
}

std::vector<Box> tiles(const Tensor& tensor, uint64_t bytes) {
  const uint64_t element = element_size(tensor.dtype);
  std::vector<Box> done;
  std::vector<Box> todo{Box::whole(tensor.shape)};
  while (!todo.empty()) {
    Box box = std::move(todo.back());
    todo.pop_back();
    const uint64_t count = volume(box);
    if (element == 0 || count <= 1 || count * element <= bytes) {
      if (count) done.push_back(std::move(box));
      continue;
    }
    size_t d = 0;
    while (box.shape[d] == 1) ++d;
    // A whole number of rows if rows fit, so that reads stay long.
    const uint64_t row = count / box.shape[d] * element;
    const uint64_t take =
        std::clamp<uint64_t>(bytes / row, 1, box.shape[d] - 1);
    Box rest = box;
    rest.offset[d] += take;
    rest.shape[d] -= take;
    box.shape[d] = take;
    todo.push_back(std::move(rest));
    todo.push_back(std::move(box));
  }
  return done;
}

}  // namespace ckpt::reshard
