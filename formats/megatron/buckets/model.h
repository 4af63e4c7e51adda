// SPDX-License-Identifier: Apache-2.0
// What each model-parallel rank holds of the model, parameter by parameter, in
// module order.
//
//   chunk   layers [a, b) of a pipeline stage, perhaps with the embedding in
//           front and the final norm and output layer at the end
//   param   one parameter of one rank; its memory is the row-major content of
//           its parts, one after the other: [gate rows; up rows]
//   part    a box of a tensor of the model
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/model/module_order.h"

namespace ckpt::megatron {

struct ParamPart {
  uint32_t tensor = 0;  // of the catalog
  Box box;
};

struct RankParam {
  std::vector<ParamPart> parts;
  uint64_t numel = 0;
  DType dtype = DType::f32;
  bool shared_embedding = false;
};

// Whether a buffer has a rank's experts.
enum class Experts : uint8_t { kNone, kOnly, kToo };

struct Chunk {
  uint64_t first_layer = 0;
  uint64_t end_layer = 0;
  bool first = false;  // of all chunks: has the embedding
  bool last = false;   // of all chunks: has what comes after the layers
};

struct RankPlace {
  uint64_t tp = 0, tp_size = 1;  // experts: expert tensor parallel
  uint64_t ep = 0, ep_size = 1;
};

class ModelParams {
 public:
  // Throws unfaithful_error for parameters of unknown modules.
  ModelParams(const Catalog& catalog, const OrderStyle& style);

  // In module order. Throws unfaithful_error if a dimension does not divide, or
  // if no rule says how a tensor is split.
  std::vector<RankParam> of(const Chunk& chunk, const RankPlace& place,
                            Experts experts) const;

  uint64_t layers() const { return layers_; }
  bool has_experts() const { return has_experts_; }
  bool has_norms() const {
    return has_norms_;
  }  // those that OrderStyle is about

 private:
  struct Entry {
    uint32_t tensor = 0;
    Order order;
    bool layer_axis = false;
    bool expert_axis = false;
    bool expert = false;
    bool own_number = false;  // its layer is not one of the decoder's
    uint64_t layer = 0;       // numbered
    uint64_t number = 0;      // expert, numbered
  };
  struct Placed;

  void add(uint32_t tensor, const OrderStyle& style);
  void add_entry(const Entry& entry, uint64_t layer, const RankPlace& place,
                 bool shared, std::vector<Placed>& out) const;
  void add_ends(const Chunk& chunk, const RankPlace& place,
                std::vector<Placed>& out) const;
  std::vector<Box> boxes(const Entry& entry, uint64_t layer, uint64_t expert,
                         const RankPlace& place) const;

  std::pair<uint64_t, uint64_t> experts_of(const Entry& entry,
                                           const RankPlace& place) const;
  std::vector<RankParam> join(const std::vector<Placed>& placed) const;

  const Catalog& catalog_;
  std::vector<Entry> embedding_;
  std::vector<Entry> stacked_;                                 // of all layers
  std::unordered_map<uint64_t, std::vector<Entry>> numbered_;  // by layer
  std::vector<Entry> end_;
  std::vector<bool> is_expert_;  // by tensor of the catalog
  uint64_t layers_ = 0;
  uint64_t experts_ = 0;  // numbered
  bool tied_ = false;
  bool mtp_ = false;
  bool has_experts_ = false;
  bool has_norms_ = false;
};

}  // namespace ckpt::megatron
