// SPDX-License-Identifier: Apache-2.0
// The words of a command line before any option is parsed: things people type
// that are neither an option nor a plain path.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ckpt::app {

// Expands @FILE to the lines of FILE, one word each, without empty lines and
// those that begin with #. An @FILE in a file is not expanded. Throws
// missing_error if there is no such file.
std::vector<std::string> expand_files(const std::vector<std::string>& words);

// Makes a path of file:///path; leaves https, hf, s3 and gs. For any other URL,
// throws usage_error that says how to get the files.
void resolve_urls(std::vector<std::string>& words);

// Throws usage_error if the word is an option with one dash that needs two:
// "-json". `names` are the long options, without dashes.
void check_dashes(const std::vector<std::string>& words,
                  const std::vector<std::string>& names);

// Another tool's name for something that one of ckpt's commands does: "hash" ->
// "ckpt inspect PATH --digest"; "" if it is not known.
std::string_view meant_command(std::string_view word,
                               const std::vector<std::string>& commands);

// Another tool's name for an option of ckpt: "--tensor-model-parallel-size" ->
// "--tp"; "" if it is not known. `word` begins with its dashes.
std::string_view meant_option(std::string_view word);
// "--src", "--output-dir": options for what ckpt takes as an argument.
bool is_path_option(std::string_view word);
// "--step", "--iteration": options for which step of a root is meant.
bool is_step_option(std::string_view word);

}  // namespace ckpt::app
