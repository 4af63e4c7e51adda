// SPDX-License-Identifier: Apache-2.0
// Which uses of which globals run nothing. Private to this room.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "lib/pickle/trace.h"

namespace ckpt::scan {

// What may be done with a global; naming it is then always allowed. Kept as a
// value, it may be called by whatever holds it, with anything in the pickle: by
// obj.keys() if keys is in obj's dict. So only what the pickle may call may be
// kept.
inline constexpr uint16_t kNamed = pickle::kImport | pickle::kAttribute;
inline constexpr uint16_t kValue = kNamed | pickle::kKept;
// cls.__new__ and a __setstate__ that only keeps the state: no __init__ runs.
inline constexpr uint16_t kInstance = kNamed | pickle::kNewObj | pickle::kBuild;
// When called, an enum looks up a value and a plain class keeps its arguments.
inline constexpr uint16_t kCalled = kValue | pickle::kReduce;

// Names in one module, separated by blanks.
struct Row {
  std::string_view module;
  uint16_t uses;
  std::string_view names;
};

// What libraries' own classes say of themselves (classes.cc).
std::span<const Row> library_classes();

}  // namespace ckpt::scan
