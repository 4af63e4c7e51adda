// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <unordered_set>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "formats/dcp/objects.h"
#include "formats/runs/checks.h"
#include "formats/runs/components.h"
#include "formats/runs/merge.h"
#include "formats/runs/naming.h"
#include "formats/runs/nanotron.h"
#include "formats/runs/objects.h"
#include "formats/runs/optimizer.h"
#include "formats/runs/order.h"
#include "formats/runs/pattern.h"
#include "formats/runs/ranks.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/json.h"

namespace ckpt::runs {
namespace {

using formats::ReadOptions;
using text::printable;
using Severity = Problem::Severity;

// One step's folder.
class Reading {
 public:
  Reading(const Found& found, const ReadOptions& options,
          std::vector<Container>* containers)
      : found_(found),
        trainer_(*found.trainer),
        options_(options),
        containers_(containers) {}

  Catalog read() {
    catalog_.path = found_.step;
    if (found_.roles.empty()) read_folder("", "");
    for (const std::string& role : found_.roles)
      read_folder(role, name_of(role));
    check_components(trainer_, found_.step, catalog_);
    finish();
    return std::move(catalog_);
  }

 private:
  bool has_components() const { return !trainer_.components.file.empty(); }

  // What stands before a role's names: nothing, if there is one alone. A
  // folder "_actor" is that of the actor.
  std::string name_of(std::string_view role) const {
    const bool alone = found_.roles.size() == 1 && !has_components();
    if (alone || role.empty()) return {};
    if (role.starts_with('_')) role.remove_prefix(1);
    return std::string(role) + ".";
  }

  // A folder with one model, or several numbered ones.
  void read_folder(const std::string& sub, const std::string& role) {
    folder_ = sub.empty() ? found_.step : io::join(found_.step, sub);
    facts_ = {};
    for (const std::string& home : homes())
      if (facts_.type.empty()) facts_ = facts_of(io::join(folder_, home));
    const Source& first = find_model();
    check_mixed(folder_);
    std::vector<Numbers> numbers = numbers_of(first);
    for (const Numbers& number : numbers) {
      const uint64_t i = number.contains("i") ? number.at("i") : 0;
      std::string prefix = role;
      if (numbers.size() > 1)
        prefix += i == 0 ? "model." : fmt::format("model_{}.", i);
      read_model(first, number, prefix);
      read_optimizer(number, prefix);
    }
    for (const Part& part : trainer_.parts) read_part(part, sub, role);
    for (const std::string& home : homes()) add_sidecars(home, sub);
  }

  std::vector<std::string> homes() const {
    std::vector<std::string> homes = trainer_.homes;
    homes.insert(homes.begin(), "");
    return homes;
  }

  const Source* first_of(const std::vector<Source>& sources) const {
    for (const Source& source : sources) {
      check_finished(source, folder_);
      if (!names_like(folder_, source.file).empty()) return &source;
    }
    return nullptr;
  }

  const Source& find_model() const {
    const Source* source = first_of(trainer_.models);
    if (source != nullptr) return *source;
    std::string wanted;
    for (const Source& one : trainer_.models)
      wanted += (wanted.empty() ? "" : ", ") + one.file;
    throw input_error({folder_, {}}, "is a step of {} ({}) without a model",
                      trainer_.what, found_.why)
        .with_hint("one of these is missing: " + wanted);
  }

  // The numbers {i} of the models.
  std::vector<Numbers> numbers_of(const Source& source) const {
    if (!has(source.file, "i")) return {Numbers()};
    std::vector<Numbers> numbers;
    for (const Name& name : names_like(folder_, source.file))
      numbers.push_back(name.numbers);
    for (uint64_t i = 0; i < numbers.size(); ++i)
      if (numbers[i].at("i") != i)
        throw input_error(
            {io::join(folder_, fill(source.file, {{"i", i}})), {}},
            "is missing, models of higher numbers are there");
    return numbers;
  }

  Catalog read_container(const Source& source, const Numbers& numbers) {
    if (source.read == "nanotron") return read_nanotron(folder_, options_);
    const std::string at = fill(source.at, numbers);
    const std::string path = at.empty() ? folder_ : io::join(folder_, at);
    return formats::find_format(source.read)
        .reader->read_catalog(path, options_);
  }

  // Keeps what the reader made, before names and files are the run's.
  void keep(const Source& source, const std::string& at, const Catalog& one,
            const std::string& read = {}) {
    if (containers_ == nullptr) return;
    std::string folder =
        folder_ == found_.step ? "" : folder_.substr(found_.step.size() + 1);
    if (!at.empty()) folder = folder.empty() ? at : io::join(folder, at);
    containers_->push_back({.at = std::move(folder),
                            .read = read.empty() ? source.read : read,
                            .file = source.file,
                            .first = catalog_.tensors.size(),
                            .base = catalog_.files.size(),
                            .catalog = one});
  }

  void take_topology(const Topology& other) {
    Topology& mine = catalog_.topology;
    mine.tp = std::max(mine.tp, other.tp);
    mine.pp = std::max(mine.pp, other.pp);
    mine.dp = std::max(mine.dp, other.dp);
    mine.ep = std::max(mine.ep, other.ep);
  }

  void read_model(const Source& source, const Numbers& numbers,
                  const std::string& prefix) {
    size_t begin = 0;
    if (source.read == "ranks") {
      const auto files = rank_files(folder_, source.file);
      RankCatalog ranks = read_ranks(folder_, *files, false, options_);
      take_topology(ranks.catalog.topology);
      set_format("torch", ranks.catalog.version);
      keep(source, "", ranks.catalog);
      begin = Merger(catalog_).add(std::move(ranks.catalog));
      pickled_ = true;
    } else {
      Catalog one = read_container(source, numbers);
      keep(source, fill(source.at, numbers), one);
      take_topology(one.topology);
      set_format(source.read == "nanotron" ? "safetensors" : one.format,
                 one.version);
      if (source.read == "nanotron") set_dialect("nanotron");
      pickled_ = one.format == "torch";
      const bool kept = one.format == "dcp" || one.format == "deepspeed" ||
                        source.read == "nanotron";
      std::erase_if(one.problems, [&](const Problem& problem) {
        return problem.kind == "unread_file";
      });
      if (!kept) one.objects.clear();
      if (one.load_objects) lazy_ = true;
      // DeepSpeed's engine has a word for all: "optimizer", "module".
      const std::string word = source.read == "deepspeed" ? "engine." : "";
      for (Object& object : one.objects)
        object.name = prefix + word + object.name;
      begin = Merger(catalog_).add(std::move(one));
    }
    const std::span<Tensor> added = std::span(catalog_.tensors).subspan(begin);
    Namer(source, prefix).name(added);
    model_begin_ = begin;
    model_end_ = catalog_.tensors.size();
    note_copies(source);
  }

  void set_format(std::string_view format, const std::string& version) {
    if (!catalog_.format.empty()) return;
    catalog_.format = format;
    catalog_.version = version;
  }
  void set_dialect(const std::string& dialect) { catalog_.dialect = dialect; }

  // Other files that hold the same model: 16-bit copies beside masters.
  void note_copies(const Source& taken) {
    for (const Source& other : trainer_.models) {
      if (&other == &taken || other.at == taken.at) continue;
      const auto names = names_like(folder_, other.file);
      if (names.empty()) continue;
      catalog_.problems.push_back(
          remark("second_copy", {io::join(folder_, names[0].path), {}},
                 "holds the same model again; that of {} is read",
                 printable(fill(taken.file, {{"i", 0}}))));
    }
  }

  std::vector<const Tensor*> model_tensors(const std::string& prefix,
                                           std::vector<Tensor>& copies) const {
    for (size_t t = model_begin_; t < model_end_; ++t) {
      const Tensor& tensor = catalog_.tensors[t];
      if (tensor.kind != Kind::model) continue;
      Tensor& copy = copies.emplace_back(tensor);
      copy.name.erase(0, prefix.size());
    }
    std::vector<const Tensor*> pointers;
    for (const Tensor& copy : copies) pointers.push_back(&copy);
    return pointers;
  }

  void read_optimizer(const Numbers& numbers, const std::string& prefix) {
    const Source* source = nullptr;
    for (const Source& one : trainer_.optimizers) {
      check_finished(one, folder_);
      const auto names = names_like(folder_, fill(one.file, numbers));
      if (!names.empty()) {
        source = &one;
        break;
      }
    }
    if (prefix.empty()) check_together(trainer_, folder_, source, catalog_);
    if (source == nullptr) return;
    if (source->read == "ranks") return read_rank_optimizer(*source, prefix);
    if (is_of_other_step(*source, numbers)) return;
    Catalog one = read_container(*source, numbers);
    keep(*source, fill(source->at, numbers), one);
    if (one.load_objects) lazy_ = true;
    take_topology(one.topology);
    if (one.format == "dcp") {
      std::string word = "optimizer.";
      for (Object& object : one.objects)
        object.name = prefix + (object.name.starts_with(word) ||
                                        object.name.starts_with("state.")
                                    ? object.name
                                    : word + object.name);
      const size_t begin = Merger(catalog_).add(std::move(one));
      Namer(*source, prefix).name(std::span(catalog_.tensors).subspan(begin));
      for (size_t t = begin; t < catalog_.tensors.size(); ++t)
        catalog_.tensors[t].kind = Kind::optim;
      return;
    }
    const std::string path = io::join(folder_, fill(source->at, numbers));
    const auto skeleton = std::exchange(one.skeleton, std::nullopt);
    const std::string inside = source->key.empty() ? "" : source->key + ".";
    for (Tensor& tensor : one.tensors)
      if (tensor.name.starts_with(inside)) tensor.name.erase(0, inside.size());
    for (Object& object : one.objects)
      object.name = prefix + (inside.empty() ? "optimizer." : "") + object.name;
    const size_t begin = Merger(catalog_).add(std::move(one));
    name_optimizer(*source, prefix, path, begin,
                   skeleton ? skeleton->document : nullptr);
  }

  // torchtune keeps the state of its newest unfinished epoch alone, beside the
  // folders of all.
  bool is_of_other_step(const Source& source, const Numbers& numbers) {
    if (source.next_step.empty()) return false;
    const std::string path = io::join(folder_, fill(source.at, numbers));
    const auto next = number_in(path, source.next_step);
    const auto step = number_in_name(trainer_, found_);
    if (!next || !step || *next == *step + 1) return false;
    catalog_.problems.push_back(
        warning("stale_part", {path, {}},
                "is of another step ({} is {}, {} would be of this one): "
                "the optimizer is left out",
                printable(source.next_step), *next, *step + 1));
    return true;
  }

  void name_optimizer(const Source& source, const std::string& prefix,
                      const std::string& path, size_t begin,
                      const std::shared_ptr<const pickle::Document>& document) {
    const Range range{begin, catalog_.tensors.size()};
    std::optional<Groups> groups;
    if (document)
      groups = read_groups(*document,
                           source.key.empty()
                               ? document->root()
                               : document->find(document->root(), source.key),
                           path);
    if (!groups) {
      // By name already: {"state": {"model.w": …}}.
      Namer(source, prefix).name(std::span(catalog_.tensors).subspan(begin));
      for (size_t t = begin; t < catalog_.tensors.size(); ++t) {
        Tensor& tensor = catalog_.tensors[t];
        if (tensor.kind != Kind::optim)
          tensor.name = prefix + "optimizer." + tensor.name;
        tensor.kind = Kind::optim;
      }
      return;
    }
    std::vector<Tensor> copies;
    const auto model = model_tensors(prefix, copies);
    say_names(named(catalog_, range, *groups, source.order, model, pickled_,
                    facts_, options_, path),
              range, prefix, path);
  }

  void say_names(const Names& names, const Range& range,
                 const std::string& prefix, const std::string& path) {
    if (!names.why_not.empty())
      return leave_numbered(catalog_, range, prefix, path, names.why_not);
    apply(catalog_, range, names, prefix);
    catalog_.assumptions.push_back(fmt::format(
        "{}optimizer: numbers are parameters by {}", prefix, names.why));
  }

  void read_rank_optimizer(const Source& source, const std::string& prefix) {
    const auto files = rank_files(folder_, source.file);
    if (files->world != catalog_.topology.dp && catalog_.topology.dp > 1)
      throw input_error({folder_, {}},
                        "the model is of {} ranks, the optimizer of {}",
                        catalog_.topology.dp, files->world)
          .with_hint("the files are of different saves; fetch them again");
    RankCatalog ranks = read_ranks(folder_, *files, true, options_);
    if (ranks.runs.empty()) keep(source, "", ranks.catalog);
    for (Object& object : ranks.catalog.objects)
      object.name = prefix + "optimizer." + object.name;
    const std::string path = io::join(folder_, files->names[0]);
    std::vector<Tensor> copies;
    const auto model = model_tensors(prefix, copies);
    const auto document = ranks.document;
    if (ranks.runs.empty()) {
      const size_t begin = Merger(catalog_).add(std::move(ranks.catalog));
      return name_optimizer(source, prefix, path, begin, document);
    }
    const std::string why_not = name_runs(ranks, model);
    keep(source, "", ranks.catalog, "flat");
    if (containers_) containers_->back().units = ranks.units;
    const size_t begin = Merger(catalog_).add(std::move(ranks.catalog));
    const Range range{begin, catalog_.tensors.size()};
    if (!why_not.empty())
      return leave_numbered(catalog_, range, prefix, path, why_not);
    for (size_t t = begin; t < range.end; ++t) {
      Tensor& tensor = catalog_.tensors[t];
      tensor.kind = Kind::optim;
      tensor.param = prefix + tensor.param;
      tensor.name = prefix + tensor.name;
    }
    catalog_.assumptions.push_back(fmt::format(
        "{}optimizer: flat parameters are cut by the sizes of the model's "
        "units, in the order of the pickle",
        prefix));
  }

  // "rng_state_0" of "rng_state_0.pth".
  static std::string stem(const std::string& path) {
    std::string name = io::base_name(path);
    return name.substr(0, name.rfind('.'));
  }

  void read_part(const Part& part, const std::string& sub,
                 const std::string& role) {
    if (part.above && sub.empty() && !found_.roles.empty()) return;
    const std::string folder =
        part.above && !sub.empty() ? found_.step : folder_;
    const std::string before = part.above ? "" : role;
    const std::vector<Name> names = names_like(folder, part.file);
    if (part.carried) return note_absent(part, folder, names, catalog_);
    for (const Name& name : names) {
      const std::string path = io::join(folder, name.path);
      if (!read_.insert(path).second) continue;
      try {
        add_object(path, before + stem(name.path), options_, values_, catalog_);
      } catch (const Error& error) {
        if (error.code() != ExitCode::kDamaged) throw;
        catalog_.problems.push_back(
            damage("part", {path, {}}, "{}", error.problem()));
      }
    }
    check_ranks(part, folder, names, catalog_);
    check_numbers(part, folder, names, catalog_);
    note_absent(part, folder, names, catalog_);
    // Containers of no ranks: of those who kept their random numbers.
    if (part.part == "rng" && has(part.file, "r") && names.size() > 1)
      catalog_.topology.dp =
          std::max(catalog_.topology.dp, static_cast<uint32_t>(names.size()));
    check_grid(part, folder, names, catalog_);
  }

  void add_sidecars(const std::string& home, const std::string& sub) {
    const std::string folder = io::join(folder_, home);
    if (!io::is_directory(folder)) return;
    // Several models share no configuration.
    if (found_.roles.size() > 1 && sub != found_.roles[0]) return;
    if (has_components() && !sub.empty()) return;
    formats::add_sidecars(home.empty() ? folder_ : folder, catalog_);
  }

  void finish() {
    std::erase_if(catalog_.sidecars, [&](const Sidecar& sidecar) {
      return read_.contains(sidecar.path);
    });
    if (catalog_.family.empty()) catalog_.family = options_.family;
    const std::string first = found_.roles.empty() || has_components()
                                  ? found_.step
                                  : io::join(found_.step, found_.roles[0]);
    if (catalog_.dialect != "nanotron")
      for (const std::string& home : homes())
        if (catalog_.family.empty() || catalog_.dialect.empty())
          formats::detect_dialect(home.empty() ? first : io::join(first, home),
                                  catalog_);
    catalog_.skeleton = Skeleton{.document = values_.document,
                                 .root = values_.document->add_none(),
                                 .tensors = {},
                                 .storages = std::move(values_.storages)};
    if (lazy_)
      catalog_.load_objects =
          [restricted = options_.restrict_globals](Catalog& catalog) {
            dcp::open_objects(catalog, restricted);
          };
    check_unique();
  }

  void check_unique() const {
    std::unordered_set<std::string_view> names;
    for (const Tensor& tensor : catalog_.tensors)
      if (!names.insert(tensor.name).second)
        throw input_error({catalog_.path, printable(tensor.name)},
                          "is in two parts of the step");
  }

  const Found& found_;
  const Trainer& trainer_;
  const ReadOptions& options_;
  std::vector<Container>* const containers_;  // may be null
  Catalog catalog_;
  std::string folder_;
  ModelFacts facts_;
  size_t model_begin_ = 0, model_end_ = 0;
  bool pickled_ = false;  // the model's names stand in module order
  bool lazy_ = false;
  std::set<std::string> read_;
  Values values_;
};

}  // namespace

ModelFacts facts_of(const std::string& folder) {
  ModelFacts facts;
  const std::string path = io::join(folder, "config.json");
  constexpr uint64_t kMaxConfig = 64 << 20;
  if (!io::is_file(path)) return facts;
  try {
    const auto config =
        text::parse_python_json(io::read_file(path, kMaxConfig), path);
    if (const auto type = config.find("model_type");
        type != config.end() && type->is_string())
      facts.type = type->get<std::string>();
    if (const auto version = config.find("transformers_version");
        version != config.end() && version->is_string()) {
      const auto text = version->get<std::string>();
      std::from_chars(text.data(), text.data() + text.size(), facts.version);
    }
  } catch (const Error&) {
    // detect_dialect says what is wrong with it.
  }
  return facts;
}

Catalog read_step(const Found& found, const ReadOptions& options,
                  std::vector<Container>* containers) {
  return Reading(found, options, containers).read();
}

}  // namespace ckpt::runs
