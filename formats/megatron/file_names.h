// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ckpt::megatron {

// What all ranks share, besides the tensors.
inline constexpr char kCommonFile[] = "common.pt";
// In a training root: the last iteration saved, or "release".
inline constexpr char kTracker[] = "latest_checkpointed_iteration.txt";

}  // namespace ckpt::megatron
