// SPDX-License-Identifier: Apache-2.0
// The args of a job that loads a checkpoint made from another dialect's.
//
//   {"num_layers": 32, "hidden_size": 4096, …}       what the model says
//     ─► argparse.Namespace(num_layers=32, …,        the same, and
//          tensor_model_parallel_size=8, …,          the target's topology
//          consumed_train_samples=0, no_save_optim=True, …)   a fresh start
//
// Without them Megatron's loaders stop, or compare with nothing. The source's
// own entries stay, except for the target's topology.
#pragma once

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// Puts "args", "checkpoint_version" and "iteration" before the objects. A
// source without args gets none, but a note: they can't be made up.
void make_job_args(Catalog& catalog, const Facts& facts, const Layout& layout);

// Sets params_dtype, bf16 and fp16 to the dtype of the model's weights, if
// they are there.
void set_dtype_args(pickle::Document& document, pickle::Id args,
                    const Catalog& catalog);

}  // namespace ckpt::megatron
