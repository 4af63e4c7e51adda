// SPDX-License-Identifier: Apache-2.0
// Files of numbers, which loaders don't unpickle.
#pragma once

#include <string_view>

#include "lib/io/file.h"

namespace ckpt::scan {

// A u64 length and a JSON object of that length, whose first byte may look like
// a pickle's.
bool is_safetensors(const io::Handle& file);

// False if numpy would unpickle what follows a .npy file's header, or if the
// header can't be parsed: a Python literal, whose 'descr' numpy turns into a
// dtype.
bool is_plain_npy(std::string_view header);

}  // namespace ckpt::scan
