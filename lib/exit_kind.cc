// SPDX-License-Identifier: Apache-2.0
#include "lib/exit_kind.h"

namespace ckpt {

std::string_view kind_name(ExitCode code) {
  switch (code) {
    case ExitCode::kDone:
      return "done";
    case ExitCode::kNegative:
      return "negative";
    case ExitCode::kUsage:
      return "usage";
    case ExitCode::kMissing:
      return "missing";
    case ExitCode::kDamaged:
      return "damaged";
    case ExitCode::kUnfaithful:
      return "unfaithful";
    case ExitCode::kIo:
      return "io";
    case ExitCode::kResource:
      return "resource";
    case ExitCode::kUnsafe:
      return "unsafe";
    case ExitCode::kBug:
      return "bug";
  }
  return "bug";
}

}  // namespace ckpt
