// SPDX-License-Identifier: Apache-2.0
// Pages for man(1): one for each command, and one that lists them.
#pragma once

#include <string>
#include <vector>

#include "app/commands/option_table.h"

namespace ckpt::app {

// ckpt(1)
std::string main_page(const std::vector<CommandRow>& table);
// ckpt-inspect(1)
std::string command_page(const CommandRow& row);

}  // namespace ckpt::app
