// SPDX-License-Identifier: Apache-2.0
// A directory as a web server shows it: a page of links.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ckpt::net {

struct ListingPage {
  // Of what is in the directory, sorted, each once; without slashes.
  std::vector<std::string> names;
  // What it doesn't name is not there: a server made it from the directory. A
  // page that somebody wrote may link to some of the files.
  bool is_listing = false;
};

// `url` is the page's own, to which its links are relative.
ListingPage read_page(std::string_view html, const std::string& url);

}  // namespace ckpt::net
