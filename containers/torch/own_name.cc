// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>

#include "ckpt/error.h"
#include "containers/torch/container.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::torch {
namespace {

// "optimizer_pp-#-of-#_tp-#-of-#" of "optimizer_pp-0-of-1_tp-1-of-2"; `numbers`
// get what was there, without zeros before them.
std::string without_numbers(std::string_view name, std::string& numbers) {
  std::string out;
  for (size_t at = 0; at < name.size();) {
    if (!text::is_digit(name[at])) {
      out += name[at++];
      continue;
    }
    size_t end = at;
    while (end < name.size() && text::is_digit(name[end])) ++end;
    while (at + 1 < end && name[at] == '0') ++at;
    numbers += name.substr(at, end - at);
    numbers += ' ';
    out += '#';
    at = end;
  }
  return out;
}

// Parts of two ranks are often alike in all but their values.
void check_own_name(const Container& container) {
  const std::string file = io::base_name(container.path);
  std::string mine, its;
  if (without_numbers(file.substr(0, file.rfind('.')), mine) !=
          without_numbers(container.directory, its) ||
      mine == its)
    return;
  throw input_error({container.path, {}},
                    "is another rank's file: torch.save wrote it under the "
                    "name {}",
                    text::printable(container.directory))
      .with_hint("give each rank's file its own name back");
}

}  // namespace

void check_limits(const Container& container, const Limits& limits) {
  if (limits.restrict_globals) check_globals(container.globals, container.path);
  if (limits.rank_files) check_own_name(container);
}

}  // namespace ckpt::torch
