// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/many.h"
#include "containers/torch/tree.h"
#include "formats/deepspeed/apart.h"
#include "formats/deepspeed/assemble.h"
#include "formats/deepspeed/deepspeed.h"
#include "formats/deepspeed/layer_names.h"
#include "formats/deepspeed/locate.h"
#include "formats/deepspeed/neox.h"
#include "formats/deepspeed/universal.h"
#include "formats/megatron/model/old_names.h"
#include "formats/megatron/model/rules.h"
#include "formats/megatron/model/sizes.h"
#include "lib/io/file.h"
#include "lib/lost_file.h"
#include "lib/pickle/json.h"
#include "lib/text/format.h"

namespace ckpt::deepspeed {
namespace {

using formats::ReadOptions;
using formats::Support;
using text::printable;
using Severity = Problem::Severity;

// Reads the files of one tag.
class Reading {
 public:
  Reading(const std::string& directory, const ReadOptions& options,
          bool universal, Catalog& catalog)
      : directory_(directory),
        options_(options),
        universal_(universal),
        catalog_(catalog) {}

  void read() {
    const std::vector<FileName> files = list_files(directory_);
    open_models(files);
    open_apart(files);
    open_optims(files);
    find_sizes();
    rules_ =
        Rules::read(*first().container.document,
                    first().find("universal_checkpoint_info"), first().path);
    ask_modules();
    if (!options_.shard_dims_file.empty())
      rules_.set_user(families::Rules::from_file(options_.shard_dims_file));
    Assembler assembler(catalog_, rules_);
    if (universal_)
      add_universal(directory_, whole_shapes(), options_, assembler, catalog_);
    for (size_t pp = 0; pp < pp_; ++pp) {
      const auto stage = std::span(columns_).subspan(pp * tp_, tp_);
      if (!stage[0].optims.empty()) add_masters(stage, assembler);
      assembler.add_module(stage);
    }
    add_apart(assembler);
    for (const Column& column : columns_) assembler.add_shared(column.model());
    check_trainable(assembler);
    add_rest(assembler);
    assembler.finish();
    add_objects();
    say();
  }

 private:
  const ModelRank& first() const { return columns_.front().model(); }

  // Megatron's modules, as they were before DeepSpeed's clients described their
  // slices. Their names alone don't say it: numbers of the args have to agree.
  void ask_modules() {
    if (Neox::is_one(layers_, first())) return ask_neox();
    name_as_megatron(layers_, columns_);
    if (tp_ < 2 || rules_.any()) return;
    const pickle::Document& document = *first().container.document;
    megatron::Facts facts =
        megatron::read_facts(document, first().find("args"), first().path);
    if (!facts.any) return;
    find_gated(facts);
    rules_.set_modules([=, this](const std::string& name, const Shape& local) {
      const TpRule rule =
          megatron::rule_by_sizes(name, local, this->tp_, facts);
      if (rule.state != TpRule::State::kUnknown && !asked_modules_) {
        asked_modules_ = true;
        catalog_.problems.push_back(
            remark("cut_by_sizes", {directory_, {}},
                   "no universal_checkpoint_info: slices are joined as "
                   "Megatron's modules cut them, with which the sizes in args "
                   "agree"));
      }
      return Said{.rule = rule};
    });
  }

  void ask_neox() {
    const auto neox = std::make_shared<Neox>(directory_, first(), options_.set);
    Neox::name_tied(columns_);
    neox->check_layers(layers_, columns_);
    if (tp_ < 2 || rules_.any()) return;
    rules_.set_modules([=, this](const std::string& name, const Shape& local) {
      return neox->rule(name, local, this->tp_);
    });
    catalog_.assumptions.push_back(
        "slices are joined as GPT-NeoX's modules cut them");
  }

  void find_gated(megatron::Facts& facts) const {
    std::vector<Tensor> tensors;
    const auto add = [&](const Assembler::Named& named) {
      for (const auto& [name, ref] : named) {
        Tensor& tensor = tensors.emplace_back();
        tensor.name = megatron::core_name(name);
        tensor.shape = ref.shape;
      }
    };
    add(first().module);
    for (const auto& layer : layers_) add(layer.second.ranks.front());
    megatron::Facts shapes;
    megatron::infer_facts(tensors, shapes);
    if (shapes.gated) facts.gated = shapes.gated;
  }

  // Parts of two ranks are alike in all but their values.
  static void check_rank(const torch::Container& container) {
    torch::check_limits(container, {.rank_files = true});
  }

  torch::Container open(const FileName& file) {
    return torch::open_container(io::join(directory_, file.name), catalog_,
                                 options_);
  }

  template <class Take>  // Take(FileName, torch::Container)
  void open_all(const std::vector<FileName>& files, FileKind kind, Take take) {
    std::vector<const FileName*> those;
    std::vector<std::string> paths;
    for (const FileName& file : files) {
      if (file.kind != kind) continue;
      those.push_back(&file);
      paths.push_back(io::join(directory_, file.name));
    }
    torch::open_each(paths, catalog_, options_, [&](size_t i, auto container) {
      take(*those[i], std::move(container));
    });
  }

  void open_models(const std::vector<FileName>& files) {
    open_all(files, FileKind::kModel, [&](const FileName& file, auto model) {
      if (file.mp > columns_.size() ||
          (file.mp == columns_.size() && file.dp.value_or(0) != 0))
        missing_rank("mp_rank", columns_.size());
      if (file.mp == columns_.size()) columns_.emplace_back();
      check_rank(model);
      Column& column = columns_[file.mp];
      if (file.dp.value_or(0) != column.models.size())
        missing_rank("data-parallel rank", column.models.size());
      column.models.push_back(read_model_rank(std::move(model)));
      column.models.back().mp = file.mp;
      column.models.back().dp = file.dp;
    });
    if (columns_.empty())
      throw LostFile(
          input_error({directory_, {}},
                      "has no *_model_states.pt, which say the names and "
                      "shapes of parameters")
              .with_hint("copy them from where the checkpoint was written"));
  }

  void open_apart(const std::vector<FileName>& files) {
    open_all(files, FileKind::kLayer, [&](const FileName& file, auto one) {
      layers_[file.layer].take(file, one, fmt::format("{}.", file.layer));
    });
    open_all(files, FileKind::kExpert, [&](const FileName& file, auto one) {
      experts_[{file.layer, file.expert}].take(file, one, {});
    });
    open_all(files, FileKind::kExpertOptim, [&](const FileName&, auto one) {
      torch::Tree tree = torch::walk(one, one.document->root());
      apart_.emplace_back(std::move(one), std::move(tree));
    });
  }

  [[noreturn]] void missing_rank(const char* what, size_t rank) const {
    throw LostFile(input_error({directory_, {}},
                               "the model states of {} {} are missing, higher "
                               "ranks are there",
                               what, rank)
                       .with_hint("fetch all files of the checkpoint"));
  }

  void open_optims(const std::vector<FileName>& files) {
    const auto take = [&](const FileName& file, torch::Container container) {
      if (file.mp >= columns_.size())
        throw input_error({io::join(directory_, file.name), {}},
                          "belongs to mp_rank {}, whose model states are "
                          "missing",
                          file.mp);
      std::vector<OptimRank>& optims = columns_[file.mp].optims;
      OptimRank rank = read_optim_rank(container);
      // Mappings prove it by the contents.
      if (rank.mappings.empty()) check_rank(container);
      if (*file.dp != optims.size()) missing_partition(rank, optims.size());
      if (!optim_first_) {
        optim_first_ = std::move(container);
        optim_tree_ =
            torch::walk(*optim_first_, optim_first_->document->root());
      }
      optims.push_back(std::move(rank));
    };
    if (!universal_) open_all(files, FileKind::kOptim, take);
    for (const Column& column : columns_) {
      const uint64_t have = column.optims.size();
      if (have != columns_[0].optims.size())
        throw input_error({column.model().path, {}},
                          "mp_rank {} has {} partitions, mp_rank 0 has {}",
                          column.model().mp, have, columns_[0].optims.size())
            .with_hint("fetch all *_optim_states.pt files");
      for (const OptimRank& rank : column.optims)
        for (const uint64_t count : rank.partition_counts)
          if (count > have) missing_partition(rank, have);
      // ZeRO 3 has model states for each data-parallel rank.
      const bool each = column.models.size() > 1 || column.models[0].dp;
      if (have > 0 && each && column.models.size() != have)
        throw input_error({column.model().path, {}},
                          "model states of {} data-parallel ranks, optimizer "
                          "states of {}",
                          column.models.size(), have);
    }
  }

  [[noreturn]] void missing_partition(const OptimRank& rank,
                                      uint64_t missing) const {
    uint64_t count = 0;
    for (const uint64_t n : rank.partition_counts) count = std::max(count, n);
    throw input_error({directory_, {}},
                      "partition {} of {} (partition_count) is missing: no "
                      "*zero_pp_rank_{}_*optim_states.pt beside {}",
                      missing, count, missing,
                      printable(io::base_name(rank.path)))
        .with_hint("fetch all *_optim_states.pt files");
  }

  void find_sizes() {
    const uint64_t all = columns_.size();
    tp_ = first().tp.value_or(all);
    pp_ = all / std::max<uint64_t>(1, tp_);
    if (tp_ * pp_ != all || (first().pp && *first().pp != pp_))
      throw LostFile(
          input_error({first().path, {}},
                      "says tp_degree {} and pp_degree {}, there are model "
                      "states of {} ranks",
                      tp_, first().pp.value_or(1), all)
              .with_hint("fetch all *_model_states.pt files"));
    catalog_.topology.tp = static_cast<uint32_t>(tp_);
    catalog_.topology.pp = static_cast<uint32_t>(pp_);
    const size_t dp =
        std::max(columns_[0].optims.size(), columns_[0].models.size());
    catalog_.topology.dp = static_cast<uint32_t>(std::max<size_t>(1, dp));
    if (universal_) catalog_.topology = {};
  }

  // The parameters' shapes, joined over tensor-parallel ranks.
  std::map<std::string, Shape> whole_shapes() const {
    std::map<std::string, Shape> out;
    for (size_t pp = 0; pp < pp_; ++pp) {
      const auto stage = std::span(columns_).subspan(pp * tp_, tp_);
      std::map<std::string, std::vector<Shape>> slices;
      for (const Column& column : stage)
        for (const auto& group : column.model().groups)
          for (const NamedShape& entry : group)
            slices[entry.name].push_back(entry.shape);
      for (const auto& [name, shapes] : slices)
        if (shapes.size() == stage.size())
          out.emplace(name, rules_.join(name, shapes).shape);
    }
    return out;
  }

  void add_masters(std::span<const Column> stage, Assembler& assembler) const {
    const auto add = [&](std::span<const Column> part) {
      for (const Column& column : part) check_column(column);
      assembler.add_masters(part);
    };
    if (experts_.empty()) return add(stage);
    for (const auto& part : expert_parts(stage)) add(part);
  }

  void add_apart(Assembler& assembler) {
    std::set<std::string> buffers;
    for (const Column& column : columns_)
      buffers.insert(column.model().buffers.begin(),
                     column.model().buffers.end());
    const auto add = [&](const Slices& slices, const std::string& what) {
      slices.check(tp_, what);
      std::vector<const Assembler::Named*> ranks;
      for (const auto& named : slices.ranks) ranks.push_back(&named);
      assembler.add_slices(ranks, buffers, slices.paths);
    };
    for (const auto& [layer, slices] : layers_)
      add(slices, fmt::format("layer {}", layer));
    for (const auto& [place, slices] : experts_)
      add(slices, fmt::format("expert {}", place.second));
    if (!universal_) check_experts(experts_, catalog_);
  }

  // Checks that every trainable parameter came from somewhere.
  void check_trainable(const Assembler& assembler) {
    for (const Column& column : columns_)
      for (const auto& group : column.model().groups)
        for (const NamedShape& entry : group)
          if (!assembler.has(entry.name))
            throw input_error({column.model().path, printable(entry.name)},
                              "is in param_shapes, its elements are in no "
                              "file")
                .with_hint(
                    "ZeRO 3 keeps them in *_optim_states.pt: fetch these");
    if (universal_ || !columns_[0].optims.empty() || first().stage == 0) return;
    catalog_.problems.push_back(warning(
        "no_optimizer", {directory_, {}},
        "has no *_optim_states.pt: the weights are those of the module, "
        "rounded; their fp32 masters are not here"));
  }

  // Adds tensors that the trainer stored beside module and optimizer.
  void add_rest(Assembler& assembler) {
    bool numbered = false;
    const auto add = [&](const torch::Tree& tree, const std::string& prefix) {
      for (const torch::NamedTensor& found : tree.tensors) {
        if (found.path.empty() || found.path[0] == "module" ||
            found.path[0] == "frozen_param_fragments")
          continue;
        Tensor tensor = torch::make_tensor(prefix + found.name, found.ref);
        tensor.kind = found.path[0].starts_with("optimizer") ? Kind::optim
                      : found.kind == Kind::model            ? Kind::other
                                                             : found.kind;
        tensor.param = found.param;
        tensor.state = found.state;
        numbered = numbered || found.path[0] == "optimizer";
        assembler.add_optim(std::move(tensor));
      }
      catalog_.problems.insert(catalog_.problems.end(), tree.problems.begin(),
                               tree.problems.end());
    };
    for (const Column& column : columns_)
      for (const ModelRank& rank : column.models)
        add(rank.tree, prefix_of(rank));
    for (const auto& [container, tree] : apart_)
      add(tree, stem_of(container.path, "_states.pt"));
    if (numbered)
      catalog_.problems.push_back(remark(
          "numbered_state", {first().path, {}},
          "the optimizer's state is by the numbers of parameters; no file "
          "says their names"));
  }

  // Anything not rank 0's gets its file's name as a prefix.
  std::string prefix_of(const ModelRank& rank) const {
    return &rank == &first() ? "" : stem_of(rank.path, "_model_states.pt");
  }

  static std::string stem_of(const std::string& path, const char* ending) {
    std::string stem = io::base_name(path);
    stem.resize(stem.rfind(ending));
    return stem + ".";
  }

  void add_objects() {
    std::map<std::string, std::string> seen;
    for (const Column& column : columns_)
      for (const ModelRank& rank : column.models)
        for (const torch::NamedObject& object : rank.tree.objects) {
          const pickle::Document& document = *rank.container.document;
          const std::string json =
              pickle::to_json(document, object.node)
                  .dump(-1, ' ', false,
                        nlohmann::ordered_json::error_handler_t::replace);
          const auto [it, added] = seen.emplace(object.name, json);
          if (!added && it->second == json) continue;
          catalog_.objects.push_back({prefix_of(rank) + object.name,
                                      rank.container.document, object.node});
        }
    for (const auto& [container, tree] : apart_)
      for (const torch::NamedObject& object : tree.objects)
        catalog_.objects.push_back(
            {stem_of(container.path, "_states.pt") + object.name,
             container.document, object.node});
    if (!optim_first_) return;
    for (const torch::NamedObject& object : optim_tree_.objects) {
      // The pieces say where fragments are.
      if (object.name.starts_with("optimizer_state_dict.param_slice_mappings"))
        continue;
      if (seen.contains(object.name)) continue;  // ds_config, ds_version
      catalog_.objects.push_back(
          {object.name, optim_first_->document, object.node});
    }
    catalog_.assumptions.push_back(
        fmt::format("optimizer values that are not tensors: those of {}",
                    printable(io::base_name(optim_first_->path))));
  }

  void say() {
    const pickle::Document& document = *first().container.document;
    const pickle::Id version = first().find("ds_version");
    if (document.is(version, pickle::Type::kString))
      catalog_.version = document.text(version);
    if (universal_ || columns_[0].optims.empty()) return;
    catalog_.assumptions.push_back(
        "trainable parameters are the optimizer's fp32 masters; the module's "
        "own copies are these, rounded (--dtype)");
    const auto& optims = columns_[0].optims;
    if (optims[0].stage != 3 && optims[0].mappings.empty() && optims.size() > 1)
      catalog_.problems.push_back(remark(
          "no_mappings", {directory_, {}},
          "no param_slice_mappings: the order of partitions is that of the "
          "files' names"));
  }

  const std::string& directory_;
  const ReadOptions& options_;
  const bool universal_;
  Catalog& catalog_;
  std::vector<Column> columns_;  // by mp
  Layers layers_;
  Experts experts_;
  // Kept as they are, under their files' names.
  std::vector<std::pair<torch::Container, torch::Tree>> apart_;
  std::optional<torch::Container> optim_first_;
  torch::Tree optim_tree_;
  Rules rules_;
  bool asked_modules_ = false;  // and they said something
  uint64_t tp_ = 1, pp_ = 1;
};

class DeepSpeedReader final : public formats::Reader {
 public:
  std::string_view name() const override { return "deepspeed"; }

  Support supports(const std::string& path) const override {
    const Found found = locate(path);
    return {found.yes, found.why};
  }

  Catalog read_catalog(const std::string& path,
                       const ReadOptions& options) const override {
    const Found found = locate(path);
    check_pointer(found);
    if (!found.yes)
      throw missing_error({path, {}}, "is not a checkpoint of DeepSpeed: {}",
                          found.why);
    if (found.directory.empty())
      throw unsafe_error({found.pointer, {}},
                         "names {}, which is not a plain name of a directory",
                         printable(found.tag))
          .with_hint("open the directory itself, if you trust it");
    Catalog catalog;
    catalog.format = name();
    catalog.path = found.directory;
    catalog.family = options.family;
    if (found.directory != path) {
      catalog.root = path;
      catalog.assumptions.push_back(
          fmt::format("{}: named by {}", printable(found.tag),
                      printable(io::base_name(found.pointer))));
      say_newer(found, catalog);
    }
    Reading(found.directory, options, found.universal, catalog).read();
    return catalog;
  }

 private:
  // `latest` is what DeepSpeed writes last, in place: a save that broke off may
  // leave it empty, or without the folder that it names.
  static void check_pointer(const Found& found) {
    if (found.pointer.empty() || !found.directory.empty()) return;
    if (found.yes && !found.tag.empty()) return;  // no plain name
    if (found.tag.empty())
      throw input_error({found.pointer, {}},
                        "is empty: it has to name the directory of a save")
          .with_hint("name that directory itself");
    throw input_error({found.pointer, {}},
                      "names {}, which is missing or has no files of ranks",
                      printable(found.tag))
        .with_hint("fetch it, or name the directory of another save");
  }

  static void say_newer(const Found& found, Catalog& catalog) {
    for (const std::string& tag : newer_tags(found))
      catalog.problems.push_back(warning(
          "unfinished_save", {io::join(io::parent(found.pointer), tag), {}},
          "is newer than {}, which {} names and DeepSpeed writes last: an "
          "unfinished save, or {} is an old one; {} is read",
          printable(found.tag), printable(io::base_name(found.pointer)),
          printable(io::base_name(found.pointer)), printable(found.tag)));
  }
};

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return std::make_unique<DeepSpeedReader>();
}

}  // namespace ckpt::deepspeed
