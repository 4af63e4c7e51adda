// SPDX-License-Identifier: Apache-2.0
// The bit of XML that storage servers use: elements whose attributes don't
// matter, text with the five entities.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ckpt::net {

// Entities replaced, numeric ones by UTF-8.
std::string unescape(std::string_view text);
// The text of the first <name>…</name>, entities replaced; "" if absent.
std::string element(std::string_view xml, std::string_view name);
// The contents of each of them, unchanged.
std::vector<std::string_view> elements(std::string_view xml,
                                       std::string_view name);

}  // namespace ckpt::net
