// SPDX-License-Identifier: Apache-2.0
// Scripts by which shells complete a command line of ckpt.
#pragma once

#include <string>
#include <vector>

#include "app/commands/option_table.h"

namespace ckpt::app {

// To be read by `source` or put where bash-completion looks.
std::string bash_completion(const std::vector<CommandRow>& table);
// A file _ckpt in a directory of $fpath.
std::string zsh_completion(const std::vector<CommandRow>& table);
// A file ckpt.fish in a directory of completions.
std::string fish_completion(const std::vector<CommandRow>& table);

}  // namespace ckpt::app
