// SPDX-License-Identifier: Apache-2.0
// run_config.yaml, which Megatron-Bridge (0.3.1) writes beside a distributed
// checkpoint and reads with it:
//
//   model:
//     tensor_model_parallel_size: 2
//     pipeline_model_parallel_size: 1
//   checkpoint:
//     save_optim: true            whether to ask for the optimizer's state
//     save_rng: true              … and for random states
//
// From it Bridge takes the ranks of the file's random states and of an
// adapter's rows, so it must match the target. All other bytes stay.
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
// Its scalars; empty if there is no file. Throws input_error if it is not YAML
// as in configurations.
families::Config run_config(const Catalog& source);
// Its parallel sizes.
Facts run_config_facts(const families::Config& config);

// What the file must say about a target: sizes, what is no longer in it, and
// `wanted`, by the names of Megatron-LM's args.
std::vector<ArgChange> run_config_changes(const families::Config& config,
                                          const Catalog& target,
                                          std::vector<ArgChange> wanted);
// `text` with these values, by dotted keys; does not add keys. Throws
// unfaithful_error if a value can't be found in the text, or if another one
// would change with it.
std::string edit_yaml(const std::string& path, const std::string& text,
                      const std::vector<ArgChange>& changes);

}  // namespace ckpt::megatron
