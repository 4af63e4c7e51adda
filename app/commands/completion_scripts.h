// SPDX-License-Identifier: Apache-2.0
// Scripts that let shells complete a command line of ckpt.
#pragma once

#include <string>
#include <vector>

#include "app/commands/option_table.h"

namespace ckpt::app {

// For `source`, or for a folder where bash-completion looks.
std::string bash_completion(const std::vector<CommandRow>& table);
// For a file _ckpt in a directory of $fpath.
std::string zsh_completion(const std::vector<CommandRow>& table);
// For a file ckpt.fish in a directory of completions.
std::string fish_completion(const std::vector<CommandRow>& table);

}  // namespace ckpt::app
