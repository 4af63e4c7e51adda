// SPDX-License-Identifier: Apache-2.0
// Reads one step's folder, part by part:
//
//   step.cc             models, files beside them, what is said at the end
//   step_optimizers.cc  optimizers, and whose parameters they count
//
// Private to this room.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/runs/find/found.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/find/trainer.h"
#include "formats/runs/objects.h"
#include "formats/runs/optimizer/optimizer.h"
#include "formats/runs/optimizer/order.h"
#include "formats/runs/ranks/ranks.h"
#include "formats/runs/read/container.h"

namespace ckpt::runs {

class StepReading {
 public:
  StepReading(const Found& found, const formats::ReadOptions& options,
              std::vector<Container>* containers)
      : found_(found),
        trainer_(*found.trainer),
        options_(options),
        containers_(containers) {}

  Catalog read();

 private:
  // A model of the folder.
  struct Model {
    std::string prefix;        // prefix of its names: "", "actor.", "model_1."
    Range range;               // of catalog_.tensors
    bool pickled = false;      // its names are in module order
    bool arranged = false;     // Source::arranged
    bool partitioned = false;  // DeepSpeed's, with its optimizer
    Shards shards;             // of rank files
    bool open_ended = false;   // only its parts tell where a tensor ends
  };
  struct Optimizer {
    const Source* source = nullptr;
    uint64_t number = 0;
  };
  // The prefix of the names of an optimizer's values, and of states without a
  // parameter: "optimizer.", "optimizer_1.".
  using Word = std::string;

  // step.cc
  bool has_components() const { return !trainer_.components.file.empty(); }
  std::string name_of(std::string_view role) const;
  void read_folder(const std::string& sub, const std::string& role);
  std::vector<std::string> homes() const;
  std::string beside_of(const std::string& folder) const;
  bool has_lost(const Source& source) const;
  const Source* first_of(const std::vector<Source>& sources) const;
  const Source& find_model() const;
  void read_models(const std::string& role);
  void read_named_models(const Source& source, const std::string& role);
  std::vector<Numbers> numbers_of(const Source& source) const;
  Catalog read_container(const Source& source, const Numbers& numbers);
  void keep(const Source& source, const std::string& at, const Catalog& one,
            const std::string& read = {});
  void keep_ranks(const Source& source, const RankCatalog& ranks,
                  const std::string& read);
  void take_topology(const Topology& other);
  void read_model(const Source& source, const Numbers& numbers,
                  const std::string& prefix);
  void set_format(std::string_view format, const std::string& version);
  static void sort_unread(Catalog& one);
  void note_copies(const Source& taken);
  void read_part(const Part& part, const std::string& sub,
                 const std::string& role);
  uint64_t writers() const;
  void add_sidecars(const std::string& home, const std::string& sub);
  void finish();
  void check_unique() const;

  // step_optimizers.cc
  std::vector<Optimizer> find_optimizers();
  void read_optimizers();
  bool is_shared() const;
  void read_optimizer(const Optimizer& optimizer);
  void add_named(const Source& source, const std::string& prefix,
                 const Word& word, Catalog one);
  void put_in_place(size_t begin, const std::string& prefix);
  bool is_of_other_step(const Source& source, const Numbers& numbers);
  std::vector<const Tensor*> model_tensors(const Model& model,
                                           std::vector<Tensor>& copies) const;
  void name_optimizer(const Optimizer& optimizer, const Word& word,
                      const std::string& path, size_t begin, size_t objects,
                      const std::shared_ptr<const pickle::Document>& document);
  const Model* owner_of(const Optimizer& optimizer, const Range& range,
                        const Groups& groups, const std::string& path,
                        Names& names) const;
  void say_names(const Names& names, const Range& range,
                 const std::string& prefix, const Word& word,
                 const std::string& path);
  void read_rank_optimizer(const Optimizer& optimizer);

  const Found& found_;
  std::string beside_;  // another, complete step of the run
  const Trainer& trainer_;
  const formats::ReadOptions& options_;
  std::vector<Container>* const containers_;  // may be null
  Catalog catalog_;
  std::string folder_;
  ModelFacts facts_;
  std::vector<Model> models_;    // of folder_
  bool in_folders_ = false;      // models are in folders of their own …
  std::string model_home_;       // … and if it is one model, in this
  std::set<std::string> named_;  // parameters that have their states
  std::set<std::string> words_;  // of optimizers read so far
  bool lazy_ = false;
  std::set<std::string> read_;
  Values values_;
};

}  // namespace ckpt::runs
