// SPDX-License-Identifier: Apache-2.0
// Words of commands in messages: what is copied from one must run.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::text {

// Spelled so that bash and zsh read it back: plain, in quotes, or with control
// characters and other bytes that no terminal should get as $'\x1b'.
std::string shell_word(std::string_view word);

// The same for a path passed to ckpt: never an option or @FILE.
std::string shell_path(std::string_view path);

}  // namespace ckpt::text
