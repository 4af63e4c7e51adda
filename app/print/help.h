// SPDX-License-Identifier: Apache-2.0
// --help and --version, and errors about wrong command lines.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/command.h"

namespace CLI {
class App;
}

namespace ckpt::app {

// `ckpt` and `ckpt -h`: the commands by task, on one screen.
std::string short_main_help(const Commands& commands);
// `ckpt --help`: commands, formats, exit statuses.
std::string main_help(const Commands& commands);
// "ckpt inspect PATH [options]"
std::string usage_text(const Command& command, const CLI::App& app);
// The exit statuses, one per line.
std::string_view exit_statuses();
// `ckpt COMMAND -h`: one screen.
std::string short_help(const Command& command, const CLI::App& app);
// The names of all options, without dashes.
std::vector<std::string> long_options(const CLI::App& app);
// `ckpt COMMAND --help`
std::string command_help(const Command& command, const CLI::App& app);
// `ckpt --version`, and which optional modules can be loaded.
std::string version_text();
std::string version_json();

// What is wrong with the first word of a command line that names no command.
Error unknown_command(const std::string& word, const Commands& commands);
// What is wrong with a command line that CLI11 refused with `message`.
Error wrong_options(const Command& command, const CLI::App& app,
                    const std::string& message);

}  // namespace ckpt::app
