// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/find/find.h"
#include "formats/runs/merge.h"
#include "formats/runs/optimizer/naming.h"
#include "formats/runs/ranks/flat_names.h"
#include "formats/runs/ranks/ranks.h"
#include "formats/runs/read/checks.h"
#include "formats/runs/read/reading.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {

using text::printable;

// The file numbered i belongs to no certain model: a step may have one model
// and two optimizers, or an untrained model beside the trained one.
std::vector<StepReading::Optimizer> StepReading::find_optimizers() {
  std::map<uint64_t, Optimizer> found;
  for (const Source& source : trainer_.optimizers) {
    check_finished(source, folder_);
    for (const Name& name : names_like(folder_, source.file)) {
      const auto i = name.numbers.find("i");
      const uint64_t number = i == name.numbers.end() ? 0 : i->second;
      const auto [known, fresh] =
          found.try_emplace(number, Optimizer{&source, number});
      if (!fresh && known->second.source != &source &&
          !source.file.starts_with("../"))
        throw input_error(
            {folder_, {}}, "holds {} and {}: two optimizers in one step",
            printable(fill(known->second.source->at, name.numbers)),
            printable(fill(source.at, name.numbers)))
            .with_hint("one of them is of an earlier save: move it away");
    }
  }
  std::vector<Optimizer> all;
  all.reserve(found.size());
  for (const auto& [number, optimizer] : found) all.push_back(optimizer);
  uint64_t hole = 0;
  while (found.contains(hole)) ++hole;
  if (hole < all.size())
    catalog_.problems.push_back(damage(
        "missing_part",
        {io::join(folder_, fill(all.back().source->file, {{"i", hole}})), {}},
        "is missing, files of higher numbers are there"));
  return all;
}

void StepReading::read_optimizers() {
  const std::vector<Optimizer> all = find_optimizers();
  const bool inside = std::ranges::any_of(models_, &Model::partitioned);
  if (inside && !all.empty())
    throw input_error(
        {folder_, {}},
        "holds DeepSpeed's optimizer and {}: two optimizers in "
        "one step",
        printable(fill(all[0].source->at, {{"i", all[0].number}})))
        .with_hint("one of them is of an earlier save: move it away");
  if (models_.size() == 1 && models_[0].prefix.empty())
    check_together(trainer_, folder_,
                   all.empty() ? nullptr : all.front().source, catalog_);
  if (!inside)
    note_lost_optimizer(trainer_, folder_, beside_of(folder_), catalog_);
  for (const Optimizer& optimizer : all) read_optimizer(optimizer);
  if (!inside && !all.empty() && all.size() < models_.size() && !is_shared())
    note_few_optimizers(*all.back().source, folder_, all.size(), models_.size(),
                        catalog_);
}

// True if an optimizer has more parameters than any of the models: it is of
// several.
bool StepReading::is_shared() const {
  std::set<std::string_view> stepped;
  for (const Tensor& tensor : catalog_.tensors) {
    const std::string_view name = tensor.name;
    if (tensor.kind == Kind::optim)
      stepped.insert(tensor.param.empty() ? name.substr(0, name.rfind('.'))
                                          : tensor.param);
  }
  return std::ranges::all_of(models_, [&](const Model& model) {
    return model.range.end - model.range.begin < stepped.size();
  });
}

void StepReading::read_optimizer(const Optimizer& optimizer) {
  const Source& source = *optimizer.source;
  const Numbers numbers = {{"i", optimizer.number}};
  if (source.read == "ranks") return read_rank_optimizer(optimizer);
  if (is_of_other_step(source, numbers)) return;
  Catalog one = read_container(source, numbers);
  keep(source, fill(source.at, numbers), one);
  if (one.object_opener) lazy_ = true;
  take_topology(one.topology);
  // Several models have one optimizer each; any left over are the first
  // model's.
  const bool paired = optimizer.number < models_.size();
  const std::string& prefix = models_[paired ? optimizer.number : 0].prefix;
  const Word word =
      paired ? "optimizer." : fmt::format("optimizer_{}.", optimizer.number);
  if (one.format == "dcp")
    return add_named(source, prefix, word, std::move(one));
  const std::string path = io::join(folder_, fill(source.at, numbers));
  const auto skeleton = std::exchange(one.skeleton, std::nullopt);
  const std::string inside = source.key.empty() ? "" : source.key + ".";
  for (Tensor& tensor : one.tensors)
    if (tensor.name.starts_with(inside)) tensor.name.erase(0, inside.size());
  for (Object& object : one.objects)
    object.name = (inside.empty() ? word : "") + object.name;
  const size_t objects = catalog_.objects.size();
  const size_t begin = Merger(catalog_).add(std::move(one));
  name_optimizer(optimizer, word, path, begin, objects,
                 skeleton ? skeleton->document : nullptr);
}

// DCP: by name. Its keys begin with "optimizer." as those of a model do.
void StepReading::add_named(const Source& source, const std::string& prefix,
                            const Word& word, Catalog one) {
  constexpr std::string_view kKey = "optimizer.";
  for (Object& object : one.objects) {
    if (object.name.starts_with(kKey))
      object.name.replace(0, kKey.size(), word);
    else if (!object.name.starts_with("state."))
      object.name = word + object.name;
    object.name = prefix + object.name;
  }
  const size_t begin = Merger(catalog_).add(std::move(one));
  Namer(source, prefix).name(std::span(catalog_.tensors).subspan(begin));
  for (size_t t = begin; t < catalog_.tensors.size(); ++t)
    catalog_.tensors[t].kind = Kind::optim;
  put_in_place(begin, prefix);
  if (models_.size() == 1 && models_[0].open_ended)
    check_extents(folder_, begin, catalog_);
  number_again(catalog_, begin, prefix, prefix + word, folder_);
}

// A trainer with adapters of its own knows nothing of the words that PEFT puts
// before their names: the files have them, the optimizer has not.
void StepReading::put_in_place(size_t begin, const std::string& prefix) {
  std::set<std::string> names, model;
  for (size_t t = 0; t < catalog_.tensors.size(); ++t) {
    const Tensor& tensor = catalog_.tensors[t];
    if (tensor.kind == Kind::model && tensor.name.starts_with(prefix))
      model.insert(tensor.name.substr(prefix.size()));
    if (t >= begin && tensor.param.size() > prefix.size())
      names.insert(tensor.param.substr(prefix.size()));
  }
  const std::string place = place_of(names, model).value_or("");
  if (place.empty()) return;
  for (size_t t = begin; t < catalog_.tensors.size(); ++t) {
    Tensor& tensor = catalog_.tensors[t];
    if (tensor.param.size() <= prefix.size()) continue;
    tensor.param.insert(prefix.size(), place);
    tensor.name = tensor.param + "." + tensor.state;
  }
}

// torchtune keeps only the state of its newest unfinished epoch, beside the
// folders of all epochs.
bool StepReading::is_of_other_step(const Source& source,
                                   const Numbers& numbers) {
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

std::vector<const Tensor*> StepReading::model_tensors(
    const Model& model, std::vector<Tensor>& copies) const {
  for (size_t t = model.range.begin; t < model.range.end; ++t) {
    const Tensor& tensor = catalog_.tensors[t];
    if (tensor.kind != Kind::model) continue;
    Tensor& copy = copies.emplace_back(tensor);
    copy.name.erase(0, model.prefix.size());
  }
  std::vector<const Tensor*> pointers;
  pointers.reserve(copies.size());
  for (const Tensor& copy : copies) pointers.push_back(&copy);
  return pointers;
}

void StepReading::name_optimizer(
    const Optimizer& optimizer, const Word& word, const std::string& path,
    size_t begin, size_t objects,
    const std::shared_ptr<const pickle::Document>& document) {
  const Source& source = *optimizer.source;
  const Range range{begin, catalog_.tensors.size()};
  std::optional<Groups> groups;
  if (document)
    groups = read_groups(*document,
                         source.key.empty()
                             ? document->root()
                             : document->find(document->root(), source.key),
                         path);
  Names names;
  const bool paired = optimizer.number < models_.size();
  const Model* model = &models_[paired ? optimizer.number : 0];
  if (groups) model = owner_of(optimizer, range, *groups, path, names);
  // It belongs to no known model: two with the same number are not a pair.
  const std::string prefix = model == nullptr ? "" : model->prefix;
  Word mine = word;
  if (!words_.insert(prefix + mine).second)
    mine = fmt::format("optimizer_{}.", optimizer.number);
  for (size_t i = objects; i < catalog_.objects.size(); ++i) {
    std::string& name = catalog_.objects[i].name;
    if (name.starts_with(word)) name.replace(0, word.size(), mine);
    name.insert(0, prefix);
  }
  if (groups) return say_names(names, range, prefix, prefix + mine, path);
  // By name already: {"state": {"model.w": …}}.
  Namer(source, prefix).name(std::span(catalog_.tensors).subspan(begin));
  for (size_t t = begin; t < catalog_.tensors.size(); ++t) {
    Tensor& tensor = catalog_.tensors[t];
    if (tensor.kind != Kind::optim) tensor.name = prefix + mine + tensor.name;
    tensor.kind = Kind::optim;
  }
}

// The one model that the numbers fit. Nothing distinguishes two with the same
// shapes: that file i belongs to model i is only the script's custom, which
// --assume-order accepts.
const StepReading::Model* StepReading::owner_of(const Optimizer& optimizer,
                                                const Range& range,
                                                const Groups& groups,
                                                const std::string& path,
                                                Names& names) const {
  const Model* owner = nullptr;
  std::string why_not;
  for (size_t m = 0; m < models_.size(); ++m) {
    const Model& model = models_[m];
    if (!options_.assume_order.empty() && models_.size() > 1 &&
        m != optimizer.number)
      continue;
    if (model.arranged) {
      why_not = fmt::format(
          "{} trains them in another arrangement than this of the "
          "model's file",
          trainer_.what);
      continue;
    }
    std::vector<Tensor> copies;
    const auto tensors = model_tensors(model, copies);
    Names mine = named(catalog_, range, groups, optimizer.source->order,
                       tensors, model.pickled, facts_, options_, path);
    if (!mine.why_not.empty()) {
      if (why_not.empty()) why_not = mine.why_not;
      continue;
    }
    if (owner != nullptr) {
      names = {};
      names.why_not = fmt::format(
          "they fit the parameters of {} and of {}",
          printable(owner->prefix.substr(0, owner->prefix.size() - 1)),
          printable(model.prefix.substr(0, model.prefix.size() - 1)));
      return nullptr;
    }
    owner = &model;
    names = std::move(mine);
  }
  if (owner == nullptr) {
    names = {};
    names.why_not = why_not;
    return models_.size() == 1 ? &models_[0] : nullptr;
  }
  for (const auto& group : names.parameters)
    for (const Parameter& one : group)
      if (named_.contains(owner->prefix + one.name)) {
        names.why_not = fmt::format("another optimizer has {}",
                                    printable(owner->prefix + one.name));
        return models_.size() == 1 ? owner : nullptr;
      }
  return owner;
}

void StepReading::say_names(const Names& names, const Range& range,
                            const std::string& prefix, const Word& word,
                            const std::string& path) {
  const bool arranged = std::ranges::any_of(models_, &Model::arranged);
  if (!names.why_not.empty())
    return leave_numbered(catalog_, range, word, path, names.why_not,
                          arranged ? Assumable::kNo : Assumable::kYes);
  apply(catalog_, range, names, prefix, word);
  for (const auto& group : names.parameters)
    for (const Parameter& one : group) named_.insert(prefix + one.name);
  catalog_.assumptions.push_back(fmt::format(
      "{}: numbers are parameters by {}",
      std::string_view(word).substr(0, word.size() - 1), names.why));
}

void StepReading::read_rank_optimizer(const Optimizer& optimizer) {
  const Source& source = *optimizer.source;
  const Model& model = models_[0];
  const std::string& prefix = model.prefix;
  const Word word = prefix + "optimizer.";
  const auto files = rank_files(folder_, source.file);
  if (files->world != catalog_.topology.dp && catalog_.topology.dp > 1)
    throw input_error({folder_, {}},
                      "the model is of {} ranks, the optimizer of {}",
                      catalog_.topology.dp, files->world)
        .with_hint("the files are of different saves; fetch them again");
  const Shards shards = model.shards.of_rank.size() == files->world
                            ? model.shards
                            : one_part_each(files->world);
  RankCatalog ranks = read_ranks(folder_, *files, &shards, options_);
  if (ranks.shares.empty()) keep_ranks(source, ranks, {});
  const auto paths = io::join_each(folder_, files->names);
  const std::string& path = paths[0];
  std::vector<Tensor> copies;
  const auto tensors = model_tensors(model, copies);
  const auto document = ranks.document;
  const size_t objects = catalog_.objects.size();
  if (ranks.shares.empty()) {
    for (Object& object : ranks.catalog.objects)
      object.name = "optimizer." + object.name;
    const size_t begin = Merger(catalog_).add(std::move(ranks.catalog));
    return name_optimizer(optimizer, "optimizer.", path, begin, objects,
                          document);
  }
  for (Object& object : ranks.catalog.objects) object.name = word + object.name;
  const std::string why_not = name_shares(ranks, paths, tensors);
  keep_ranks(source, ranks, "flat");
  const bool original = ranks.original;
  const auto groups = std::move(ranks.groups);
  const size_t begin = Merger(catalog_).add(std::move(ranks.catalog));
  const Range range{begin, catalog_.tensors.size()};
  if (!why_not.empty())
    return leave_numbered(catalog_, range, word, path, why_not, Assumable::kNo);
  if (!groups.empty()) name_groups(catalog_, groups, prefix, word);
  for (size_t t = begin; t < range.end; ++t) {
    Tensor& tensor = catalog_.tensors[t];
    tensor.kind = Kind::optim;
    tensor.param = prefix + tensor.param;
    tensor.name = prefix + tensor.name;
  }
  catalog_.assumptions.push_back(fmt::format(
      "{}optimizer: {}, in the order of the pickle", prefix,
      original ? "numbers are parameters, which the ranks' parts add up to"
               : "flat parameters are cut by the sizes of the model's units"));
}

}  // namespace ckpt::runs
