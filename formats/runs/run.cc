#include "formats/runs/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ckpt/error.h"
#include "formats/runs/naming.h"
#include "formats/runs/objects.h"
#include "formats/runs/optimizer.h"
#include "formats/runs/pattern.h"
#include "formats/runs/step.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using formats::ReadOptions;
using text::printable;
using Severity = Problem::Severity;

// "global_step_10", or the folder of a role below it.
std::optional<uint64_t> number_in_name(const Trainer& trainer,
                                       const Found& found) {
  if (found.number) return found.number;
  const std::string name = io::base_name(found.step);
  const std::string above = io::base_name(io::parent(found.step));
  for (const std::string& pattern : trainer.steps) {
    const std::string last = pattern.substr(pattern.rfind('/') + 1);
    for (const std::string& one : {name, above})
      if (const auto numbers = match(last, one)) return numbers->at("N");
  }
  return std::nullopt;
}

bool has_object(const Catalog& catalog, const std::string& beginning) {
  return std::ranges::any_of(catalog.objects, [&](const Object& object) {
    return object.name.starts_with(beginning);
  });
}

// torchtitan: all parts in one DCP.
void adopt_whole(Catalog& catalog, const Trainer& trainer) {
  std::map<std::string, std::string> renamed;
  std::vector<std::string> before;
  for (const Tensor& tensor : catalog.tensors) before.push_back(tensor.name);
  Namer(trainer.models[0], "").name(catalog.tensors);
  for (size_t t = 0; t < before.size(); ++t)
    renamed[before[t]] = catalog.tensors[t].name;
  if (catalog.skeleton)
    for (auto& [node, name] : catalog.skeleton->tensors)
      if (const auto found = renamed.find(name); found != renamed.end())
        name = found->second;
  catalog.run = Run{.trainer = trainer.name,
                    .step = number_of(catalog, trainer.step_object)};
}

// Lightning's file: everything in one pickle.
void adopt_lightning(Catalog& catalog, const ReadOptions& options) {
  constexpr std::string_view kModel = "state_dict.";
  std::vector<Tensor> copies;
  std::map<std::string, std::string> renamed;
  for (Tensor& tensor : catalog.tensors) {
    if (tensor.kind == Kind::optim) continue;
    if (!tensor.name.starts_with(kModel)) {
      tensor.kind = Kind::other;
      continue;
    }
    const std::string before = tensor.name;
    tensor.kind = Kind::model;
    tensor.name = unwrapped(tensor.name.substr(kModel.size()));
    renamed[before] = tensor.name;
    copies.push_back(tensor);
  }
  std::vector<const Tensor*> model;
  for (const Tensor& copy : copies) model.push_back(&copy);
  const pickle::Document& document = *catalog.skeleton->document;
  const pickle::Id list =
      document.find(catalog.skeleton->root, "optimizer_states");
  const size_t count =
      document.is(list, pickle::Type::kList) ? document.items(list).size() : 0;
  for (size_t i = 0; i < count; ++i) {
    const std::string prefix = fmt::format("optimizer_states.{}.", i);
    const pickle::Id one = document.items(list)[i];
    // The tensors of one optimizer stand together in the pickle.
    Range range{catalog.tensors.size(), 0};
    for (size_t t = 0; t < catalog.tensors.size(); ++t) {
      if (!catalog.tensors[t].name.starts_with(prefix)) continue;
      range.begin = std::min(range.begin, t);
      range.end = t + 1;
    }
    if (range.end == 0) continue;
    std::vector<std::string> before;
    for (size_t t = range.begin; t < range.end; ++t)
      before.push_back(catalog.tensors[t].name);
    const auto groups = read_groups(document, one, catalog.path);
    if (!groups) {
      for (size_t t = range.begin; t < range.end; ++t) {
        Tensor& tensor = catalog.tensors[t];
        if (!tensor.param.empty() && !tensor.state.empty())
          tensor.name = tensor.param + "." + tensor.state;
      }
    } else {
      const Names names = named(catalog, range, *groups, "module", model, true,
                                {}, options, catalog.path);
      if (!names.why_not.empty()) {
        leave_numbered(catalog, range, "", catalog.path, names.why_not);
      } else {
        apply(catalog, range, names, "");
        catalog.assumptions.push_back(
            fmt::format("optimizer: numbers are parameters by {}", names.why));
      }
    }
    for (size_t t = range.begin; t < range.end; ++t)
      renamed[before[t - range.begin]] = catalog.tensors[t].name;
  }
  for (auto& [node, name] : catalog.skeleton->tensors)
    if (const auto found = renamed.find(name); found != renamed.end())
      name = found->second;
  catalog.run =
      Run{.trainer = "lightning", .step = number_of(catalog, "global_step")};
}

}  // namespace

void adopt(Catalog& catalog, const std::string& only,
           const ReadOptions& options) {
  const auto wanted = [&](std::string_view name) {
    return only.empty() || only == name;
  };
  if (catalog.run) return;
  if (catalog.format == "torch" && catalog.skeleton && wanted("lightning") &&
      has_object(catalog, "pytorch-lightning_version") &&
      std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
        return tensor.name.starts_with("state_dict.");
      }))
    return adopt_lightning(catalog, options);
  if (catalog.format != "dcp") return;
  for (const Trainer& trainer : trainers())
    if (!trainer.objects.empty() && wanted(trainer.name) &&
        std::ranges::all_of(trainer.objects, [&](const std::string& object) {
          return has_object(catalog, object);
        }))
      return adopt_whole(catalog, trainer);
}

std::optional<Catalog> read_run(const Found& found, const std::string& path,
                                const ReadOptions& options) {
  const Trainer& trainer = *found.trainer;
  Catalog catalog;
  const bool lone = !io::is_directory(found.step);
  if (lone || !trainer.objects.empty()) {
    catalog = formats::find_format(lone ? "torch" : "dcp")
                  .reader->read_catalog(found.step, options);
    adopt(catalog, trainer.name, options);
    if (!catalog.run) return std::nullopt;
  } else {
    catalog = read_step(found, options);
    catalog.run = Run{.trainer = trainer.name, .step = {}};
    if (!trainer.step_file.empty())
      catalog.run->step =
          number_in(io::join(found.step, trainer.step_file), trainer.step_key);
  }
  if (!catalog.run->step && trainer.name != "accelerate")
    catalog.run->step = number_in_name(trainer, found);
  if (found.step != path) catalog.root = path;
  std::vector<std::string> said{
      fmt::format("trainer {}: {}", trainer.name, found.why)};
  if (!found.choice.empty())
    said.push_back(fmt::format("{}: {}", printable(io::base_name(found.step)),
                               found.choice));
  catalog.assumptions.insert(catalog.assumptions.begin(), said.begin(),
                             said.end());
  for (const std::string& name : found.skipped)
    catalog.problems.push_back(
        {Severity::kWarning,
         "unfinished_save",
         io::join(path, name),
         {},
         fmt::format("{} is newer, but its save did not finish; {} is read",
                     printable(name), printable(io::base_name(found.step)))});
  if (found.weights_beside)
    catalog.problems.push_back(
        {Severity::kWarning,
         "final_model",
         path,
         {},
         fmt::format("holds a model of its own, without optimizer, beside its "
                     "steps; {} is read (--trainer none reads that model)",
                     printable(io::base_name(found.step)))});
  return catalog;
}

bool is_trainers_own(const std::string& trainer, const std::string& path) {
  const Trainer& known = find_trainer(trainer);
  const std::string name = io::base_name(path);
  if (name == known.tracker) return true;
  return std::ranges::any_of(known.parts, [&](const Part& part) {
    const bool about_model = part.part == "config" && part.world.empty();
    return !about_model && (match(part.file, path) || match(part.file, name));
  });
}

}  // namespace ckpt::runs
