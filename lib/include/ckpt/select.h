// SPDX-License-Identifier: Apache-2.0
// Which tensors of a checkpoint take part: --keys, --layers and the other
// selection options.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt {

struct Selection {
  std::vector<std::string> keys = {};     // globs; empty: all
  std::vector<std::string> exclude = {};  // globs, of objects too
  std::string layers = {};                // "0-3,8", "0-23,8-31": in that order
  std::string experts = {};               // likewise: "0-31"
  std::string blocks = {};  // local layers, rank by rank: "0-3,8/4-7"
  bool model_only = false;
  bool optim_only = false;
  // A state dict that is not alone in its file: "ema". Its tensors have the
  // names that they have in it, and other selections are among them.
  std::string part = {};
  friend bool operator==(const Selection&, const Selection&) = default;
};

struct Selected {
  uint64_t kept = 0;  // tensors
  uint64_t dropped = 0;
  uint64_t dropped_bytes = 0;
  // "--exclude '*.bias': 32 of 291 tensors (1.0 MiB) left out"
  std::vector<std::string> notes = {};
  // Not empty: layers are counted anew in what remains.
  std::string warning = {};
};

// Removes the tensors that are not selected and the objects that `exclude`
// matches; the configuration follows layers and experts. The result and
// catalog.assumptions say what was dropped and why. Throws unfaithful_error if
// a pattern, a layer or an expert matches nothing, or if nothing remains;
// usage_error for a list that can't be read.
Selected select(Catalog& catalog, const Selection& selection);

}  // namespace ckpt
