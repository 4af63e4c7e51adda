// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace ckpt::io {

// The names in a directory, sorted bytewise, for whoever looks for some of
// them. list_directory() throws if an object store has keys there that no path
// can name; this leaves them out, as nobody can mean them.
std::vector<std::string> names_in(const std::string& directory);

// The same of a URL, not kept.
std::vector<std::string> names_in_remote(const std::string& url);

}  // namespace ckpt::io
