// SPDX-License-Identifier: Apache-2.0
// The one exception type. An error says what it is about (path, tensor), what
// is wrong, with numbers, and what to do next; its code is the process's exit
// status.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace ckpt {

// The exit status of the command line; stable.
enum class ExitCode : int {
  kDone = 0,
  kNegative = 1,    // a negative answer: damage found, differences found
  kUsage = 2,       // wrong command line
  kMissing = 3,     // input missing, or of no known format
  kDamaged = 4,     // input damaged
  kUnfaithful = 5,  // can't be done faithfully
  kIo = 6,          // an I/O operation failed
  kResource = 7,    // a resource or an optional module is missing
  kUnsafe = 8,      // refused as unsafe
  kBug = 70,        // an invariant of this program does not hold
};

// What an error is about. Empty members are left out of the message.
struct Where {
  std::string path;
  std::string tensor;
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, Where where, std::string problem, std::string hint = {});

  ExitCode code() const { return code_; }
  const Where& where() const { return where_; }
  // The message without path and tensor; what() is
  // "PATH: TENSOR: PROBLEM".
  const std::string& problem() const { return problem_; }
  // What the user can do next; may be empty.
  const std::string& hint() const { return hint_; }

  // throw input_error(...).with_hint("...");
  Error with_hint(std::string hint) const {
    return Error(code_, where_, problem_, std::move(hint));
  }

 private:
  ExitCode code_;
  Where where_;
  std::string problem_;
  std::string hint_;
};

// One maker per exit class: throw input_error({path, name}, "{} rows", n);
#define CKPT_ERROR_MAKER(maker, code)                                          \
  template <class... Args>                                                     \
  Error maker(Where where, fmt::format_string<Args...> text, Args&&... args) { \
    return Error(code, std::move(where),                                       \
                 fmt::format(text, std::forward<Args>(args)...));              \
  }
CKPT_ERROR_MAKER(usage_error, ExitCode::kUsage)
CKPT_ERROR_MAKER(missing_error, ExitCode::kMissing)
CKPT_ERROR_MAKER(input_error, ExitCode::kDamaged)
CKPT_ERROR_MAKER(unfaithful_error, ExitCode::kUnfaithful)
CKPT_ERROR_MAKER(resource_error, ExitCode::kResource)
CKPT_ERROR_MAKER(unsafe_error, ExitCode::kUnsafe)
CKPT_ERROR_MAKER(bug_error, ExitCode::kBug)
#undef CKPT_ERROR_MAKER

// "OPERATION: strerror(errnum)"; kMissing for ENOENT, kIo else.
Error io_error(std::string path, std::string operation, int errnum);

}  // namespace ckpt
