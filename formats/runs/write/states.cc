// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/write/states.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <unordered_map>

#include "containers/torch/file_plan.h"
#include "containers/torch/tensors.h"
#include "lib/pickle/parts.h"

namespace ckpt::runs {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

// The scheduler in a value: the value itself or, for a list, its first item.
Id scheduler_in(const Document& document, Id value) {
  if (document.is(value, Type::kList))
    return document.items(value).empty() ? kNoId : document.items(value)[0];
  return value;
}

bool is_file_of(std::string_view name, std::string_view stem) {
  return name == stem || name.starts_with(std::string(stem) + "_");
}

// scheduler.pt, scheduler.bin: the object itself; verl's extra_state, and
// Lightning's meta.pt: a key of it; Lightning's file: its own object.
Id find_scheduler(const Object& object) {
  const Document& document = *object.document;
  if (object.name == "scheduler" || object.name == "lr_scheduler" ||
      object.name == "lr_schedulers")
    return scheduler_in(document, object.node);
  if (object.name == "meta")
    return scheduler_in(document, document.find(object.node, "lr_schedulers"));
  if (is_file_of(object.name, "extra_state"))
    return document.find(object.node, "lr_scheduler");
  return kNoId;
}

// Reads a tensor without dimensions from its file, as the plan has not begun.
std::optional<uint64_t> count_of(const Catalog& source, size_t index) {
  Catalog aside;
  aside.path = source.path;
  aside.files = source.files;
  aside.crcs = source.crcs;
  aside.tensors = {source.tensors[index]};
  aside.archive_opener = source.archive_opener;
  ckpt::locate(aside);
  const Tensor& tensor = aside.tensors[0];
  if (tensor.pieces.empty() || volume(tensor.pieces[0].box) != 1 ||
      tensor.dtype != DType::f32)
    return std::nullopt;
  torch::TensorRef ref;
  ref.dtype = tensor.dtype;
  ref.extent = tensor.pieces[0].extent;
  ref.transform = tensor.pieces[0].transform;
  const std::string bytes = torch::read_content(aside, ref);
  float number = 0;
  if (bytes.size() != sizeof number) return std::nullopt;
  std::memcpy(&number, bytes.data(), sizeof number);
  constexpr float kMost = 16'777'216;  // f32 can't count further
  if (!(number >= 0 && number <= kMost) || number != std::floor(number))
    return std::nullopt;
  return static_cast<uint64_t>(number);
}

Id dict(Document& document,
        std::initializer_list<std::pair<const char*, Id>> entries) {
  const Id made = document.add_container(Type::kDict);
  for (const auto& [key, value] : entries) document.set(made, key, value);
  return made;
}

}  // namespace

std::optional<Id> import_value(Document& to, const Catalog& source,
                               const Document& from, Id node) {
  std::unordered_map<Id, Id> substitutes;
  const std::vector<Id> inside = pickle::storages_below(from, node);
  if (!inside.empty()) {
    if (!source.skeleton || source.skeleton->document.get() != &from)
      return std::nullopt;
    std::unordered_map<Id, const Content*> known;
    for (const auto& [storage, content] : source.skeleton->storages)
      known.emplace(storage, &content);
    for (const Id storage : inside) {
      const auto found = known.find(storage);
      if (found == known.end()) return std::nullopt;
      // ("storage", class, …)
      const Id type = from.items(from.items(storage)[0])[1];
      substitutes[storage] = torch::add_inline_storage(
          to, dtype_from_storage(from.text(type)).value_or(DType::bits8),
          *found->second);
    }
  }
  return to.import(from, node, substitutes);
}

States find_states(const Catalog& source, const Adam& adam) {
  States states;
  for (const Object& object : source.objects) {
    if (!object.document || !states.scheduler.from.empty()) continue;
    const Document& document = *object.document;
    if (object.name == "lr_scheduler.last_epoch") {
      if (const auto position = document.as_int(object.node))
        states.scheduler = {object.name, *position, kNoId};
      continue;
    }
    const Id found = find_scheduler(object);
    const auto position = document.as_int(document.find(found, "last_epoch"));
    if (!position) continue;
    states.scheduler = {object.name, *position,
                        import_value(*states.document, source, document, found)
                            .value_or(kNoId)};
  }
  if (source.run) states.step = source.run->step;
  if (!states.step && !adam.states.empty()) {
    states.step = count_of(source, adam.states.begin()->second.at("step"));
    states.counted = states.step.has_value();
  }
  return states;
}

Id lambda_scheduler(Document& document, const Adam& adam,
                    const std::vector<AdamGroup>& groups, int64_t position) {
  const Id base = document.add_container(Type::kList);
  const Id last = document.add_container(Type::kList);
  const Id lambdas = document.add_container(Type::kList);
  for (const AdamGroup& group : groups) {
    const Id lr = option(group, "lr"), initial = option(group, "initial_lr");
    document.append(
        base, document.import(*adam.document, initial == kNoId ? lr : initial));
    document.append(last, document.import(*adam.document, lr));
    document.append(lambdas, document.add_none());
  }
  return dict(document,
              {{"base_lrs", base},
               {"last_epoch", document.add_int(position)},
               {"_step_count", document.add_int(position + 1)},
               {"_is_initial", document.add_bool(false)},
               {"_get_lr_called_within_step", document.add_bool(false)},
               {"_last_lr", last},
               {"lr_lambdas", lambdas}});
}

TargetFile value_file(const std::string& path, Document& document, Id root) {
  torch::FilePlan plan =
      torch::plan_file(document, root, {}, torch::archive_root_of(path));
  plan.file.path = path;
  return std::move(plan.file);
}

}  // namespace ckpt::runs
