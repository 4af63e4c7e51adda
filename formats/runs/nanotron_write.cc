// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/nanotron_write.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "containers/safetensors/file_plan.h"
#include "containers/torch/file_plan.h"
#include "formats/target.h"
#include "formats/torch/torch.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs::nanotron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using text::printable;

constexpr const char* kKeeps =
    "--to safetensors or dcp keeps model and optimizer by name";

class Writing {
 public:
  Writing(const std::string& folder, const Catalog& catalog,
          const Topology& topology)
      : folder_(folder),
        step_(read(folder, {})),
        ranks_(folder, step_, topology) {
    for (const Problem& problem : step_.catalog.problems)
      if (problem.kind == "unread_file")
        throw unfaithful_error({problem.file, {}},
                               "is not a parameter that is known: the step "
                               "would be written without it");
    for (size_t t = 0; t < catalog.tensors.size(); ++t)
      index_.emplace(catalog.tensors[t].name, t);
    target_.catalog = formats::catalog_like(catalog, "safetensors");
  }

  Target build() {
    for (const auto& [name, weight] : step_.weights) add_weight(weight);
    const auto stages = step_.ranks.find("P");
    if (stages != step_.ranks.end())
      for (uint64_t stage = 0; stage < stages->second; ++stage)
        add_stage(stage);
    add_beside(folder_, step_, ranks_, target_);
    return std::move(target_);
  }

 private:
  Tensor& target_of(const std::string& name) {
    const auto found = index_.find(name);
    if (found == index_.end())
      throw bug_error({folder_, printable(name)}, "is not in the catalog");
    return target_.catalog.tensors[found->second];
  }

  uint32_t add_file(TargetFile file) {
    target_.catalog.files.push_back(
        {.path = file.path, .size = file.size, .fill = {}});
    target_.files.push_back(std::move(file));
    return static_cast<uint32_t>(target_.files.size() - 1);
  }

  void add_weight(const Weight& weight) {
    if (!weight.sharded)
      return add_part(weight, all_of(weight.tensor.shape),
                      weight.file + ".safetensors");
    for (uint64_t tp = 0; tp < ranks_.tp(); ++tp)
      add_part(
          weight, *ranks_.share(weight, tp),
          fmt::format("{}_pp-rank-{}-of-{}_tp-rank-{}-of-{}.safetensors",
                      weight.file, weight.stage, weight.pp, tp, ranks_.tp()));
  }

  void add_part(const Weight& weight, const Share& share, std::string path) {
    Tensor& tensor = target_of(weight.tensor.name);
    auto metadata = weight.metadata;
    if (metadata && weight.sharded)
      for (auto& [key, value] : *metadata)
        if (key == "local_global_slices_pairs") value = to_text(share.slices);
    Tensor part{.name = "data", .dtype = tensor.dtype, .shape = share.shape};
    const auto described = safetensors::describe(part);
    const std::string header =
        safetensors::encode_header(std::span(&described, 1), metadata);
    const uint64_t begin = header.size();
    TargetFile file;
    file.path = std::move(path);
    file.size = begin + described.bytes;
    file.literals = {{0, header}};
    const Piece stored{
        .box = Box::whole(share.shape),
        .flat = std::nullopt,
        .extent = {
            .offset = begin, .strides = {}, .file = add_file(std::move(file))}};
    add_pieces(share, stored, tensor.dtype, tensor.pieces);
  }

  // The optimizer's files of a pipeline stage. Rank 0's has all parameters.
  void add_stage(uint64_t stage) {
    Numbers numbers = step_.ranks;
    numbers["p"] = stage;
    for (const char* rank : {"t", "d", "x"}) numbers[rank] = 0;
    const std::string path = io::join(folder_, fill(step_.pattern, numbers));
    const Catalog first = torch::make_reader()->read_catalog(path, {});
    if (!first.skeleton || !first.skeleton->document)
      throw unfaithful_error({path, {}}, "has no nesting to be written again");
    const auto names = names_of(first, path);
    const bool zero = numbers.contains("D");
    numbers["T"] = ranks_.tp();
    if (zero) numbers["D"] = ranks_.dp();
    for (uint64_t tp = 0; tp < ranks_.tp(); ++tp)
      for (uint64_t dp = 0; dp < (zero ? ranks_.dp() : 1); ++dp) {
        numbers["t"] = tp;
        numbers["d"] = dp;
        add_states(
            {first, names, path, fill(step_.pattern, numbers), tp, dp, zero});
      }
  }

  // One file of the target, and the source's of which it has the nesting.
  struct Optimizer {
    const Catalog& first;
    const std::map<uint64_t, std::string>& names;
    const std::string& path;
    std::string name;
    uint64_t tp = 0, dp = 0;
    bool zero = false;
  };

  // What the rank's optimizer has of a parameter; nothing: it lacks it.
  struct Held {
    Share share;
    MaybeFlat run;
  };
  std::optional<Held> held_by(const Optimizer& one,
                              const std::string& param) const {
    const auto share = ranks_.share(ranks_.weight(param), one.tp);
    if (!share) return std::nullopt;
    Held held{*share, std::nullopt};
    if (!one.zero) return held;
    const uint64_t elements = element_count(share->shape).value_or(0);
    const FlatRange run = zero_run(elements, one.dp, ranks_.dp());
    if (run.begin == run.end) return std::nullopt;
    held.run = run;
    return held;
  }

  struct Place {
    std::string tensor;
    std::optional<Held> held;  // nothing: a scalar, the same for all
  };

  void add_states(const Optimizer& one) {
    Document document;
    std::unordered_map<Id, Id> substitutes;
    std::vector<torch::TensorSlot> slots;
    std::vector<Place> places;
    std::map<std::string_view, const Tensor*> stored;
    for (const Tensor& tensor : one.first.tensors)
      stored.emplace(tensor.name, &tensor);
    for (const auto& [node, name] : one.first.skeleton->tensors) {
      const Tensor& tensor = *stored.at(name);
      const auto state = state_of(tensor, one.names);
      if (!state) refuse(one, name);
      const auto held = held_by(one, state->param);
      if (!held) continue;
      const bool scalar = tensor.shape.empty();
      Shape shape;
      if (!scalar && held->run)
        shape = {held->run->end - held->run->begin};
      else if (!scalar)
        shape = held->share.shape;
      slots.push_back({.dtype = tensor.dtype, .shape = shape});
      substitutes[node] = torch::add_placeholder(document, slots.size() - 1);
      places.push_back(
          {state->param + "." + state->state, scalar ? std::nullopt : held});
    }
    if (!one.first.skeleton->storages.empty()) refuse(one, "a value");
    const Id root = nesting(one, document, substitutes);
    torch::FilePlan plan = torch::plan_file(document, root, slots,
                                            torch::archive_root_of(one.name));
    plan.file.path = one.name;
    const uint32_t file = add_file(std::move(plan.file));
    for (size_t i = 0; i < places.size(); ++i) {
      Tensor& tensor = target_of(places[i].tensor);
      const Piece piece{
          .box = Box::whole(tensor.shape),
          .flat = std::nullopt,
          .extent = {
              .offset = plan.data_offsets[i], .strides = {}, .file = file}};
      if (!places[i].held)
        tensor.pieces.push_back(piece);
      else if (places[i].held->run)
        add_run(places[i].held->share, *places[i].held->run, piece,
                tensor.dtype, tensor.pieces);
      else
        add_pieces(places[i].held->share, piece, tensor.dtype, tensor.pieces);
    }
  }

  [[noreturn]] static void refuse(const Optimizer& one,
                                  const std::string& name) {
    throw unfaithful_error({one.path, printable(name)},
                           "is no parameter's: what it is on other ranks is "
                           "not known")
        .with_hint(kKeeps);
  }

  // The rank's own numbers: those of its groups, without what it lacks.
  std::map<int64_t, int64_t> numbers_of(const Optimizer& one) const {
    std::map<int64_t, int64_t> numbers;
    const Document& from = *one.first.skeleton->document;
    const Id groups = from.find(one.first.skeleton->root, "param_groups");
    if (!from.is(groups, Type::kList))
      throw unfaithful_error({one.path, {}}, "has no list of groups");
    for (const Id group : from.items(groups)) {
      const Id params = from.find(group, "params");
      if (!from.is(params, Type::kList)) continue;
      for (const Id item : from.items(params)) {
        const auto number = from.as_int(item);
        if (!number) continue;
        const auto name = one.names.find(static_cast<uint64_t>(*number));
        if (name != one.names.end() && !held_by(one, name->second)) continue;
        numbers.emplace(*number, static_cast<int64_t>(numbers.size()));
      }
    }
    return numbers;
  }

  // {"state": {0: …}, "param_groups": […], "names": {0: …},
  //  "gradient_accumulator": {"model.…": …}}
  Id nesting(const Optimizer& one, Document& document,
             const std::unordered_map<Id, Id>& substitutes) const {
    const Document& from = *one.first.skeleton->document;
    const auto numbers = numbers_of(one);
    const auto import = [&](Id id) {
      return document.import(from, id, substitutes);
    };
    // A dict by number or by name, without what the rank lacks.
    const auto kept = [&](Id dict) {
      const Id made = document.add_container(Type::kDict);
      const auto pairs = from.as_pairs(dict);
      for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
        const Id key = (*pairs)[i];
        Id mine = pickle::kNoId;
        if (const auto number = from.as_int(key)) {
          const auto found = numbers.find(*number);
          if (found != numbers.end()) mine = document.add_int(found->second);
        } else if (from.is(key, Type::kString) &&
                   held_by(one, std::string(from.text(key)))) {
          mine = document.add_string(from.text(key));
        }
        if (mine != pickle::kNoId)
          document.set(made, mine, import((*pairs)[i + 1]));
      }
      return made;
    };
    const Id root = document.add_container(Type::kDict);
    const auto pairs = from.as_pairs(one.first.skeleton->root);
    for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
      const Id key = (*pairs)[i], value = (*pairs)[i + 1];
      const std::string_view word =
          from.is(key, Type::kString) ? from.text(key) : "";
      Id made;
      if (word == "state" || word == "names" ||
          (word == "gradient_accumulator" && from.as_pairs(value)))
        made = kept(value);
      else if (word == "param_groups")
        made = groups(from, value, document, numbers, substitutes);
      else
        made = import(value);
      document.set(root, import(key), made);
    }
    return root;
  }

  static Id groups(const Document& from, Id list, Document& document,
                   const std::map<int64_t, int64_t>& numbers,
                   const std::unordered_map<Id, Id>& substitutes) {
    const Id made = document.add_container(Type::kList);
    for (const Id group : from.items(list)) {
      const Id dict = document.add_container(Type::kDict);
      const auto pairs = from.as_pairs(group);
      for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
        const Id key = (*pairs)[i], value = (*pairs)[i + 1];
        Id mine = pickle::kNoId;
        if (from.is(key, Type::kString) && from.text(key) == "params" &&
            from.is(value, Type::kList)) {
          mine = document.add_container(Type::kList);
          for (const Id item : from.items(value)) {
            const auto number = from.as_int(item);
            const auto found = number ? numbers.find(*number) : numbers.end();
            if (found != numbers.end())
              document.append(mine, document.add_int(found->second));
          }
        } else {
          mine = document.import(from, value, substitutes);
        }
        document.set(dict, document.import(from, key, substitutes), mine);
      }
      document.append(made, dict);
    }
    return made;
  }

  const std::string folder_;
  const Step step_;
  const Ranks ranks_;
  std::unordered_map<std::string_view, size_t> index_;
  Target target_;
};

}  // namespace

Ranks::Ranks(const std::string& folder, const Step& step,
             const Topology& topology)
    : folder_(folder), step_(step), tp_(topology.tp), dp_(topology.dp) {
  for (const auto& [name, weight] : step.weights) {
    if (!weight.sharded) continue;
    const auto cut = find_cut(weight.tensor.shape, weight.shares);
    if (!cut)
      throw unfaithful_error({io::join(folder, weight.file), printable(name)},
                             "is cut in a way that no layer of nanotron cuts")
          .with_hint(kKeeps);
    for (const uint64_t chunk : cut->chunks)
      if (chunk % tp_ != 0)
        throw unfaithful_error(
            {io::join(folder, weight.file), printable(name)},
            "dimension {} has {} of {}, which do not divide into {}", cut->dim,
            cut->chunks.size() == 1 ? "a length" : "a chunk", chunk,
            text::counted(tp_, "rank"))
            .with_hint("--tp takes a divisor of it");
    cuts_.emplace(name, *cut);
  }
}

std::optional<Share> Ranks::share(const Weight& weight, uint64_t tp) const {
  const auto cut = cuts_.find(weight.tensor.name);
  if (cut != cuts_.end())
    return share_of(cut->second, weight.tensor.shape, tp, tp_);
  if (tp > 0 && of_first_alone(weight)) return std::nullopt;
  return all_of(weight.tensor.shape);
}

const Weight& Ranks::weight(const std::string& name) const {
  const auto found = step_.weights.find(name);
  if (found == step_.weights.end())
    throw unfaithful_error({folder_, printable(name)},
                           "is in the optimizer, and not in model/");
  return found->second;
}

bool Ranks::of_first_alone(const Weight& weight) const {
  constexpr std::string_view kBias = "bias";
  std::string name = weight.tensor.name;
  if (!name.ends_with("." + std::string(kBias))) return false;
  name.replace(name.size() - kBias.size(), kBias.size(), "weight");
  const auto cut = cuts_.find(name);
  return cut != cuts_.end() && cut->second.dim == 1;
}

Target lay_out(const std::string& folder, const Catalog& catalog,
               const Topology& topology) {
  return Writing(folder, catalog, topology).build();
}

}  // namespace ckpt::runs::nanotron
