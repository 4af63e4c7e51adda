// SPDX-License-Identifier: Apache-2.0
// The common part of a checkpoint: the values that all ranks share.
//
//   common.pt              one dict              every core, but for
//   common_state/shard_0_1 [the dict]            core 0.19 and later
//
//     args                 argparse.Namespace
//     iteration            7
//     optimizer            {"optimizer": {"param_groups": […]}, …}
//     content_metadata     {"distrib_optim_sharding_type": …}
//
// Each entry is an object of the catalog, named by its key. The small tensors
// inside the values are carried with the catalog's skeleton.
#pragma once

#include <memory>
#include <string>

#include "ckpt/catalog.h"
#include "containers/torch/item.h"
#include "formats/format.h"
#include "formats/megatron/file_names.h"
#include "formats/megatron/model/facts.h"
#include "lib/pickle/value.h"

namespace ckpt::megatron {

inline constexpr char kCommonObject[] = "common_state/shard_0_1";
inline constexpr char kArgs[] = "args";

struct Common {
  std::shared_ptr<const pickle::Document> document;  // null if absent
  pickle::Id root = pickle::kNoId;                   // the dict
  std::string path;                                  // for messages
};

// Reads common.pt. Adds the file, its checksums and globals to the catalog, and
// sets the catalog's skeleton. Throws input_error if it is not a dict.
Common read_common_file(const std::string& path, Catalog& catalog,
                        const formats::ReadOptions& options);

// The same for newer cores' item, already opened: a list of the one dict.
Common read_common_item(const torch::OpenedObject& opened,
                        const std::string& path, Catalog& catalog);

// Adds one object for each entry, before the existing objects.
void add_common_objects(const Common& common, Catalog& catalog);

// What the args say, if the catalog has args.
Facts facts_of(const Catalog& catalog);

// True for what goes into the common part: not an entry of a grid of ranks or
// layers, nor an item of its own in a Megatron checkpoint.
bool is_common(const Catalog& source, const Object& object);

// common.pt for a target.
struct CommonTarget {
  std::string copy_of;  // the source's file, if it serves unchanged; or …
  std::string bytes;    // … a new one
  std::vector<std::string> changed;  // entries of the args
  std::vector<std::string> plain;    // classes that became plain values
  std::vector<Problem> problems;     // what had to be left out
};
// Makes it from the source's common objects, which must be open. All values
// stay as they are, except for `changes` to the args. With `old_core`, members
// of enumerations that megatron-core 0.9 lacks are written as their values: it
// could not open the file.
CommonTarget plan_common(const Catalog& source,
                         const std::vector<ArgChange>& changes,
                         bool old_core = false);

}  // namespace ckpt::megatron
