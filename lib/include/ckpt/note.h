// SPDX-License-Identifier: Apache-2.0
// What a reader or writer reports beside its result, worded as errors are
// (ckpt/error.h): catalog.problems.push_back(
//     warning("total_size", {path, name}, "{} bytes, the index says {}", a,
//     b));
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "ckpt/catalog.h"
#include "ckpt/error.h"

namespace ckpt {

// `kind` is a stable word of --json, in snake_case. A path or tensor that the
// note is not about stays empty.
template <class... Args>
Problem note(Problem::Severity severity, std::string kind, Where where,
             fmt::format_string<Args...> text, Args&&... args) {
  return {severity, std::move(kind), std::move(where.path),
          std::move(where.tensor),
          fmt::format(text, std::forward<Args>(args)...)};
}

// A fact that changes nothing; what may surprise; what is broken (exit 1 of
// verify).
#define CKPT_NOTE_MAKER(maker, severity)                              \
  template <class... Args>                                            \
  Problem maker(std::string kind, Where where,                        \
                fmt::format_string<Args...> text, Args&&... args) {   \
    return note(Problem::Severity::severity, std::move(kind),         \
                std::move(where), text, std::forward<Args>(args)...); \
  }
CKPT_NOTE_MAKER(remark, kNote)
CKPT_NOTE_MAKER(warning, kWarning)
CKPT_NOTE_MAKER(damage, kDamage)
#undef CKPT_NOTE_MAKER

}  // namespace ckpt
