// SPDX-License-Identifier: Apache-2.0
// Which ranks of the target hold what: state dicts cut by pipeline stage, with
// layers and experts numbered as in each rank.
//
//   source     [v0 p0] [v0 p1] …      the object "model.keys", or names alone
//      └► one list in the model's order ──► chunks of the target
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "formats/megatron/legacy/key.h"
#include "formats/megatron/model/facts.h"
#include "formats/megatron/model/parts.h"

namespace ckpt::megatron {

struct LegacyPlan {
  Topology topology;
  uint64_t cp = 1;
  uint64_t etp = 1;          // expert tensor parallel
  uint32_t vpp = 1;          // virtual stages
  bool tied = false;         // the embedding has a copy on the last stage
  uint64_t experts = 0;      // of the model
  bool own_experts = false;  // they have their own optimizer
  bool own_stages = false;   // the pipeline is cut unlike the source's
  // How args say that stages are unequal; see StageSplit.
  std::optional<uint64_t> first_stage;
  std::optional<uint64_t> last_stage;
  std::string notation;
  uint64_t vocab_multiple = 0;                 // if it replaces the source's
  std::vector<std::vector<LegacyKey>> chunks;  // [v * pp + p]
  // Number of the first layer of each chunk, by "decoder.layers."
  std::map<std::string, std::vector<uint64_t>> first_layer;
  // The topology does not change: what belongs to ranks stays.
  bool same_ranks = false;
  std::string left_out;  // an unwritten parameter of the source
  MixerParts mixers;

  const std::vector<LegacyKey>& chunk(uint32_t v, uint32_t p) const {
    return chunks[size_t{v} * topology.pp + p];
  }
  uint64_t ranks_of(bool expert) const { return expert ? etp : topology.tp; }
};

// One directory of the target.
struct LegacyCoordinates {
  uint32_t tp = 0, pp = 0, ep = 0;
  uint64_t rank = 0;  // the first one in its stage
  // Which parts of the distributed optimizer's state its file holds.
  bool dense_states = true, expert_states = true;
};

// Throws unfaithful_error for topologies that don't divide the model.
LegacyPlan plan_legacy(const Catalog& source, const Facts& facts,
                       const Layout& layout, Target& target);

// Every directory that a rank of some data-parallel size would read.
std::vector<LegacyCoordinates> legacy_ranks(const LegacyPlan& plan);
std::string legacy_dir(const LegacyPlan& plan, const LegacyCoordinates& at);

const Object* find_object(const Catalog& catalog, std::string_view name);

}  // namespace ckpt::megatron
