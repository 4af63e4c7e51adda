// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ckpt::library {

// The words of a command line, as a shell would cut it: spaces, '…', "…" and \.
// Nothing is expanded. Throws usage_error, which names `option`, for a quote
// without an end and for a line without a word.
std::vector<std::string> command_words(std::string_view line,
                                       std::string_view option);

}  // namespace ckpt::library
