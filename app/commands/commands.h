// SPDX-License-Identifier: Apache-2.0
// All commands, and how a line of words becomes a run of one.
#pragma once

#include <string>
#include <vector>

#include "app/command.h"

namespace ckpt::app {

// New ones, in the order of the help.
Commands all_commands();

// All that a command takes, what every command takes included. `help` must
// outlive `app`.
void declare_options(Command& command, CLI::App& app, bool& help);

// Words after "ckpt". Returns the exit status; throws what the command throws.
int run_words(std::vector<std::string> words);

// The words of the command that runs, its name first, files of arguments
// expanded; for plans.
const std::vector<std::string>& command_words();

}  // namespace ckpt::app
