// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/tree.h"
#include "formats/fairseq2/extras.h"
#include "formats/fairseq2/fairseq2.h"
#include "formats/fairseq2/file_builder.h"
#include "formats/fairseq2/optimizer.h"
#include "formats/fairseq2/optimizer_write.h"
#include "formats/fairseq2/order.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "models/rules.h"

namespace ckpt::fairseq2 {
namespace {

using families::Rules;
using State = TpRule::State;

// Where things go below DST: at the level that was opened, so that a base
// directory gives a base directory. Other formats give a step's content.
struct Places {
  std::string step;   // "", "step_7"
  std::string model;  // "model", "step_7/model", ""
  std::string optimizer;
};

Places places_for(const Catalog& source) {
  Places places;
  const bool ours = source.format == "fairseq2";
  if (ours && !source.root.empty()) places.step = io::base_name(source.path);
  const bool bare =
      ours && source.root.empty() && !source.files.empty() &&
      source.files[0].path.starts_with(io::join(source.path, "pp_"));
  places.model = bare ? "" : io::join(places.step, "model");
  places.optimizer = io::join(places.step, "optimizer");
  return places;
}

void check_topology(const Catalog& source, const Topology& grid) {
  if (grid.ep != 1)
    throw unfaithful_error({source.path, {}},
                           "fairseq2 has no expert parallelism (ep={})",
                           grid.ep)
        .with_hint("leave --ep out, or give --ep 1");
  if (grid.tp == 0 || grid.pp == 0 || grid.dp == 0)
    throw usage_error({}, "a topology of no ranks ({})", to_string(grid));
}

// Gives tensors without a rule from the reader those of the source's family.
void add_rules(const Catalog& source, uint32_t tp, Target& target) {
  Catalog& catalog = target.catalog;
  const auto unknown = [](const Tensor& tensor) {
    return tensor.kind == Kind::model && tensor.tp.state == State::kUnknown;
  };
  if (std::ranges::none_of(catalog.tensors, unknown)) return;
  if (Rules::is_family(source.family)) {
    const Rules rules =
        Rules::for_family(source.family, {}, "the source's family");
    std::vector<TpRule> known;
    for (const Tensor& tensor : catalog.tensors) known.push_back(tensor.tp);
    if (families::apply(catalog, rules)) {
      // What the source knows takes precedence over its family's usual rules.
      for (size_t i = 0; i < known.size(); ++i)
        if (known[i].state != State::kUnknown) catalog.tensors[i].tp = known[i];
      target.assumptions.push_back("shard dimensions: " + rules.source());
      for (const std::string& line : rules.assumptions())
        if (tp > 1) target.assumptions.push_back(line);
    }
  }
}

// "1, 2, 4 or 8 divide every tensor": possible values of --tp.
std::string possible_sizes(const Catalog& source, const Tensor& refused) {
  constexpr uint32_t kMost = 1024;
  constexpr size_t kShown = 12;
  std::vector<uint32_t> sizes;
  for (uint32_t tp = 1; tp <= kMost && sizes.size() < kShown; ++tp) {
    const auto fits = [tp](const Tensor& tensor) {
      return divides(tensor.shape, tensor.tp, tp);
    };
    if (fits(refused) && std::ranges::all_of(source.tensors, fits))
      sizes.push_back(tp);
  }
  return fmt::format("sizes that divide every tensor: {}",
                     fmt::join(sizes, ", "));
}

void check_split(const Catalog& source, const Tensor& tensor, uint32_t tp) {
  if (tp == 1) return;
  if (tensor.tp.state == State::kUnknown) {
    if (tensor.kind == Kind::model)
      throw families::no_rule_error(source.path, tensor, source.family, tp);
    throw unfaithful_error({source.path, tensor.name},
                           "how {} tensor-parallel ranks share a state of "
                           "shape {} is not known",
                           tp, to_string(tensor.shape))
        .with_hint("--model-only leaves the optimizer out");
  }
  if (divides(tensor.shape, tensor.tp, tp)) return;
  if (tensor.tp.dim >= tensor.shape.size())
    throw unfaithful_error({source.path, tensor.name},
                           "to be split along dimension {}, but has shape {}",
                           tensor.tp.dim, to_string(tensor.shape));
  const std::string groups =
      tensor.tp.groups > 1 ? fmt::format(" in {} groups", tensor.tp.groups)
                           : "";
  throw unfaithful_error({source.path, tensor.name},
                         "dimension {} of {} has {} elements, which {} "
                         "tensor-parallel ranks do not divide{}",
                         tensor.tp.dim, to_string(tensor.shape),
                         tensor.shape[tensor.tp.dim], tp, groups)
      .with_hint(possible_sizes(source, tensor));
}

void check_tied(const Catalog& source, const Tensor& tensor, uint32_t tp) {
  if (tp == 1 || tensor.tie == 0 || tensor.tp.state != State::kSplit) return;
  const auto same =
      std::ranges::count(source.tensors, tensor.tie, &Tensor::tie);
  if (same < 2) return;
  throw unfaithful_error({source.path, tensor.name},
                         "Tied embeddings are not supported when tensor "
                         "parallelism is enabled (tp={}): fairseq2 refuses "
                         "such a model",
                         tp);
}

void check_tensor(const Catalog& source, const Tensor& tensor, uint32_t tp) {
  const auto type = torch::torch_type(tensor.name, tensor.dtype, tensor.shape);
  if (type.dtype != tensor.dtype)
    throw unfaithful_error({source.path, tensor.name},
                           "{} has two values to a byte, which can't be cut "
                           "into ranks' parts",
                           name(tensor.dtype));
  check_split(source, tensor, tp);
  check_tied(source, tensor, tp);
}

// Adds the tensors that have a place: parameters, buffers, and state of written
// parameters.
void add_tensors(const Catalog& source, Target& target) {
  std::unordered_set<std::string_view> models;
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::model) models.insert(tensor.name);
  for (const Tensor& tensor : source.tensors) {
    const bool state =
        tensor.kind == Kind::optim && models.contains(tensor.param);
    if (tensor.kind == Kind::model || state) {
      torch::check_materialisable(tensor, source);
      target.catalog.tensors.push_back(formats::without_pieces(tensor));
      continue;
    }
    if (tensor.kind == Kind::optim)
      throw unfaithful_error({source.path, tensor.name},
                             "state of {}, which is not written", tensor.param)
          .with_hint("--model-only leaves the optimizer out");
    target.problems.push_back(
        warning("tensor_without_place", {{}, tensor.name},
                "is left out: fairseq2's files hold parameters, buffers and "
                "optimizer state"));
  }
}

// A tensor's stage in the source: "…/pp_01/tp_00/sdp_00.pt".
std::optional<uint32_t> source_stage(const Catalog& source,
                                     const Tensor& tensor) {
  if (tensor.pieces.empty()) return std::nullopt;
  const std::string& path = source.files[tensor.pieces[0].extent.file].path;
  const std::string stage = io::base_name(io::parent(io::parent(path)));
  const auto number = number_in(stage, "pp_");
  if (!number || *number >= source.topology.pp) return std::nullopt;
  return static_cast<uint32_t>(*number);
}

// The model's tensors by stage, in module order.
std::vector<std::vector<size_t>> stages_of(const Catalog& source,
                                           const Topology& grid,
                                           Target& target) {
  std::unordered_map<std::string_view, size_t> index;
  std::vector<std::string> names;
  for (size_t i = 0; i < target.catalog.tensors.size(); ++i) {
    const Tensor& tensor = target.catalog.tensors[i];
    if (tensor.kind != Kind::model) continue;
    index.emplace(tensor.name, i);
    names.push_back(tensor.name);
  }
  const bool ours = source.format == "fairseq2";
  if (!ours) sort_by_module(names, source.family);

  std::vector<uint32_t> stages(names.size(), 0);
  if (grid.pp > 1) {
    std::string assumption;
    stages = assign_stages(names, grid.pp, assumption);
    const bool kept = ours && source.topology.pp == grid.pp;
    std::unordered_map<std::string_view, const Tensor*> tensors;
    for (const Tensor& tensor : source.tensors)
      tensors.emplace(tensor.name, &tensor);
    for (size_t i = 0; kept && i < names.size(); ++i)
      stages[i] =
          source_stage(source, *tensors.at(names[i])).value_or(stages[i]);
    target.assumptions.push_back(kept ? "pipeline stages: as in the source"
                                      : assumption);
  }
  std::vector<std::vector<size_t>> all(grid.pp);
  for (size_t i = 0; i < names.size(); ++i)
    all[stages[i]].push_back(index.at(names[i]));
  for (size_t pp = 0; pp < all.size(); ++pp)
    if (all[pp].empty())
      throw unfaithful_error({source.path, {}},
                             "pipeline stage {} would hold nothing", pp);
  return all;
}

void write_model_file(const std::vector<size_t>& stage, const Coordinates& at,
                      const std::string& directory, Target& target) {
  FileBuilder file(at);
  pickle::Document& doc = file.document;
  std::vector<pickle::Id> pairs;
  for (const size_t index : stage) {
    const Tensor& tensor = target.catalog.tensors[index];
    const bool whole = tensor.dp_replicated || tensor.shape.empty();
    const uint64_t slot = file.add_rows(target, index, whole);
    pairs.push_back(doc.add_string(tensor.name));
    pairs.push_back(torch::add_placeholder(doc, slot));
  }
  // A module's state_dict() is an OrderedDict, FSDP's a dict.
  const pickle::Id root = at.grid.dp == 1
                              ? torch::add_ordered_dict(doc, pairs)
                              : doc.add_container(pickle::Type::kDict, pairs);
  file.finish(target, root, io::join(directory, at.path()));
}

// What the optimizer numbers: no buffers, and tied parameters once.
std::vector<std::vector<std::string>> parameters_of(
    const std::vector<std::vector<size_t>>& stages, const Target& target) {
  std::vector<std::vector<std::string>> all;
  for (const auto& stage : stages) {
    auto& names = all.emplace_back();
    std::unordered_set<uint32_t> ties;
    for (const size_t index : stage) {
      const Tensor& tensor = target.catalog.tensors[index];
      if (tensor.dp_replicated) continue;
      if (tensor.tie != 0 && !ties.insert(tensor.tie).second) continue;
      names.push_back(tensor.name);
    }
  }
  return all;
}

// Reports objects that no file of the target holds.
void tell_objects(const Catalog& source, bool optimizer, Target& target) {
  std::string names;
  size_t count = 0;
  for (const Object& object : source.objects) {
    const bool carried =
        source.format == "fairseq2" &&
        (object.name.starts_with("trainer.") ||
         (optimizer && object.name.starts_with(kObjectPrefix)));
    if (carried) continue;
    if (++count <= 8) names += (count == 1 ? "" : ", ") + object.name;
  }
  if (count == 0) return;
  if (count > 8) names += ", …";
  target.problems.push_back(
      warning("object_without_place", {},
              "{} values that are not tensors are left out: {}", count, names));
}

Target lay_out(const Catalog& source, const Layout& layout) {
  const Topology& grid = layout.topology;
  check_topology(source, grid);
  if (layout.single_file)
    throw usage_error({}, "fairseq2's native format is a directory")
        .with_hint("name a directory, or convert to torch for one file");
  const Places places = places_for(source);
  Target target;
  target.catalog.format = "fairseq2";
  target.catalog.dialect = "fairseq2";
  target.catalog.family = source.family;
  target.catalog.topology = grid;
  add_tensors(source, target);
  add_rules(source, grid.tp, target);
  for (const Tensor& tensor : target.catalog.tensors)
    check_tensor(source, tensor, grid.tp);

  const auto stages = stages_of(source, grid, target);
  for (uint32_t pp = 0; pp < grid.pp; ++pp)
    for (uint32_t tp = 0; tp < grid.tp; ++tp)
      for (uint32_t dp = 0; dp < grid.dp; ++dp)
        write_model_file(stages[pp], {grid, pp, tp, dp}, places.model, target);
  const bool optimizer = std::ranges::any_of(
      target.catalog.tensors,
      [](const Tensor& tensor) { return tensor.kind == Kind::optim; });
  if (optimizer)
    write_optimizer(source, grid, parameters_of(stages, target),
                    places.optimizer, target);
  write_extras(source, grid, places.step, target);
  tell_objects(source, optimizer, target);
  return target;
}

}  // namespace

std::unique_ptr<formats::Writer> make_writer() {
  return formats::writer_of("fairseq2", nullptr, lay_out);
}

}  // namespace ckpt::fairseq2
