// SPDX-License-Identifier: Apache-2.0
// The canonical JSON of a value tree, for people and for tests
// (docs: torch_pickle, section 13).
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/pickle/value.h"
#include "lib/text/scan.h"

namespace ckpt::pickle {

// The name of a tensor, from its node and its path joined with '.'.
using NameTensor = std::function<std::optional<std::string>(
    Id tensor, const std::string& path)>;

// Tensors, storages, numpy values and so on are shown as such:
// {"!tensor": name, "dtype": …}; without `name_tensor` the name is null.
// Cycles and shared values become {"!ref": path}. At most `budget` values are
// shown; the rest becomes {"!elided": n}. Bytes over 4096 are shown as
// {"!bytes": first bytes in hex, "size": n}. Anything deeper than 200 becomes
// {"!elided": 1}.
nlohmann::ordered_json to_json(const Document& document, Id root,
                               uint64_t budget = 100'000,
                               const NameTensor& name_tensor = {});

// JSON (objects, arrays, scalars) -> value tree; big numbers as kBigInt.
Id from_json(Document& document, const nlohmann::json& value);

// Turns JSON text into values, without another tree in between: what is carried
// is in memory once. As strict as lib/text/json.h, with an object's members
// sorted as there. Throws resource_error for a text whose values take too much
// memory (lib/tree_memory.h).
class JsonText {
 public:
  // `size`: bytes of the text; `path` is for messages.
  JsonText(Document& document, text::Scanner& scan, const std::string& path,
           uint64_t size);
  Id value();  // the next one
  // A dict of keys and values in turn, sorted by key.
  Id dict(std::vector<Id> pairs);

 private:
  Id next();
  Id list();
  Id object();
  void check_size() const;

  Document& document_;
  text::Scanner& scan_;
  const std::string& path_;
  const uint64_t size_;
  const uint64_t before_;  // bytes that the document took before
};

// Reads a whole text. NaN and Infinity are numbers.
Id read_json(Document& document, std::string_view text,
             const std::string& path);

}  // namespace ckpt::pickle
