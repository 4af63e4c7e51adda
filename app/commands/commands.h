// All commands, and how a line of words becomes a run of one.
#pragma once

#include <string>
#include <vector>

namespace ckpt::app {

// Words after "ckpt". Returns the exit status; throws what the command throws.
int run_words(std::vector<std::string> words);

// The words of the command that runs, its name first, files of arguments
// expanded; for plans.
const std::vector<std::string>& command_words();

}  // namespace ckpt::app
