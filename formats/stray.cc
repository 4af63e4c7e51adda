// SPDX-License-Identifier: Apache-2.0
#include "formats/stray.h"

#include "containers/hf/hf.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"

namespace ckpt::formats {

bool is_stray(const SourceFile& file, const std::string& where) {
  return file.part == "other" && !is_sidecar_name(io::base_name(file.path)) &&
         !io::why_unreadable(where).empty();
}

}  // namespace ckpt::formats
