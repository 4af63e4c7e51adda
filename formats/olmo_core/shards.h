// SPDX-License-Identifier: Apache-2.0
// How tensor parallelism cuts the parameters, and which ranks wrote a
// checkpoint, as far as its boxes show.
//
//   rows (dim 0)   embeddings, w_q, w_k, w_v, w1, w3, lm_head.w_out, experts
//   columns        attention.w_out, feed_forward.w2
//   whole          norms, routers
//
// FSDP then cuts the rows of what a rank has; rank = dp * tp ranks + tp.
#pragma once

#include <cstdint>

#include "ckpt/catalog.h"

namespace ckpt::olmo_core {

// The rule for a parameter's name, without "model."; kUnknown for other names.
TpRule rule_of(std::string_view param);

// Sets Tensor::tp where it is unknown: for parameters by name, for optimizer
// state of the parameter's shape as for the parameter.
void set_rules(Catalog& catalog);

// The number of a target's ranks, each with its files: dp x tp. Throws
// unfaithful_error for pipeline or expert parallelism, and for too many ranks.
uint32_t ranks_of(const Topology& topology);

// The topology of `ranks` writers: tp is the number of parts of the tensors
// that only tensor parallelism cuts by columns, if all are cut so and it
// divides the ranks.
Topology topology_of(const Catalog& catalog, uint32_t ranks);

}  // namespace ckpt::olmo_core
