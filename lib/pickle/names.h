// SPDX-License-Identifier: Apache-2.0
// Python 2's names for what Python 3 moved. Pickles of protocol 0 to 2 use the
// old names, whoever wrote them.
#pragma once

#include <string_view>
#include <utility>

namespace ckpt::pickle {

using ModuleAndName = std::pair<std::string_view, std::string_view>;

ModuleAndName python3_name(std::string_view module, std::string_view name);
ModuleAndName python2_name(std::string_view module, std::string_view name);

}  // namespace ckpt::pickle
