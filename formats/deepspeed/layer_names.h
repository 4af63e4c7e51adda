// SPDX-License-Identifier: Apache-2.0
// Megatron-DeepSpeed's pipeline numbers its modules; a run without a pipeline
// has Megatron's names for the same parameters:
//
//   layer_01  word_embeddings.weight     language_model.embedding.word_embed…
//   layer_03  self_attention.dense.…     language_model.encoder.layers.0.self…
//   layer_06  weight, bias: the norm     language_model.encoder.final_layern…
//   layer_07  lm_head.weight             language_model.output_layer.weight
//
// The modules between them have no parameters, so the order counts, not the
// numbers: a layer is what has self_attention.
#pragma once

#include <vector>

#include "formats/deepspeed/apart.h"
#include "formats/deepspeed/assemble.h"

namespace ckpt::deepspeed {

// Gives all names of `layers` and of the ranks' optimizers those of a run
// without a pipeline, if they are Megatron's; changes nothing else.
void name_as_megatron(Layers& layers, std::vector<Column>& columns);

}  // namespace ckpt::deepspeed
