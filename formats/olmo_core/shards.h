// SPDX-License-Identifier: Apache-2.0
// How tensor parallelism cuts the parameters, and which ranks wrote a
// checkpoint, as far as its boxes tell.
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

// By the name of a parameter, without "model."; kUnknown for other names.
TpRule rule_of(std::string_view param);

// Sets Tensor::tp where it is unknown: of parameters by their names, of
// optimizer state of the parameter's shape as the parameter.
void set_rules(Catalog& catalog);

// How many ranks a target has, each with its files: dp x tp. Throws
// unfaithful_error for pipeline or expert parallelism, and for too many.
uint32_t ranks_of(const Topology& topology);

// Of `ranks` that wrote: tp is how often the tensors that only tensor
// parallelism cuts by columns are cut, if all are and it divides the ranks.
Topology topology_of(const Catalog& catalog, uint32_t ranks);

}  // namespace ckpt::olmo_core
