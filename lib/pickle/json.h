// The canonical JSON of a value tree, for people and for tests
// (formats/torch_pickle.md section 13).
#pragma once

#include <nlohmann/json.hpp>

#include "lib/pickle/value.h"

namespace ckpt::pickle {

// Cycles and shared values become {"!ref": path}. At most `budget` values are
// shown; what is beyond becomes {"!elided": n}. Bytes over 4096 are shown as
// {"!bytes": first bytes in hex, "size": n}. Never recurses deeper than 512:
// beyond that {"!elided": 1}.
nlohmann::ordered_json to_json(const Document& document, Id root,
                               uint64_t budget = 100'000);

// JSON (objects, arrays, scalars) -> value tree; big numbers as kBigInt.
Id from_json(Document& document, const nlohmann::json& value);

}  // namespace ckpt::pickle
