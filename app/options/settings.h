// SPDX-License-Identifier: Apache-2.0
// What options are when a command line doesn't say: CKPT_THREADS, CKPT_MAX_MEM
// … of the environment, or a line of the configuration file,
//
//   # ~/.config/ckpt/config, or what CKPT_CONFIG names
//   max-mem = 8GiB
//   threads = 16
//
// The command line comes first, then the environment, then the file. Only how
// a run goes can be set so, never what it does: the same words mean the same
// result for whoever types them.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::app {

// "max-mem", without dashes: options of resources and output that have a value.
std::vector<std::string_view> setting_names();
// "CKPT_MAX_MEM"
std::string setting_variable(std::string_view name);

// The file that is read; nothing if there is none.
std::optional<std::string> settings_file();

// Before the words are parsed: reads the file, and lets options look at the
// environment. Throws missing_error if CKPT_CONFIG names nothing, usage_error
// for a line that sets no option.
void take_settings(CLI::App& app);

// "CKPT_THREADS=x" that a message about "--threads" is due to, or the file's
// line; "" if it was typed.
std::string setting_behind(const std::string& message,
                           const std::vector<std::string>& words);

}  // namespace ckpt::app
