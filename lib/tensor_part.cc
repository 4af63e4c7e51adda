// SPDX-License-Identifier: Apache-2.0
#include "lib/tensor_part.h"

#include <optional>

#include "ckpt/error.h"
#include "lib/session.h"

namespace ckpt {
namespace {

// Set by one thread before others read; null without a session.
TensorPart::Which* which() {
  const auto& session = Session::current();
  return session ? &session->part : nullptr;
}

// The first number in a name is its layer's. A layer stays together, since
// dialects fuse its tensors.
std::optional<uint64_t> layer_of(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789";
  for (size_t at = name.find('.'); at != name.npos;
       at = name.find('.', at + 1)) {
    const std::string_view rest = name.substr(at + 1);
    const std::string_view number = rest.substr(0, rest.find('.'));
    if (number.empty() || number.size() > 9 ||
        number.find_first_not_of(kDigits) != number.npos)
      continue;
    uint64_t layer = 0;
    for (const char digit : number)
      layer = 10 * layer + static_cast<uint64_t>(digit - '0');
    return layer;
  }
  return std::nullopt;
}

// A hash of a name without its numbers: FNV-1a.
uint64_t kind_of(std::string_view name) {
  uint64_t sum = 0xcbf29ce484222325;
  for (const char c : name)
    if (c < '0' || c > '9')
      sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return sum >> 32;
}

}  // namespace

TensorPart::TensorPart(By by, uint32_t number, uint32_t parts) {
  Which* const part = which();
  if (!part) throw bug_error({}, "a part is read outside of any session");
  part->by = by;
  part->number = number;
  part->parts = parts;
  part->dropped = 0;
}
TensorPart::~TensorPart() {
  which()->number = 0;
  which()->parts = 1;
}

bool TensorPart::is_set() { return which() && which()->parts > 1; }

bool TensorPart::wanted(std::string_view name) {
  const Which* const part = which();
  if (!part || part->parts <= 1) return true;
  const auto layer = layer_of(name);
  if (part->by == By::kLayer)
    return layer.value_or(0) % part->parts == part->number;
  return !layer || kind_of(name) % part->parts == part->number;
}

bool TensorPart::has_layer(std::string_view name) {
  return layer_of(name).has_value();
}

void TensorPart::drop(uint64_t bytes) {
  if (Which* const part = which()) part->dropped += bytes;
}
uint64_t TensorPart::dropped() { return which() ? which()->dropped.load() : 0; }

}  // namespace ckpt
