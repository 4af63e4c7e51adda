// SPDX-License-Identifier: Apache-2.0
// Converts a rank's layer and expert numbers to the whole model's.
//
//   chunks in the order (virtual stage, pipeline stage); 5 layers, pp=2 vpp=2
//     v0 p0   v0 p1   v1 p0   v1 p1
//     0 1     0       0       0         in the files
//     0 1     2       3       4         in the model
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/megatron/legacy/rank.h"

namespace ckpt::megatron {

class LegacyNumbering {
 public:
  // Counts the layers of each chunk; pipelines may be uneven. Throws
  // input_error if ranks of one stage differ, or if the sum contradicts the
  // args.
  LegacyNumbering(const std::vector<LegacyRank>& ranks, const Facts& facts,
                  const std::string& path);

  // The name in the whole model. The copy of a tied embedding keeps its own.
  std::string global_name(const LegacyDir& rank, uint32_t chunk,
                          std::string_view name) const;

  uint32_t stages() const { return stages_; }             // of the pipeline
  uint32_t chunks() const { return chunks_; }             // of one stage
  uint64_t experts_per_rank() const { return experts_; }  // 0: no experts

 private:
  struct Stack {
    std::vector<uint64_t> count;  // of layers: [v * stages + p]
    std::vector<uint64_t> first;  // likewise: the first one's number
  };
  void count_layers(const LegacyRank& rank, bool first);
  void check_total(const Facts& facts, const std::string& path) const;
  void find_experts(const std::vector<LegacyRank>& ranks, const Facts& facts,
                    const std::string& path);

  uint32_t stages_ = 1;
  uint32_t chunks_ = 1;
  uint64_t experts_ = 0;
  std::map<std::string, Stack> stacks_;  // by "decoder.layers."
};

// An entry of the whole model's state dict.
struct GlobalEntry {
  std::vector<std::string> path;    // keys, with the model's numbers
  std::string name;                 // joined
  size_t rank = 0;                  // index of a rank that has it …
  pickle::Id node = pickle::kNoId;  // … and its value there
  bool tensor = false;
};
using GlobalChunk = std::vector<GlobalEntry>;

// The entries of each chunk [v * stages + p], in the order of an unsplit model:
// the experts of a layer together, by number.
std::vector<GlobalChunk> global_order(const std::vector<LegacyRank>& ranks,
                                      const LegacyNumbering& numbering,
                                      uint64_t ep);

// `name` cut at its dots as `path` is, into the same number of parts.
std::vector<std::string> regroup(std::string_view name,
                                 const std::vector<std::string>& path);

}  // namespace ckpt::megatron
