// Which tensors of a source take part.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "app/options.h"
#include "ckpt/catalog.h"

namespace ckpt::app {

struct Selection {
  uint64_t kept = 0;
  uint64_t dropped = 0;
  uint64_t dropped_bytes = 0;
  // "--exclude '*.bias': 32 of 291 tensors (1.0 MiB) left out"
  std::vector<std::string> notes;
};

// Removes the tensors that the options leave out. What was dropped, and by
// which option, is in the result and in catalog.assumptions. An
// unfaithful_error if a pattern or a layer matches nothing, or if nothing
// remains.
Selection select(Catalog& catalog, const SelectOptions& options);

// Of two checkpoints that are compared: a pattern has to match something in
// one of them.
void select_both(Catalog& a, Catalog& b, const SelectOptions& options);

// The layer that a tensor belongs to: N of "layers.N", "blocks.N", "h.N" …
// in its dotted name; nothing if it belongs to none.
std::optional<uint32_t> layer_of(std::string_view name);

// "0-15,20" -> {0, …, 15, 20}
std::set<uint32_t> parse_layers(const std::string& text);

}  // namespace ckpt::app
