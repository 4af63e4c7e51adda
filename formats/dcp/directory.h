// SPDX-License-Identifier: Apache-2.0
// Which files of a directory are a distributed checkpoint. Also used by
// olmo_core.
//
//   .metadata  __0_0.distcp …              one index for all ranks
//   __0.metadata  __0_0.distcp …           one for each (use_collectives=False)
//   shard-00001-model-00001-of-00001.safetensors …     the HF storage writer
//   sharded/shard-…                        the same, to be consolidated
//   step-1000/.metadata …                  a training run: the newest is taken
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::dcp {

struct Directory {
  std::string path;
  bool whole = false;                // .metadata
  std::vector<std::string> ranks;    // __R.metadata, by R
  std::vector<std::string> shards;   // shard-…; then `path` may be sharded/
  std::vector<std::string> distcps;  // *.distcp, sorted
  std::vector<std::string> started;  // *.metadata.tmp: an unfinished save

  bool is_checkpoint() const {
    return whole || !ranks.empty() || !shards.empty();
  }
  // Unfinished saves are of this format too; its reader reports them.
  bool is_ours() const {
    return is_checkpoint() || !distcps.empty() || !started.empty();
  }
};

// Looks at names, and (for shards) at the header of one file. Does not throw
// for damaged files.
Directory look_at(const std::string& path);

// The newest complete checkpoint among step-N, global_stepN, checkpoint-N,
// epoch_N … below a directory, and what was passed over. Nothing if there is no
// step at all, not even an unfinished one.
struct Followed {
  std::string name;  // "" if no step is complete
  std::vector<std::string> unfinished;
  bool mixed = false;  // complete steps of two kinds: step-N and epoch-N
};
std::optional<Followed> follow(const std::string& path);

// A sign that Megatron's dist_checkpointing wrote a directory whose
// metadata.json, which it writes last, is not there: an incomplete save that
// looks like torch's own. "" if there is none.
std::string megatron_sign(const std::string& directory);

// The rank of "__3_0.distcp" (or "__3.metadata"); nothing for other names.
std::optional<uint32_t> rank_of(std::string_view name);
// True for a file that torch writes into a distributed checkpoint: an index or
// data.
bool is_part_name(const std::string& path);

}  // namespace ckpt::dcp
