// SPDX-License-Identifier: Apache-2.0
#include "app/options/target_name.h"

namespace ckpt::app {

std::string file_format(std::string_view target) {
  if (target.ends_with(".safetensors")) return "safetensors";
  for (const std::string_view suffix : {".pt", ".pth", ".bin", ".ckpt"})
    if (target.ends_with(suffix)) return "torch";
  return "";
}

}  // namespace ckpt::app
