// SPDX-License-Identifier: Apache-2.0
// Options that name what is read. A path that leads nowhere is an error
// whether or not the run would have come to need what it names.
#pragma once

#include <CLI/App.hpp>

namespace ckpt::app {

// Has the option refuse what isn't there, a directory in place of a file, and a
// file in place of a directory. Returns the option.
CLI::Option* names_file(CLI::Option* option);
// The same for a file of rules that may stand in the option itself.
CLI::Option* names_rules(CLI::Option* option);
CLI::Option* names_directory(CLI::Option* option);
CLI::Option* names_either(CLI::Option* option);
// A file, a directory, or "none".
CLI::Option* names_tokenizer(CLI::Option* option);
// A rule of --assume-order, or a file.
CLI::Option* names_order(CLI::Option* option);

}  // namespace ckpt::app
