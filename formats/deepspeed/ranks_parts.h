// SPDX-License-Identifier: Apache-2.0
// Rank files in the making, which lay_out_ranks() fills. Its files:
//
//   ranks.cc        opens the source, decides the groups, places tensors
//   ranks_model.cc  *_model_states.pt
//   ranks_optim.cc  *_optim_states.pt
//
// Private to this room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "containers/torch/file_plan.h"
#include "formats/deepspeed/model_states.h"
#include "formats/deepspeed/optim_states.h"
#include "formats/deepspeed/same_storages.h"
#include "formats/deepspeed/vectors.h"
#include "lib/pickle/value.h"

namespace ckpt::deepspeed {

using Substitutes = std::unordered_map<pickle::Id, pickle::Id>;

bool is_list(const pickle::Document& document, pickle::Id id);

// Renames a file of rank 0, "zero_pp_rank_0_…", for another rank.
std::string name_of_rank(const std::string& name, uint32_t rank);

// The slots of one file, and the tensors whose elements go there.
struct Placed {
  size_t slot = 0;
  uint64_t item = 0;  // bytes of an element
  Vector vector;
  std::string state;  // "": the master
  bool scalar = false;
  const Parameters* group = nullptr;  // of a scalar
};

class Ranks {
 public:
  Ranks(const Catalog& source, uint32_t ranks);

  Target build();

 private:
  const pickle::Document& values() const { return *optim_->document; }
  bool third() const { return optim_ && optim_rank_.stage == 3; }

  // ranks.cc
  [[noreturn]] void refuse(const std::string& path, const std::string& tensor,
                           const std::string& what) const;
  void open();
  pickle::Id state_dict() const;
  void check() const;
  pickle::Id optimizer() const;
  void regroup();
  void check_rule(const Parameters& all, uint64_t size,
                  const std::vector<size_t>& before) const;
  std::vector<Parameters> old_sub_groups() const;
  const Tensor& tensor_of(const std::string& parameter,
                          const std::string& state) const;
  uint32_t add_file(const std::string& name, torch::FilePlan& plan);
  void place(const std::vector<Placed>& placed, uint32_t file,
             torch::FilePlan& plan);
  void place_scalar(const Placed& one, uint32_t file, uint64_t offset);
  void place_vector(const Placed& one, uint32_t file, uint64_t offset,
                    std::vector<Literal>& literals);
  uint32_t file_of(const std::string& path) const;
  void check_placed();

  // ranks_model.cc
  void add_model(uint32_t rank);
  void add_fragments(const ModelRank& model, uint32_t rank,
                     pickle::Document& document,
                     std::vector<torch::TensorSlot>& slots,
                     Substitutes& substitutes,
                     std::vector<Placed>& placed) const;
  pickle::Id shapes(pickle::Document& document) const;
  void place_stored(const ModelRank& model, const SameStorages& storages,
                    uint32_t file, const torch::FilePlan& plan,
                    std::vector<SameStorages::Use>& uses);

  // ranks_optim.cc
  void add_optim(uint32_t rank);
  pickle::Id state_of(size_t group) const;
  pickle::Id add_vector(pickle::Document& document, const Vector& vector,
                        const std::string& state, bool lean,
                        std::vector<torch::TensorSlot>& slots,
                        std::vector<Placed>& placed,
                        const Parameters& group) const;
  pickle::Id add_states(pickle::Document& document, pickle::Id state,
                        const Vector& vector,
                        std::vector<torch::TensorSlot>& slots,
                        std::vector<Placed>& placed,
                        const Parameters& group) const;
  void check_alike(const Parameters& group, const std::string& state) const;
  void add_places(pickle::Document& document,
                  const std::vector<Vector>& vectors,
                  Substitutes& substitutes) const;
  void add_members(pickle::Document& document, Substitutes& substitutes) const;

  const Catalog& source_;
  const uint32_t ranks_;
  Catalog opened_;  // the files to rewrite
  std::vector<ModelRank> models_;
  std::optional<torch::Container> optim_;
  OptimRank optim_rank_;
  uint32_t old_ranks_ = 0;
  std::string model_name_, optim_name_;
  std::vector<Parameters> groups_;  // of ZeRO 3 sub-groups
  std::vector<size_t> from_;        // an old group with the same states
  std::vector<std::vector<size_t>> members_;  // ZeRO 3: of each param_group
  std::unordered_map<std::string_view, size_t> names_;
  Target target_;
  uint32_t ties_ = 0;
};

}  // namespace ckpt::deepspeed
