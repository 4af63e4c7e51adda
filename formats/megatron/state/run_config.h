// SPDX-License-Identifier: Apache-2.0
// run_config.yaml: what Megatron-Bridge (0.3.1) writes beside a distributed
// checkpoint, and reads for it:
//
//   model:
//     tensor_model_parallel_size: 2
//     pipeline_model_parallel_size: 1
//   checkpoint:
//     save_optim: true            whether to ask for the optimizer's state
//     save_rng: true              … and for random states
//
// Bridge takes the ranks of the file's random states and of an adapter's rows
// from it, so it has to follow the target. All other bytes stay.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/model/facts.h"
#include "models/config.h"

namespace ckpt::megatron {

inline constexpr char kRunConfigFile[] = "run_config.yaml";

// Its path: a sidecar of the catalog, or a file beside it.
std::optional<std::string> run_config_path(const Catalog& source);
// Its scalars; nothing if there is none. Throws input_error for what is no YAML
// that configurations have.
families::Config run_config(const Catalog& source);
// The parallel sizes that it says.
Facts run_config_facts(const families::Config& config);

// What the file is to say of a target: sizes, what is not in it any more, and
// `wanted`, by the names of Megatron-LM's args.
std::vector<ArgChange> run_config_changes(const families::Config& config,
                                          const Catalog& target,
                                          std::vector<ArgChange> wanted);
// `text` with these values in place of its own, by dotted keys; keys that it
// does not have are not added. Throws unfaithful_error if a value can't be
// found in the text, or if another one would change with it.
std::string edit_yaml(const std::string& path, const std::string& text,
                      const std::vector<ArgChange>& changes);

}  // namespace ckpt::megatron
