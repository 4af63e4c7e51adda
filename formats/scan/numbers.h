// SPDX-License-Identifier: Apache-2.0
// Files of numbers, which loaders don't unpickle.
#pragma once

#include <string_view>

#include "lib/io/file.h"

namespace ckpt::scan {

// u64 length and a JSON object of that length, whose first byte may be that of
// a pickle.
bool is_safetensors(const io::Handle& file);

// False if numpy would unpickle what follows the header of a .npy file, or if
// the header can't be followed: a Python literal, whose 'descr' numpy makes a
// dtype of.
bool is_plain_npy(std::string_view header);

}  // namespace ckpt::scan
