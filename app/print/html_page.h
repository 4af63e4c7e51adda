// SPDX-License-Identifier: Apache-2.0
// Shared by all pages for a browser. A page is one file: style and scripts
// (app/page/) are in it, and its policy names them by SHA-256, so that nothing
// else runs and nothing is fetched, whatever a name contains.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/options/options.h"
#include "app/print/json_writer.h"

namespace ckpt::app {

// Text escaped for HTML; characters that steer a terminal or reverse text are
// spelled out.
std::string escaped(std::string_view raw);
// HTML whose paths and names may be broken between their parts.
std::string breakable(std::string_view html);

// The most bytes of a name on a page: longer ones are not names.
inline constexpr size_t kLongestName = 512;
// A name for the data of a page, cut in the middle if it is too long.
std::string page_name(std::string_view name);
// … of which it lists this many; the rest is summed up.
inline constexpr size_t kMostRows = 50'000;

struct PageParts {
  std::string title;
  std::string subtitle;
  std::string body;  // HTML, after the heading
  JsonWriter data;   // what the script draws
  // By their names in app/page; they run as one.
  std::vector<std::string_view> scripts;
};
std::string page_text(PageParts parts);
// For pages whose Content-Security-Policy is page_policy(nonce); `live` are
// more scripts, which run first.
std::string page_text(PageParts parts, std::string_view live,
                      const std::string& nonce);
std::string page_policy(const std::string& nonce);

// A "<dl>" of the most important values, one card each.
std::string cards_html(
    const std::vector<std::pair<std::string, std::string>>& cards);
// The frames of app/page/map.js, and of a table with a filter: columns by
// name and class.
std::string map_html(std::string_view heading);
std::string table_html(
    std::string_view heading,
    const std::vector<std::pair<std::string_view, std::string_view>>& columns);

// Refuses "-" beside a document on standard output; what is in the way of a
// file was looked at before (options/written.h).
void check_page_path(const std::string& path, bool json,
                     std::string_view option = "--html");
void save_html(const std::string& path, const std::string& page,
               const OutputOptions& output, std::string_view option = "--html");

}  // namespace ckpt::app
