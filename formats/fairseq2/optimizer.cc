// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/optimizer.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "ckpt/error.h"
#include "containers/torch/many.h"
#include "containers/torch/tensors.h"
#include "formats/fairseq2/groups.h"
#include "lib/io/file.h"

namespace ckpt::fairseq2 {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

// One state of one parameter, from all ranks.
struct State {
  std::string name;
  std::vector<Part> parts;     // by tp, then dp
  std::optional<Shape> whole;  // DTensors: the tp-local shape
};

struct StageState {
  std::map<uint64_t, std::vector<State>> states;  // by parameter number
  std::vector<std::vector<uint64_t>> groups;
  std::shared_ptr<const Document> document;  // of the first rank
  Id groups_node = pickle::kNoId;
};

// The device type in a DTensor's mesh: state["_spec"].mesh._device_type.
std::string device_type(const Document& doc, Id tensor) {
  const auto under = [&](Id object, std::string_view key) {
    if (!doc.is(object, Type::kCall)) return pickle::kNoId;
    return doc.find(doc.call(object).state, key);
  };
  if (!doc.is(tensor, Type::kCall)) return {};
  const auto args = doc.items(doc.call(tensor).args);
  if (args.size() != 4) return {};
  Id state = args[3];
  if (doc.is(state, Type::kTuple) && doc.items(state).size() == 2)
    state = doc.items(state)[1];
  const Id mesh = under(doc.find(state, "_spec"), "mesh");
  for (const char* key : {"_device_type", "device_type"}) {
    const Id type = under(mesh, key);
    if (doc.is(type, Type::kString)) return std::string(doc.text(type));
  }
  return {};
}

State& state_named(std::vector<State>& states, std::string_view name) {
  const auto found = std::ranges::find(states, name, &State::name);
  if (found != states.end()) return *found;
  return states.emplace_back(State{std::string(name), {}, std::nullopt});
}

// One state of one parameter in one file.
struct Field {
  uint64_t number = 0;
  std::string name;
  std::optional<torch::TensorRef> ref;  // nothing: not a tensor
  Id value = pickle::kNoId;
};

// One file's content, with extents in its own catalog.
struct Loaded {
  std::shared_ptr<const Document> document;
  Id groups = pickle::kNoId;
  std::vector<std::vector<uint64_t>> numbers;
  std::vector<Field> fields;
};
using Files = torch::ManyFiles<Loaded>;

void load_fields(const torch::Container& file, Id state,
                 std::vector<Field>& fields) {
  const Document& doc = *file.document;
  const auto pairs = *doc.as_pairs(state);
  for (size_t i = 0; i < pairs.size(); i += 2) {
    const auto number = doc.as_int(pairs[i]);
    const auto states = doc.as_pairs(pairs[i + 1]);
    if (!number || *number < 0 || !states)
      throw input_error({file.path, {}},
                        "\"state\" is not a dict of dicts by number");
    for (size_t f = 0; f < states->size(); f += 2) {
      const Id key = (*states)[f], value = (*states)[f + 1];
      if (!doc.is(key, Type::kString))
        throw input_error({file.path, {}}, "state {}: a key of type {}",
                          *number, name(doc.type(key)));
      const std::string_view field = doc.text(key);
      const std::string label = fmt::format("state {}.{}", *number, field);
      fields.push_back({static_cast<uint64_t>(*number), std::string(field),
                        torch::as_tensor(doc, value, file.storages, label),
                        value});
    }
  }
}

Loaded load(const torch::Container& file) {
  const std::string& path = file.path;
  Loaded loaded;
  loaded.document = file.document;
  const Document& doc = *file.document;
  const Id state = doc.find(doc.root(), "state");
  loaded.groups = doc.find(doc.root(), "param_groups");
  if (loaded.groups == pickle::kNoId || !doc.as_pairs(state))
    throw input_error({path, {}},
                      "not an optimizer's state: no \"state\" and "
                      "\"param_groups\"");
  loaded.numbers = read_groups(doc, loaded.groups, path);
  load_fields(file, state, loaded.fields);
  return loaded;
}

// Puts the files of one stage together, by tp, then dp.
class Loader {
 public:
  explicit Loader(Catalog& catalog) : catalog_(catalog) {}

  void take(Files::One& file, const RankFile& rank, StageState& stage) {
    const Loaded& loaded = *file.made;
    const uint32_t first = torch::take_aside(file.aside, catalog_);
    if (rank.first()) {
      stage.groups = loaded.numbers;
      stage.document = loaded.document;
      stage.groups_node = loaded.groups;
      add_others(loaded.document);
    } else if (loaded.numbers != stage.groups) {
      throw input_error({*rank.path, {}},
                        "its parameter groups are not those of {}",
                        "pp_00/tp_00/sdp_00.pt");
    }
    for (const Field& field : loaded.fields)
      take_field(loaded, field, rank, first, stage.states[field.number]);
  }

  std::string mesh_device;
  // Non-tensor values, by parameter number and state.
  struct Value {
    uint64_t number;
    std::string state;
    std::shared_ptr<const Document> document;
    Id node;
  };
  std::vector<Value> values;

 private:
  void take_field(const Loaded& loaded, const Field& field,
                  const RankFile& rank, uint32_t first_file,
                  std::vector<State>& states) {
    if (!field.ref) {
      if (rank.first())
        values.push_back(
            {field.number, field.name, loaded.document, field.value});
      return;
    }
    const torch::TensorRef& ref = *field.ref;
    State& state = state_named(states, field.name);
    if (ref.distributed) {
      if (mesh_device.empty())
        mesh_device = device_type(*loaded.document, field.value);
      const Shape& whole = ref.distributed->global_shape;
      if (state.whole.value_or(whole) != whole)
        throw input_error(
            {*rank.path, fmt::format("state {}.{}", field.number, field.name)},
            "DTensor of shape {}, elsewhere {}", to_string(whole),
            to_string(*state.whole));
      state.whole = whole;
    }
    state.parts.push_back(
        {rank.tp, rank.dp, ref.dtype, ref.shape, ref.extent, ref.transform});
    state.parts.back().extent.file += first_file;
  }

  // Adds what a state dict has besides state and param_groups.
  void add_others(const std::shared_ptr<const Document>& document) {
    const Document& doc = *document;
    const auto pairs = doc.as_pairs(doc.root());
    if (!pairs) return;
    for (size_t i = 0; i < pairs->size(); i += 2) {
      const Id key = (*pairs)[i];
      if (!doc.is(key, Type::kString)) continue;
      const std::string_view text = doc.text(key);
      if (text == "state" || text == "param_groups") continue;
      catalog_.objects.push_back(
          {kObjectPrefix + std::string(text), document, (*pairs)[i + 1]});
    }
  }

  Catalog& catalog_;
};

bool is_empty(const Part& part) {
  return std::ranges::find(part.shape, 0u) != part.shape.end();
}

// How the ranks share a state, as its encoding shows.
Sharding sharding_of(const Catalog& catalog, const State& state,
                     const std::string& name, uint32_t dp) {
  const Part& first = state.parts.front();
  const std::string& path = catalog.files[first.extent.file].path;
  if (dp == 1 || first.shape.empty()) return Sharding::kWhole;
  if (state.whole) {
    // Replicate(): every rank has all of it.
    const auto holders = std::ranges::count_if(
        state.parts, [](const Part& part) { return !is_empty(part); });
    const bool all = std::ranges::all_of(state.parts, [&](const Part& part) {
      return is_empty(part) || part.shape == *state.whole;
    });
    return all && holders > 1 ? Sharding::kWhole : Sharding::kRows;
  }
  if (first.shape.size() == 1) return Sharding::kFlat;
  throw unfaithful_error({path, name},
                         "shape {} over {} data-parallel ranks is neither a "
                         "DTensor nor a slice of a flattened parameter",
                         to_string(first.shape), dp)
      .with_hint(kWithoutOptimizer);
}

// A state is split like its parameter if its shape is.
TpRule rule_of(const Catalog& catalog, const Tensor& param, const Local& local,
               const std::string& name) {
  const TpRule& rule = param.tp;
  const uint32_t tp = catalog.topology.tp;
  if (local.shape.empty()) return TpRule::replicated();
  const Shape shape = tp_local(param.shape, rule, tp);
  if (local.shape == shape || rule.state != TpRule::State::kSplit) return rule;
  // Statistics of rows or columns: [rows, 1] or [1, columns].
  const uint32_t d = rule.dim;
  if (local.shape.size() == shape.size() && d < shape.size() &&
      local.shape[d] == shape[d] && shape[d] != 1)
    return rule;
  if (tp == 1) return {};  // no need to know it here
  throw unfaithful_error({catalog.path, name},
                         "shape {} for a part of shape {} that is split along "
                         "dimension {}: a statistic of each of the {} parts, "
                         "not a part of a whole",
                         to_string(local.shape), to_string(shape), d, tp)
      .with_hint(kWithoutOptimizer);
}

// The stage's parameters with their tp-local shapes.
std::vector<Parameter> parameters(
    const std::vector<std::string>& order, uint32_t tp,
    const std::unordered_map<std::string_view, const Tensor*>& model) {
  std::vector<Parameter> all;
  for (const std::string& name : order) {
    const Tensor& tensor = *model.at(name);
    all.push_back({name, tp_local(tensor.shape, tensor.tp, tp)});
  }
  return all;
}

std::map<uint64_t, Signature> signatures(const StageState& stage, uint32_t dp) {
  std::map<uint64_t, Signature> all;
  for (const auto& [number, states] : stage.states) {
    const auto known = std::ranges::find_if(states, [](const State& state) {
      // These have the parameter's shape, except Adafactor's row and column
      // sums.
      return !state.parts.front().shape.empty() && state.name != "row_var" &&
             state.name != "col_var";
    });
    if (known == states.end()) continue;
    const Part& first = known->parts.front();
    Signature seen{known->whole.value_or(first.shape), true, false};
    if (!known->whole && dp > 1) {
      uint64_t total = 0;
      for (const Part& part : known->parts)
        if (part.tp == first.tp && part.shape.size() == 1)
          total = checked_add(total, part.shape[0]).value_or(UINT64_MAX);
      seen = {Shape{total}, true, true};
    }
    all.emplace(number, std::move(seen));
  }
  return all;
}

std::vector<const Part*> of_rank(const State& state, uint32_t tp) {
  std::vector<const Part*> parts;
  for (const Part& part : state.parts)
    if (part.tp == tp) parts.push_back(&part);
  return parts;
}

Tensor join_state(const Catalog& catalog, const Tensor& param,
                  const State& state) {
  const Topology& grid = catalog.topology;
  Tensor tensor;
  tensor.name = param.name + "." + state.name;
  tensor.kind = Kind::optim;
  tensor.param = param.name;
  tensor.state = state.name;
  const Sharding sharding = sharding_of(catalog, state, tensor.name, grid.dp);
  const Shape shape = tp_local(param.shape, param.tp, grid.tp);
  std::vector<Local> ranks;
  for (uint32_t tp = 0; tp < grid.tp; ++tp) {
    const auto parts = of_rank(state, tp);
    if (parts.empty())
      throw input_error({catalog.path, tensor.name},
                        "tensor-parallel rank {} has none, rank 0 has", tp);
    ranks.push_back(
        join_dp(catalog, tensor.name, parts, grid.dp, sharding, shape));
    if (state.whole && ranks.back().shape != *state.whole)
      throw input_error({catalog.path, tensor.name},
                        "the ranks' rows make up {}, their DTensors say {}",
                        to_string(ranks.back().shape), to_string(*state.whole));
  }
  tensor.dp_replicated = sharding == Sharding::kWhole &&
                         (grid.dp > 1 || ranks.front().shape.empty());
  join_tp(catalog, ranks, rule_of(catalog, param, ranks.front(), tensor.name),
          sharding, tensor);
  return tensor;
}

// The groups with names instead of numbers, over all stages.
struct NamedGroups {
  std::shared_ptr<const Document> document;
  Id node = pickle::kNoId;
  std::vector<std::vector<std::string>> names;

  void add(const StageState& stage, const std::vector<std::string>& of,
           const std::string& path) {
    if (!document) {
      document = stage.document;
      node = stage.groups_node;
      names.resize(stage.groups.size());
    }
    if (names.size() != stage.groups.size())
      throw input_error({path, {}}, "{} parameter groups, stage 0 has {}",
                        stage.groups.size(), names.size());
    for (size_t g = 0; g < names.size(); ++g)
      for (const uint64_t number : stage.groups[g])
        names[g].push_back(of[number]);
  }

  Object object() const {
    auto doc = std::make_shared<Document>();
    std::unordered_map<Id, Id> named;
    const auto groups = document->items(node);
    for (size_t g = 0; g < names.size(); ++g) {
      std::vector<Id> items;
      for (const std::string& name : names[g])
        items.push_back(doc->add_string(name));
      named.emplace(document->find(groups[g], "params"),
                    doc->add_container(Type::kList, items));
    }
    const Id root = doc->import(*document, node, named);
    doc->set_root(root);
    return {kGroupsObject, doc, root};
  }
};

Object text_object(const char* name, const std::string& text) {
  auto doc = std::make_shared<Document>();
  const Id root = doc->add_string(text);
  doc->set_root(root);
  return {name, doc, root};
}

}  // namespace

std::vector<std::string> parameter_order(const Stage& stage,
                                         const Catalog& catalog) {
  std::unordered_map<std::string_view, const Tensor*> model;
  for (const Tensor& tensor : catalog.tensors)
    model.emplace(tensor.name, &tensor);
  std::vector<std::string> order;
  std::unordered_set<uint32_t> ties;
  for (const Key& key : stage.keys) {
    const Tensor& tensor = *model.at(key.name);
    if (tensor.dp_replicated) continue;
    if (tensor.tie != 0 && !ties.insert(tensor.tie).second) continue;
    order.push_back(key.name);
  }
  return order;
}

void read_optimizer(const std::string& directory,
                    const std::vector<std::vector<std::string>>& order,
                    Catalog& catalog, const formats::ReadOptions& options) {
  const Grid grid = scan_grid(directory);
  const Topology& model_grid = catalog.topology;
  if (grid.pp() != model_grid.pp || grid.tp() != model_grid.tp ||
      grid.dp() != model_grid.dp)
    throw input_error({directory, {}},
                      "files of pp={} tp={} dp={}, the model's are of pp={} "
                      "tp={} dp={}",
                      grid.pp(), grid.tp(), grid.dp(), model_grid.pp,
                      model_grid.tp, model_grid.dp)
        .with_hint(kWithoutOptimizer);

  std::unordered_map<std::string_view, const Tensor*> model;
  for (const Tensor& tensor : catalog.tensors)
    model.emplace(tensor.name, &tensor);
  std::vector<Tensor> added;
  NamedGroups groups;
  Loader loader(catalog);
  StageState stage;
  const auto finish = [&](uint32_t pp) {
    const std::string& path = grid.files[pp][0][0];
    const auto names =
        name_numbers(stage.groups, parameters(order[pp], grid.tp(), model),
                     signatures(stage, grid.dp()), path);
    groups.add(stage, names, path);
    for (auto& [number, states] : stage.states) {
      if (number >= names.size())
        throw input_error({path, {}}, "state of parameter {} of {}", number,
                          names.size());
      for (const State& state : states)
        added.push_back(join_state(catalog, *model.at(names[number]), state));
      std::vector<State>().swap(states);
    }
    for (const auto& value : loader.values) {
      if (value.number < names.size())
        catalog.objects.push_back(
            {kStatePrefix + names[value.number] + "." + value.state,
             value.document, value.node});
    }
    loader.values.clear();
    stage = {};
  };
  const std::vector<RankFile> ranks = rank_files(grid);
  if (ranks.size() >= torch::kManyFiles) torch::check_headers_later(catalog);
  Files files(ranks.size(), options);
  in_order<Files::One>(
      ranks.size(), [&](size_t i) { return files.open(*ranks[i].path, load); },
      [&](size_t i, Files::One file) {
        loader.take(file, ranks[i], stage);
        if (i + 1 == ranks.size() || ranks[i + 1].pp != ranks[i].pp)
          finish(ranks[i].pp);
      });
  catalog.objects.push_back(groups.object());
  if (!loader.mesh_device.empty())
    catalog.objects.push_back(text_object(kDeviceObject, loader.mesh_device));
  for (Tensor& tensor : added) catalog.tensors.push_back(std::move(tensor));
}

}  // namespace ckpt::fairseq2
