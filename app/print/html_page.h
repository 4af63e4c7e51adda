// SPDX-License-Identifier: Apache-2.0
// What does not change in `inspect --html`: the style, and the script that
// draws. One file, nothing fetched, nothing sent. `view` has another policy and
// one script more.
#pragma once

#include <string_view>

namespace ckpt::app {

extern const std::string_view kHtmlStart;
extern const std::string_view kHtmlPolicy;  // of a page that is a file
extern const std::string_view kHtmlHead;    // from there up to <title>
extern const std::string_view kHtmlScript;  // <script>…</script>
// Before kHtmlScript: <script>…</script> that makes buttons of names.
extern const std::string_view kHtmlLiveScript;

}  // namespace ckpt::app
