// SPDX-License-Identifier: Apache-2.0
// One file of the target under construction: a value tree with placeholders,
// and which parts of which tensors fill them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "containers/torch/file_plan.h"
#include "formats/megatron/legacy/cut.h"
#include "formats/megatron/model/parts.h"

namespace ckpt::megatron {

class LegacyFile {
 public:
  explicit LegacyFile(const MixerParts& mixers) : mixers_(mixers) {}

  pickle::Document document;

  // Adds rank `slot`'s part of a tensor of target.catalog as a separate tensor;
  // returns a node that stands for it.
  pickle::Id add_part(const Tensor& tensor, size_t index, const TpRule& rule,
                      uint64_t slot, uint64_t ranks);

  // A flat tensor of `size` elements, which fill_flat fills; the rest is
  // zero.
  struct Flat {
    uint64_t slot = 0;
    pickle::Id node = pickle::kNoId;
  };
  Flat add_flat(DType dtype, uint64_t size);
  void fill_flat(const Flat& flat, const Tensor& tensor, size_t index,
                 const TpRule& rule, uint64_t slot, uint64_t ranks,
                 uint64_t at);

  // Adds the file and the pieces of its tensors to the target.
  void finish(Target& target, pickle::Id root, const std::string& path);

 private:
  struct Pending {
    size_t tensor = 0;
    uint64_t slot = 0;
    Box box;
    uint64_t begin = 0;  // elements from the slot's start
    uint64_t count = 0;
  };
  uint64_t add_slot(DType dtype, Shape shape);
  void add_pieces(const Tensor& tensor, size_t index, const TpRule& rule,
                  uint64_t slot, uint64_t ranks, uint64_t file_slot,
                  uint64_t at);
  void add_gaps(const torch::FilePlan& plan, TargetFile& file) const;

  const MixerParts& mixers_;  // of the target
  std::vector<torch::TensorSlot> slots_;
  std::vector<Pending> pending_;
};

}  // namespace ckpt::megatron
