// SPDX-License-Identifier: Apache-2.0
// The little of XML that storage servers answer in: elements without
// attributes that matter, text with the five entities.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ckpt::net {

// The text of the first <name>…</name>, entities replaced; "" if absent.
std::string element(std::string_view xml, std::string_view name);
// What is inside each of them, as it stands.
std::vector<std::string_view> elements(std::string_view xml,
                                       std::string_view name);

}  // namespace ckpt::net
