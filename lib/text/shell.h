// SPDX-License-Identifier: Apache-2.0
// Words of commands that a message says: what is copied from it has to run.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::text {

// As bash and zsh read it back: plain, in quotes, or with its control
// characters and other bytes that no terminal should get as $'\x1b'.
std::string shell_word(std::string_view word);

// The same of a path that ckpt is given: never an option, nor @FILE.
std::string shell_path(std::string_view path);

}  // namespace ckpt::text
