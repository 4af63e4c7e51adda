// SPDX-License-Identifier: Apache-2.0
// Assembles whole tensors from the parts of all ranks.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/legacy/cut.h"
#include "formats/megatron/legacy/numbering.h"
#include "formats/megatron/legacy/states.h"
#include "formats/megatron/model/facts.h"
#include "formats/megatron/model/parts.h"
#include "models/rules.h"

namespace ckpt::megatron {

// How many ranks share a tensor, and which of their parts a rank has.
struct LegacySizes {
  uint64_t tp = 1, pp = 1, ep = 1;
  uint64_t etp = 1;   // of experts; divides tp
  bool tied = false;  // and pp > 1: the embedding has a copy at the end
  std::optional<uint64_t> expert_ffn = {};  // columns of an expert's fc2
};
LegacySizes legacy_sizes(const Facts& facts, const std::string& path);

class LegacyAssembler {
 public:
  LegacyAssembler(Catalog& catalog, const Facts& facts,
                  const LegacySizes& sizes, const LegacyNumbering& numbering,
                  families::Rules user = {})
      : catalog_(catalog),
        facts_(facts),
        sizes_(sizes),
        numbering_(numbering),
        user_(std::move(user)) {}

  // Makes room for the model's tensors, in this order.
  void add_order(const std::vector<GlobalChunk>& chunks);
  void add_model(const LegacyRank& rank);
  void add_states(const LegacyRank& rank, const LegacyStates& states);
  // Checks that no part is missing, and moves the tensors to the catalog.
  void finish();

 private:
  struct Whole {
    Tensor tensor;
    TpRule rule;
    uint64_t ranks = 1;
    Shape local;
    std::vector<bool> seen;     // by slot
    std::vector<size_t> slots;  // of each piece, where no rule says more
    std::string first;          // path of the first part, for messages
    bool begun = false;
  };
  // The name under which a rank's entry is joined with the others'.
  std::string name_of(const LegacyRank& rank, uint32_t chunk,
                      const LegacyEntry& entry) const;
  Whole& whole(const std::string& name);
  void begin(Whole& whole, const std::string& param, const LocalTensor& part,
             const std::string& file, bool cut);
  TpRule rule_of(const std::string& param, const Shape& shape) const;
  struct From {
    const LegacyRank& rank;
    uint32_t chunk;
    const LegacyEntry& entry;
    const LocalTensor& part;
    const std::string& file;
  };
  void add(Whole& whole, const std::string& param, const From& from, bool cut);
  // Notes where the parts of fused projections begin, by a rank's share of
  // them.
  void note_mixers(const LegacyRank& rank);
  Groups groups_of(const Whole& whole, const LegacyEntry& entry,
                   uint32_t chunk) const;
  RowOrder row_order(const LegacyRank& rank, const LegacyEntry& entry);
  void check_expert(const Whole& whole, const std::string& param,
                    const std::string& file) const;
  void check_sizes(const Whole& whole, const std::string& file) const;
  void check_seen(const Whole& whole) const;

  Catalog& catalog_;
  const Facts& facts_;
  const LegacySizes sizes_;
  const LegacyNumbering& numbering_;
  const families::Rules user_;  // --shard-dims
  std::vector<Whole> wholes_;
  std::unordered_map<std::string, size_t> by_name_;
  std::vector<MixerParts> mixers_;  // of one rank, by chunk
  std::string order_unknown_;       // a tensor whose rows need the heads
};

}  // namespace ckpt::megatron
