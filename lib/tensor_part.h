// SPDX-License-Identifier: Apache-2.0
// Only some tensors of a checkpoint: a plan's size is counted in parts where
// there is no room for the whole.
//
// Readers that meet pieces by the million ask wanted() and keep no pieces of
// other tensors; formats::open finally drops those tensors.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace ckpt {

// While it lives, this thread's session reads part `number` of `parts` of what
// it opens.
class TensorPart {
 public:
  enum class By : uint8_t {
    // Some tensors of every layer: stages have all their layers. Tensors in no
    // layer are in every part.
    kKind,
    kLayer,  // whole layers, some of them: what a dialect fuses stays together
  };
  // What a session has of it.
  struct Which {
    By by = By::kKind;
    uint32_t number = 0;
    uint32_t parts = 1;
    std::atomic<uint64_t> dropped = 0;
  };
  TensorPart(By by, uint32_t number, uint32_t parts);
  ~TensorPart();
  TensorPart(const TensorPart&) = delete;
  TensorPart& operator=(const TensorPart&) = delete;

  static bool is_set();
  // Without a part, all tensors are.
  static bool wanted(std::string_view name);
  static bool has_layer(std::string_view name);
  // Counts bytes that a reader held for all tensors, whatever the part, and
  // released.
  static void drop(uint64_t bytes);
  static uint64_t dropped();
};

}  // namespace ckpt
