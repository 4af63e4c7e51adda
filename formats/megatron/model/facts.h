// SPDX-License-Identifier: Apache-2.0
// What Megatron's training arguments say about a checkpoint.
//
//   args   argparse.Namespace (a call whose state is a dict), or a plain dict
//     .num_layers 32  .tensor_model_parallel_size 8  .swiglu True  …
//
// All of it may be missing: checkpoints without args are valid. None in the
// file counts as missing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/dtype.h"
#include "ckpt/topology.h"
#include "lib/pickle/value.h"

namespace ckpt::megatron {

struct Facts {
  // The model.
  std::optional<uint64_t> num_layers;
  std::optional<uint64_t> hidden_size;
  std::optional<uint64_t> ffn_hidden_size;
  std::optional<uint64_t> num_attention_heads;
  std::optional<uint64_t> num_query_groups;  // those in use: heads without GQA
  std::optional<uint64_t> kv_channels;
  std::optional<uint64_t> num_experts;
  std::optional<uint64_t> mamba_groups;       // mamba_num_groups
  std::optional<uint64_t> delta_keys;         // linear_num_key_heads
  std::optional<uint64_t> vocab_size;         // rows in use
  std::optional<uint64_t> padded_vocab_size;  // rows stored
  std::optional<uint64_t> vocab_multiple;     // make_vocab_size_divisible_by
  std::optional<bool> gated;   // swiglu and its kin: fc1 is [gate; up]
  std::optional<bool> bias;    // add_bias_linear
  std::optional<bool> untied;  // untie_embeddings_and_output_weights
  // Layers differ from each other: no layer axis in distributed checkpoints.
  std::optional<bool> numbered_layers;
  std::optional<bool> local_spec;  // transformer_impl local
  std::optional<DType> params_dtype;

  // How it was trained.
  std::optional<uint64_t> tp;
  std::optional<uint64_t> pp;
  std::optional<uint64_t> vpp;  // virtual stages of each pipeline rank
  std::optional<uint64_t> cp;
  std::optional<uint64_t> ep;
  std::optional<uint64_t> etp;  // expert tensor parallel
  std::optional<uint64_t> dp;   // expert-parallel ranks included
  std::optional<uint64_t> world_size;

  // The gradient buffers of the distributed optimizer (buffers.h).
  std::optional<bool> distributed_optimizer;
  std::optional<bool> overlap_grad_reduce;
  std::optional<uint64_t> bucket_size;   // ddp_bucket_size
  std::optional<uint64_t> num_buckets;   // ddp_num_buckets
  std::optional<bool> high_bandwidth;    // ddp_pad_buckets_for_high_nccl_busbw
  std::optional<bool> grads_in_float32;  // accumulate_allreduce_grads_in_fp32

  std::optional<uint64_t> iteration;
  bool any = false;  // there are args
};

// `args` may be kNoId. Throws input_error (naming `path`) for impossible sizes:
// negative, or beyond 2^40.
Facts read_facts(const pickle::Document& document, pickle::Id args,
                 const std::string& path);

// The dict with the entries: `args` itself, or the state of a Namespace. kNoId
// for anything else.
pickle::Id args_dict(const pickle::Document& document, pickle::Id args);

// Sizes default to one where the args say nothing.
Topology topology_of(const Facts& facts);

struct ArgChange {
  std::string name;
  std::optional<uint64_t> value;  // nothing: None, or …
  std::string text = {};          // … if it is not empty
};

// What another topology changes in the args: the parallel sizes, world_size and
// the padded vocabulary (0: unchanged). Virtual stages go back to None if the
// pipeline changes, since the old number may not divide.
std::vector<ArgChange> topology_changes(const Facts& facts,
                                        const Topology& target,
                                        uint64_t padded_vocab_size);

// Sets entries that exist and differ, and returns the names of those that it
// changed. Leaves the others alone, including those that Megatron does not
// know.
std::vector<std::string> set_args(pickle::Document& document, pickle::Id args,
                                  const std::vector<ArgChange>& changes);

}  // namespace ckpt::megatron
