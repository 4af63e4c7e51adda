// SPDX-License-Identifier: Apache-2.0
// Only some tensors of a checkpoint: what a plan takes is counted in parts
// where the whole has no room.
//
// Readers that meet pieces by the million ask wanted() and keep no pieces of
// other tensors; formats::open drops those tensors in the end.
#pragma once

#include <cstdint>
#include <string_view>

namespace ckpt {

// While it lives, this process reads part `number` of `parts` of what it opens.
class TensorPart {
 public:
  enum class By : uint8_t {
    // Every layer, of it some tensors: stages have all their layers. What is in
    // no layer is in every part.
    kKind,
    kLayer,  // some layers, whole: what a dialect fuses stays together
  };
  TensorPart(By by, uint32_t number, uint32_t parts);
  ~TensorPart();
  TensorPart(const TensorPart&) = delete;
  TensorPart& operator=(const TensorPart&) = delete;

  static bool is_set();
  // Without a part, all are.
  static bool wanted(std::string_view name);
  static bool has_layer(std::string_view name);
  // Bytes of what a reader has for all tensors alike, and let go.
  static void drop(uint64_t bytes);
  static uint64_t dropped();
};

}  // namespace ckpt
