// SPDX-License-Identifier: Apache-2.0
// Every command with its options as rows, from which man pages and completions
// are made. It is read from the commands themselves, so it can't differ from
// them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/print/help.h"

namespace ckpt::app {

// What a shell can complete where a value is expected.
enum class ValueKind : uint8_t {
  kText,    // a number, a rule: nothing to offer
  kWords,   // one of OptionRow::words
  kFile,    // a path
  kTensor,  // a name in the checkpoint that stands before
};

struct OptionRow {
  std::string short_name;  // "-n"; "" if it has none
  std::string long_name;   // "--dry-run"; "PATH" of a positional
  std::string value;       // "GLOB"; "" of a flag
  std::string help;
  std::string group;
  bool positional = false;
  bool required = false;
  ValueKind kind = ValueKind::kText;
  std::vector<std::string> words = {};
};

struct CommandRow {
  std::string name;
  std::string help;
  std::string usage;  // "ckpt inspect PATH [options]"
  std::string_view examples;
  std::vector<OptionRow> options;  // positionals first, as they were declared
};

std::vector<CommandRow> option_table();

}  // namespace ckpt::app
