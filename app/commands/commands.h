// SPDX-License-Identifier: Apache-2.0
// All commands, and how words become a run of one.
#pragma once

#include <string>
#include <vector>

#include "app/command.h"

namespace ckpt::app {

// New instances, in the order of the help.
Commands all_commands();

// Adds all options of a command, including those of every command. `help` must
// outlive `app`.
void declare_options(Command& command, CLI::App& app, bool& help);

// Runs the words after "ckpt". Returns the exit status; throws what the command
// throws.
int run_words(std::vector<std::string> words);

// The words of the running command, its name first, @FILEs expanded; for plans.
const std::vector<std::string>& command_words();

}  // namespace ckpt::app
