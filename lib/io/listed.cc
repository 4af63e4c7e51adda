// SPDX-License-Identifier: Apache-2.0
#include "lib/io/listed.h"

#include "ckpt/error.h"
#include "lib/io/file.h"

namespace ckpt::io {

bool is_listed_directory(const std::string& path) {
  try {
    return is_directory(path);
  } catch (const Error&) {
    if (is_link(path)) return false;
    throw;
  }
}

}  // namespace ckpt::io
