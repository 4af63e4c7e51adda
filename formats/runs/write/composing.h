// SPDX-License-Identifier: Apache-2.0
// A step in the making, which compose() fills part by part. Its files:
//
//   compose.cc           places the parts of the target beside each other
//   compose_sharded.cc   DCP: by name, for any number of ranks
//   compose_numbered.cc  plain files and files of ranks: by number
//   compose_file.cc      Lightning's file: all of it in one pickle
//   compose_states.cc    scheduler, step, what else the trainer opens
//   compose_fates.cc     what becomes of the source's files, and what is said
//
// Private to this room.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "containers/torch/file_plan.h"
#include "formats/runs/find/trainer.h"
#include "formats/runs/optimizer/adam.h"
#include "formats/runs/write/forms.h"
#include "formats/runs/write/nest.h"
#include "formats/runs/write/states.h"
#include "lib/pickle/value.h"

namespace ckpt::runs {

class Composing {
 public:
  Composing(const Catalog& source, const Layout& layout);

  Target build();

 private:
  // Gives the node of a source tensor.
  using Slot = std::function<pickle::Id(size_t)>;

  // compose.cc
  void check_own() const;
  std::vector<size_t> model() const;
  void place(Target part, const std::vector<size_t>& of,
             const std::string& folder);
  void place_file(pickle::Document& document, pickle::Id root,
                  const std::vector<torch::TensorSlot>& slots,
                  const std::vector<size_t>& of, const std::string& path);

  // compose_sharded.cc
  void place_dcp(Nest& nest, const std::string& folder);
  void add_sharded();
  void add_optimizer(Nest& nest);
  std::vector<std::pair<std::string, pickle::Id>> options_of(
      pickle::Document& document, const AdamGroup& group) const;
  void add_values(Nest& nest);

  // compose_numbered.cc
  void add_plain();
  bool shows_numbers(const std::vector<std::string>& order) const;
  pickle::Id numbered(pickle::Document& document, const Slot& slot) const;
  void add_numbered();
  void add_rank_files();
  void add_rank_optimizer();

  // compose_file.cc
  void add_one_file();
  std::vector<size_t> in_module_order();
  pickle::Id own_value(pickle::Document& document);
  pickle::Id values_of_folder(pickle::Document& document);
  pickle::Id values_of_file(pickle::Document& document);

  // compose_states.cc
  std::optional<int64_t> position() const;
  pickle::Id scheduler(pickle::Document& document);
  std::optional<int64_t> number(std::string_view variable);
  pickle::Id made(pickle::Document& document, const nlohmann::json& value);
  nlohmann::json made_json(const nlohmann::json& value);
  pickle::Id value_of(pickle::Document& document, const WrittenValue& row);
  void add_states();

  // compose_fates.cc
  std::optional<std::string> at_home(const std::string& path) const;
  std::string_view part_of(const std::string& path, bool above) const;
  const Sidecar* given_config() const;
  void add_config();
  void settle(const SourceFile& file);
  void settle_state(const SourceFile& file, std::string_view part);
  void reset(const SourceFile& file, const std::string& what);
  void decide(const SourceFile& file, Fate fate, std::string why);
  void warn(std::string kind, std::string text);
  void say(const std::vector<Said>& all);
  void say();

  const Catalog& source_;
  const Form& form_;
  const Writes& writes_;
  const uint32_t ranks_;
  const Layout& layout_;
  const Adam adam_;
  const States states_;
  const std::vector<AdamGroup> groups_;
  Target target_;
  std::vector<TargetFile> payload_, rest_;
  std::set<std::string> reset_;
  bool named_groups_ = false;  // the order of the numbers is not to be seen
  bool scheduled_ = false;
  bool by_position_ = false;  // and its rule is the job's that goes on
};

}  // namespace ckpt::runs
