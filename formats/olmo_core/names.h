// SPDX-License-Identifier: Apache-2.0
// The keys of the index, and the names of tensors in a catalog.
//
//   key                                  name in the catalog      kind
//   model.<param>                        <param>                  model
//   optim.state.<param>.exp_avg          state.<param>.exp_avg    optim
//   optim.param_groups.<param>.lr        param_groups.<param>.lr  (flattened)
//   optim.param_groups.0.lr              param_groups.0.lr        (not)
//   anything else                        the same                 other
//
// OLMoDDPTrainModule's keys have no prefix ("direct"): <param>.main,
// <param>.exp_avg, <param>.exp_avg_sq, <param>.step, model_buffer.<buffer>.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/dcp/metadata.h"

namespace ckpt::olmo_core {

struct Names {
  // kDialect, kDirectDialect, or "" if the keys follow neither scheme or short
  // names would clash (then nothing is changed).
  std::string_view dialect;
  std::vector<Kind> kinds;  // of the index's tensors, in order; kDialect only
};

// Renames all entries of an index to the catalog's names, and removes the first
// element of their paths, so that they nest as in OLMo-core's own unsharded
// files.
Names shorten(dcp::Metadata& metadata);

// Sets the dialect, and kind, param and state of the tensors, which are the
// index's, in its order.
void set_kinds(Catalog& catalog, const Names& names);

// The other way: key and nested path. `flattened` is the optimizer's form.
struct Key {
  std::string key;
  std::vector<dcp::PathElement> path;
};
Key key_of(const Tensor& tensor, bool flattened);
Key key_of_object(const std::string& name, bool flattened);

// True if the optimizer's options are stored per parameter, not per group.
// OLMo-core's own test: param_groups.0.params is absent.
bool is_flattened(const Catalog& catalog);

}  // namespace ckpt::olmo_core
