// SPDX-License-Identifier: Apache-2.0
// Plans one file of torch.save: a value tree with placeholders for tensors
// becomes the exact bytes of everything but the payload.
//
//   pickle::Document tree;  // {"model": {"w": placeholder 0}, "step": 7}
//   TensorSlot slots[] = {{.dtype = DType::f32, .shape = {2, 3}}};
//   FilePlan plan = plan_file(tree, tree.root(), slots, "model");
//   plan.file.path = "model.pt";  // literals, late CRCs, size are set
//   // the 24 bytes of slot 0 go to plan.data_offsets[0], row-major
//
// The result is what torch 2.13 itself would write: it loads with
// torch.load(weights_only=True, mmap=True) if the tree's other values allow.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "lib/pickle/value.h"

namespace ckpt::torch {

inline constexpr uint32_t kOwnStorage = UINT32_MAX;

// One contiguous tensor of the file.
struct TensorSlot {
  DType dtype = DType::f32;
  Shape shape;
  bool requires_grad = false;
  bool parameter = false;  // torch.nn.Parameter
  // Slots with the same number share one storage from its start (tied
  // weights); they need the same byte size.
  uint32_t tie = kOwnStorage;
};

// A node that stands for slots[slot]. It may be used in any number of places;
// the tensor is then shared.
pickle::Id add_placeholder(pickle::Document& document, uint64_t slot);
// Stands for the slot's storage alone: an argument of a rebuild call made by
// hand.
pickle::Id add_storage_placeholder(pickle::Document& document, uint64_t slot);
// A storage whose content is already known (a small tensor's). If it is an
// error, plan_file throws that where `root` holds the storage.
pickle::Id add_inline_storage(pickle::Document& document, DType dtype,
                              const Content& content);

// True for such a storage; its copies count as inline too.
bool is_inline_storage(const pickle::Document& document, pickle::Id node);

struct FilePlan {
  TargetFile file;                     // path is left empty
  std::vector<uint64_t> data_offsets;  // of each slot
};

// `root` is a value of `tree`, `archive_root` the directory in the zip
// (archive_root_of). Throws unfaithful_error for dtypes that torch lacks.
FilePlan plan_file(const pickle::Document& tree, pickle::Id root,
                   std::span<const TensorSlot> slots,
                   const std::string& archive_root);

// torch.save's name for the directory in the zip: the base name without its
// last extension, or "archive" if that is empty or not ASCII.
std::string archive_root_of(std::string_view path);

// What torch calls a tensor of this dtype, and its shape in torch: safetensors'
// bit-packed f4 becomes f4x2 with the last dimension halved. Throws
// unfaithful_error for dtypes that torch lacks (f6).
struct TorchType {
  DType dtype;
  Shape shape;
};
TorchType torch_type(const std::string& name, DType dtype, const Shape& shape);

// Quantized integers without their quantizer are plain integers: what a
// placeholder of such a slot becomes.
DType plain_type(DType dtype);

// "torch float32" and so on, as a GLOBAL node.
pickle::Id add_dtype(pickle::Document& document, DType dtype);
// A torch.Size-like tuple of ints.
// `n` as torch has it, which counts with signed numbers. Throws for more.
int64_t size_for_torch(uint64_t n);
pickle::Id add_int_tuple(pickle::Document& document, const Dims& dims);
// collections.OrderedDict() with these keys and values.
pickle::Id add_ordered_dict(pickle::Document& document,
                            std::span<const pickle::Id> pairs = {});

}  // namespace ckpt::torch
