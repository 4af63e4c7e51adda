// SPDX-License-Identifier: Apache-2.0
// What went wrong on one rank, as another rank reports it.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace ckpt::ranks {

// Turns a failure into bytes and back. `by` ("rank 3 of 8, on node7") becomes a
// part of the message; "" for this process.
std::string pack_failure(std::exception_ptr failure);
[[noreturn]] void throw_failure(std::string_view bytes, const std::string& by);
bool is_stopped(std::string_view failure);

}  // namespace ckpt::ranks
