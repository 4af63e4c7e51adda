// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ckpt::megatron {

// What all ranks share, beside the tensors.
inline constexpr char kCommonFile[] = "common.pt";
// In a training root: the iteration that was saved last, or "release".
inline constexpr char kTracker[] = "latest_checkpointed_iteration.txt";

}  // namespace ckpt::megatron
