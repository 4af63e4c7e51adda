// SPDX-License-Identifier: Apache-2.0
// The words of a command line before any option is parsed: what people type
// that is neither an option nor a path as it stands.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ckpt::app {

// @FILE stands for the lines of FILE, one word each; empty lines and those
// that begin with # are left out. Files in files are not expanded. Throws
// missing_error if nothing was found.
std::vector<std::string> expand_files(const std::vector<std::string>& words);

// file:///path as a path; https, hf, s3 and gs stay. Throws a usage_error that
// says how to get the files for any other URL.
void resolve_urls(std::vector<std::string>& words);

// The word is an option with one dash that should have two: "-json". Throws a
// usage_error. `names` are the long options, without dashes.
void check_dashes(const std::vector<std::string>& words,
                  const std::vector<std::string>& names);

// What other tools call something that ckpt does: "hash" -> "ckpt inspect
// PATH --digest"; "" if nothing is known.
std::string_view meant_command(std::string_view word);

// What other tools call an option of ckpt: "--tensor-model-parallel-size" ->
// "--tp"; "" if nothing is known. `word` begins with its dashes.
std::string_view meant_option(std::string_view word);
// "--src", "--output-dir": of what ckpt takes as an argument.
bool is_path_option(std::string_view word);

// Throws a usage_error for a DST that can't be meant: "-", /dev/stdout, the
// ending of a format that ckpt does not write.
void check_target_name(const std::string& target);

}  // namespace ckpt::app
