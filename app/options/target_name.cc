// SPDX-License-Identifier: Apache-2.0
#include "app/options/target_name.h"

#include "api/places.h"
#include "ckpt/error.h"
#include "formats/options.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"

namespace ckpt::app {

std::string file_format(std::string_view target) {
  return std::string(formats::format_of_name(target));
}

bool is_named_alike(std::string_view folder, std::string_view target) {
  const auto ending = [](std::string_view path) {
    const std::string name = io::base_name(path);
    const size_t dot = name.rfind('.');
    return dot == name.npos || dot == 0 ? std::string() : name.substr(dot);
  };
  return !ending(folder).empty() && ending(folder) == ending(target);
}

void check_same_ending(const std::string& source, const std::string& target) {
  if (is_named_alike(source, target)) return;
  library::check_target_name(target);
  const std::string file = file_format(target);
  if (file.empty()) return;
  const std::string own = file_format(source);
  const bool folder = !io::is_url(source) && io::is_directory(source);
  if (!folder && (own.empty() || own == file)) return;
  throw usage_error({target, {}},
                    "{} is written as {}; this is the name of a {} file",
                    text::printable(io::base_name(source)),
                    folder ? "a directory, as it is" : own + ", as it is", file)
      .with_hint(folder ? "name a directory (a trailing slash makes any name "
                          "one)"
                        : "give it the ending of the source");
}

}  // namespace ckpt::app
