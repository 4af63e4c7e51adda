// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/frame.h"

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"

namespace ckpt::dcp {
namespace {

Frame make_frame(DType dtype, const Shape& shape) {
  pickle::Document tree;
  const pickle::Id root = torch::add_placeholder(tree, 0);
  const torch::TensorSlot slot{.dtype = dtype, .shape = shape};
  torch::FilePlan plan = torch::plan_file(tree, root, {&slot, 1}, "archive");

  Frame frame;
  frame.size = plan.file.size;
  frame.data_offset = plan.data_offsets.at(0);
  frame.payload = byte_size(dtype, shape).value_or(0);
  std::vector<Literal>& literals = plan.file.literals.own();
  if (literals.size() != (frame.payload ? 2 : 1) || literals[0].offset != 0)
    throw bug_error({}, "{} literals around one tensor", literals.size());
  frame.head =
      std::make_shared<const std::string>(std::move(literals[0].bytes));
  if (frame.payload == 0) return frame;
  frame.tail =
      std::make_shared<const std::string>(std::move(literals[1].bytes));
  frame.crcs = std::move(plan.file.crcs.own().at(0).at);
  return frame;
}

}  // namespace

size_t Frames::Hash::operator()(const Key& key) const {
  uint64_t hash = static_cast<uint64_t>(key.dtype) + 0xcbf29ce484222325;
  for (const uint64_t size : key.shape) hash = (hash ^ size) * 0x100000001b3;
  return hash ^ (hash >> 32);
}

const Frame& Frames::of(DType dtype, const Shape& shape) {
  const auto [it, added] = frames_.try_emplace({dtype, shape});
  if (added) it->second = make_frame(dtype, shape);
  return it->second;
}

}  // namespace ckpt::dcp
