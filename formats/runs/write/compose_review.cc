// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/find/trainer.h"
#include "formats/runs/models/own_names.h"
#include "formats/runs/models/titan.h"
#include "formats/runs/nanotron/nanotron.h"
#include "formats/runs/ranks/grid.h"
#include "formats/runs/read/run.h"
#include "formats/runs/write/compose.h"
#include "formats/runs/write/forms.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/other_json.h"
#include "models/view.h"

namespace ckpt::runs {
namespace {

using text::printable;

// A dialect of the model's names.
constexpr std::string_view kTorchtitan = "torchtitan";

// If a step has two models, their names begin with their roles.
void check_one_model(const Catalog& source) {
  std::set<std::string_view> first;
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::model)
      first.insert(
          std::string_view(tensor.name).substr(0, tensor.name.find('.')));
  if (!source.run || first.size() < 2) return;
  const Trainer& trainer = find_trainer(source.run->trainer);
  std::string roles;
  for (const std::string_view word : first) {
    std::string role(word);
    if (role.starts_with("model_") ||
        std::ranges::find(trainer.roles, role) != trainer.roles.end() ||
        std::ranges::find(trainer.roles, "_" + role) != trainer.roles.end())
      roles += (roles.empty() ? "" : ", ") + role;
  }
  if (roles.empty()) return;
  throw unfaithful_error({source.path, {}},
                         "a step of several models ({}): a step of one is "
                         "written",
                         roles)
      .with_hint("name the folder of the one that you mean");
}

// Without the model's numbers the names stay as they are, for a module that
// uses them.
void leave_own_names(Catalog& source) {
  if (has_nanotron_names(source)) {
    try {
      return from_nanotron(source);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUnfaithful) throw;
      source.problems.push_back(warning("names", error.where(),
                                        "names stay nanotron's: {}",
                                        error.problem()));
      return;
    }
  }
  const bool known =
      std::ranges::any_of(source.sidecars, [](const Sidecar& sidecar) {
        return io::base_name(sidecar.name) == "config.json";
      });
  if (known) {
    check_trained(source);
    return from_titan(source);
  }
  source.problems.push_back(warning(
      "names", {source.path, {}},
      "names stay torchtitan's: no config.json says the numbers of heads; "
      "--config-from DIR does, for transformers' names"));
}

bool says_tied(const Catalog& source) {
  constexpr uint64_t kMaxConfig = 64 << 20;
  for (const Sidecar& sidecar : source.sidecars) {
    if (io::base_name(sidecar.name) != "config.json") continue;
    const auto config = text::parse_or_discard(
        sidecar.text ? *sidecar.text : io::read_file(sidecar.path, kMaxConfig));
    if (config.is_object() && config.contains("tie_word_embeddings"))
      return config["tie_word_embeddings"] == true;
  }
  return false;
}

// FSDP's state dicts have a tied output layer under both names, and its
// optimizer has it under the first. transformers' files have it once; DCP
// stores it twice, and then only the optimizer (and the bytes) show that it is
// tied.
void settle_tied_head(Catalog& source, const Layout& layout) {
  constexpr std::string_view kHead = "lm_head.weight";
  constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
  const Form& form = find_form(layout, trainer_in(source));
  if (!form.is_state_dict()) return;
  const auto embedding =
      std::ranges::find(source.tensors, kEmbedding, &Tensor::name);
  if (embedding == source.tensors.end()) return;
  const auto head = std::ranges::find(source.tensors, kHead, &Tensor::name);
  if (head == source.tensors.end()) {
    if (!says_tied(source)) return;
    Tensor copy = *embedding;
    copy.name = kHead;
    source.tensors.push_back(std::move(copy));
    return;
  }
  const auto trained = [&](std::string_view name) {
    return std::ranges::any_of(source.tensors, [&](const Tensor& tensor) {
      return tensor.kind == Kind::optim && tensor.param == name;
    });
  };
  if (!form.rank_files || head->shape != embedding->shape ||
      head->dtype != embedding->dtype || trained(kHead) || !trained(kEmbedding))
    return;
  source.redundant.push_back(
      {*head,
       {},
       *embedding,
       "the optimizer has the one and not the other: they are tied"});
  head->pieces = embedding->pieces;
}

// What transformers 5 trains instead of each expert's weights, and FSDP saves:
// [experts, 2 * width, hidden] and [experts, hidden, width].
struct Experts {
  std::map<uint64_t, size_t> gate, up, down;  // expert -> its tensor
};

std::map<std::string, Experts> find_experts(const Catalog& source) {
  std::map<std::string, Experts> layers;
  constexpr std::string_view kWord = ".experts.";
  for (size_t t = 0; t < source.tensors.size(); ++t) {
    const Tensor& tensor = source.tensors[t];
    const size_t at = tensor.name.find(kWord);
    if (tensor.kind != Kind::model || at == tensor.name.npos) continue;
    const size_t begin = at + kWord.size();
    const size_t dot = tensor.name.find('.', begin);
    if (dot == tensor.name.npos) continue;
    const auto number = whole_number(tensor.name.substr(begin, dot - begin));
    const std::string rest = tensor.name.substr(dot + 1);
    Experts& one = layers[tensor.name.substr(0, begin)];
    if (!number) continue;
    if (rest == "gate_proj.weight") one.gate[*number] = t;
    if (rest == "up_proj.weight") one.up[*number] = t;
    if (rest == "down_proj.weight") one.down[*number] = t;
  }
  return layers;
}

// Only transformers saves experts one by one: a state dict has what is trained,
// as the optimizer shows.
void fuse_trained_experts(Catalog& source, const Layout& layout) {
  const Form& form = find_form(layout, trainer_in(source));
  if (!form.is_state_dict()) return;
  std::set<std::string_view> trained;
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::optim) trained.insert(tensor.param);
  std::vector<Tensor> made;
  std::set<size_t> used;
  for (const auto& [stem, one] : find_experts(source)) {
    const size_t count = one.gate.size();
    if (!trained.contains(stem + "gate_up_proj") || count == 0) continue;
    if (one.up.size() != count || one.down.size() != count ||
        one.gate.rbegin()->first + 1 != count ||
        one.up.rbegin()->first + 1 != count ||
        one.down.rbegin()->first + 1 != count)
      throw unfaithful_error({source.path, printable(stem)},
                             "has {} gates, {} ups and {} downs of experts, "
                             "which are trained as one parameter",
                             count, one.up.size(), one.down.size());
    std::vector<families::View> rows, columns;
    for (const auto& [number, gate] : one.gate) {
      const families::View both[] = {
          families::View::of(source.tensors[gate]),
          families::View::of(source.tensors[one.up.at(number)])};
      rows.push_back(families::View::concat(both, 0));
      columns.push_back(
          families::View::of(source.tensors[one.down.at(number)]));
      used.insert({gate, one.up.at(number), one.down.at(number)});
    }
    families::View::stack(rows).into(
        made.emplace_back(Tensor{.name = stem + "gate_up_proj"}));
    families::View::stack(columns).into(
        made.emplace_back(Tensor{.name = stem + "down_proj"}));
  }
  if (made.empty()) return;
  std::vector<Tensor> kept;
  for (size_t t = 0; t < source.tensors.size(); ++t)
    if (!used.contains(t)) kept.push_back(std::move(source.tensors[t]));
  std::ranges::move(made, std::back_inserter(kept));
  source.tensors = std::move(kept);
  source.assumptions.push_back(
      fmt::format("experts: {} saves what is trained, all experts in one",
                  layout.option(kTrainer)));
}

// nanotron steps f32 masters, of which its 16-bit weights are the roundings:
// who goes on without masters of its own goes on from these.
void take_masters(Catalog& source) {
  std::map<std::string_view, Tensor*> masters;
  for (Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::optim && tensor.state == nanotron::kMaster)
      masters.emplace(tensor.param, &tensor);
  if (masters.empty()) return;
  for (Tensor& tensor : source.tensors) {
    const auto found = masters.find(tensor.name);
    if (tensor.kind != Kind::model || found == masters.end()) continue;
    if (tensor.shape != found->second->shape)
      throw unfaithful_error(
          {source.path, printable(tensor.name)}, "has shape {}, its master {}",
          to_string(tensor.shape), to_string(found->second->shape));
    tensor.dtype = found->second->dtype;
    tensor.pieces = found->second->pieces;
  }
  source.assumptions.push_back(
      fmt::format("the model is what the optimizer steps: {}",
                  text::counted(masters.size(), "f32 master")));
  std::erase_if(source.tensors, [](const Tensor& tensor) {
    return tensor.kind == Kind::optim && tensor.state == nanotron::kMaster;
  });
}

}  // namespace

bool is_composed(const Catalog& source, const Layout& layout) {
  const std::string trainer = layout.option(kTrainer);
  if (trainer.empty()) return false;
  if (trainer != trainer_in(source)) return true;
  // torchtitan's step for another fuse_qkv.
  if (find_trainer(trainer).writes.names == kTorchtitan &&
      !layout.option(kFuseQkv).empty())
    return true;
  // Lightning's folder as its file, or the file as a folder.
  return has_one_file(trainer) &&
         io::is_file(source.path) != wants_one_file(layout);
}

Catalog review_composed(Catalog source, const Layout& layout) {
  const Topology& asked = layout.topology;
  find_form(layout, trainer_in(source));
  if (asked.tp != 1 || asked.pp != 1 || asked.ep != 1)
    throw unfaithful_error({source.path, {}},
                           "steps of {} are sharded over data-parallel ranks "
                           "alone: {} is impossible",
                           layout.option(kTrainer), to_string(asked))
        .with_hint("--dp N sets the number of ranks");
  if (!layout.option(kFsdpSize).empty())
    throw unfaithful_error({source.path, {}},
                           "--{}: other trainers' steps are written for a mesh "
                           "of one dimension",
                           kFsdpSize)
        .with_hint("leave it out, then ckpt reshard the new step with it");
  const bool titan =
      find_trainer(layout.option(kTrainer)).writes.names == kTorchtitan;
  const std::string fuse = layout.option(kFuseQkv);
  if (!titan && !fuse.empty())
    throw unfaithful_error({source.path, {}},
                           "--{}: a step of {} has the projections apart",
                           kFuseQkv, layout.option(kTrainer))
        .with_hint("leave it out");
  load_objects(source);
  check_one_model(source);
  locate(source);
  if (trainer_in(source) == "nanotron") take_masters(source);
  const std::string_view owner = owner_of_names(source);
  if (!owner.empty() && !(titan && owner == kTorchtitan && fuse.empty()))
    leave_own_names(source);
  settle_tied_head(source, layout);
  fuse_trained_experts(source, layout);
  if (titan && has_transformers_names(source))
    to_titan(source, fuse != "false");
  else if (!fuse.empty())
    throw unfaithful_error({source.path, {}},
                           "--{}: names are not those of transformers, so "
                           "projections can't be arranged",
                           kFuseQkv)
        .with_hint(
            "--config-from DIR names a folder with the model's "
            "config.json");
  std::string left;
  size_t count = 0;
  std::erase_if(source.tensors, [&](const Tensor& tensor) {
    if (tensor.kind != Kind::other) return false;
    if (count++ == 0) left = printable(tensor.name);
    return true;
  });
  if (count)
    source.problems.push_back(
        warning("tensors_left_out", {source.path, left},
                "{} of neither model nor optimizer: {} has no place for "
                "them",
                text::counted(count, "tensor"), layout.option(kTrainer)));
  return source;
}

}  // namespace ckpt::runs
