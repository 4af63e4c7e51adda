// SPDX-License-Identifier: Apache-2.0
// What does not change in `inspect --html`: the style, and the script that
// draws. One file, nothing fetched, nothing sent.
#pragma once

#include <string_view>

namespace ckpt::app {

extern const std::string_view kHtmlHead;    // up to <title>
extern const std::string_view kHtmlScript;  // <script>…</script>

}  // namespace ckpt::app
