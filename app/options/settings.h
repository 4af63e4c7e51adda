// SPDX-License-Identifier: Apache-2.0
// Defaults of options that a command line leaves out: CKPT_THREADS,
// CKPT_MAX_MEM … in the environment, or a line of the configuration file,
//
//   # ~/.config/ckpt/config, or what CKPT_CONFIG names
//   max-mem = 8GiB
//   threads = 16
//
// The command line comes first, then the environment, then the file. They can
// set only how a run works, never what it does: the same words give everyone
// the same result.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::app {

// "max-mem", without dashes: the options for resources and output that have a
// value.
std::vector<std::string_view> setting_names();
// "CKPT_MAX_MEM"
std::string setting_variable(std::string_view name);

// The configuration file; nothing if there is none.
std::optional<std::string> settings_file();

// Call before the words are parsed: reads the file, and lets options look at
// the environment. Throws missing_error if CKPT_CONFIG names no file,
// usage_error for a line that sets no option.
void take_settings(CLI::App& app);

// Where the value that a message about "--threads" is about came from:
// "CKPT_THREADS=x" or the file's line; "" if it was typed.
std::string setting_behind(const std::string& message,
                           const std::vector<std::string>& words);

}  // namespace ckpt::app
