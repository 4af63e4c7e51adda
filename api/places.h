// SPDX-License-Identifier: Apache-2.0
// Paths and URLs as people and programs give them.
#pragma once

#include <string>

namespace ckpt::library {

// Makes a path of file:///path; leaves paths, and URLs that ckpt opens. For any
// other URL, throws an error that says how to get the files.
std::string resolve_place(const std::string& word);

// The same for what a program opens: an empty path is refused, and the secrets
// of a URL are taken out of it.
std::string source_place(const std::string& path);

// The same for what it writes, with check_target_name.
std::string target_place(const std::string& path);

// Throws a usage_error for a target that can't be meant: "-", /dev/stdout, a
// path on another machine.
void check_target_place(const std::string& target);
// The same, and for the ending of a format that ckpt does not write.
void check_target_name(const std::string& target);

}  // namespace ckpt::library
