// SPDX-License-Identifier: Apache-2.0
// Which library is this?
#pragma once

namespace ckpt {

// "0.1.0"
const char* version();

}  // namespace ckpt
