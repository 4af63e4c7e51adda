// SPDX-License-Identifier: Apache-2.0
#include "app/options/target_name.h"

#include "formats/options.h"

namespace ckpt::app {

std::string file_format(std::string_view target) {
  return std::string(formats::format_of_name(target));
}

}  // namespace ckpt::app
