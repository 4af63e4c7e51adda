// SPDX-License-Identifier: Apache-2.0
#include "ckpt/version.h"

namespace ckpt {

const char* version() { return CKPT_VERSION; }

}  // namespace ckpt
