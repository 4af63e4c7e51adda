// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/states.h"

#include <fmt/ranges.h>

#include <unordered_map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/megatron/legacy/names.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

// The names of the main weights in files, old and new.
constexpr const char* kMainLists[] = {"fp32_from_fp16_params",
                                      "fp32_from_fp16"};

template <class T, class F>
std::string sizes_of(const std::vector<T>& lists, F size) {
  std::vector<uint64_t> sizes;
  for (const T& list : lists) sizes.push_back(size(list));
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

// Reads optimizers that number their parameters.
class PlainReader {
 public:
  PlainReader(const LegacyRank& rank, LegacyStates& out, Catalog& catalog)
      : rank_(rank), document_(rank.document()), out_(out), catalog_(catalog) {}

  void read(Id optimizer, const std::vector<LegacyParam>& params) {
    const Id inner = inner_optimizer(document_, optimizer);
    const Id states = document_.find(inner, "state");
    const Id groups = document_.find(inner, "param_groups");
    const auto entries = document_.as_pairs(states);
    if (!entries || !document_.is(groups, Type::kList)) return;
    if (entries->empty() && main_lists(optimizer) == kNoId) return;
    out_.form = LegacyStates::Form::kPlain;
    std::unordered_map<int64_t, Id> by_id;
    for (size_t i = 0; i < entries->size(); i += 2)
      if (const auto id = document_.as_int((*entries)[i]))
        by_id[*id] = (*entries)[i + 1];
    read_groups_of(groups, main_lists(optimizer), params, by_id);
  }

 private:
  Id main_lists(Id optimizer) const {
    for (const char* key : kMainLists)
      if (const Id list = document_.find(optimizer, key);
          document_.is(list, Type::kList))
        return list;
    return kNoId;
  }

  // The numbers that a group lists.
  std::vector<int64_t> ids_of(Id group) const {
    std::vector<int64_t> ids;
    const Id list = document_.find(group, "params");
    if (!document_.is(list, Type::kList)) return ids;
    for (const Id item : document_.items(list)) {
      const auto id = document_.as_int(item);
      if (!id)
        throw input_error({rank_.file.path, {}},
                          "a parameter group lists something that is not a "
                          "number");
      ids.push_back(*id);
    }
    return ids;
  }

  void read_groups_of(Id groups, Id mains,
                      const std::vector<LegacyParam>& params,
                      const std::unordered_map<int64_t, Id>& by_id) {
    GroupRules rules = read_groups(document_, groups);
    const Id qk = document_.find(args_dict(document_, rank_.find("args")),
                                 "apply_wd_to_qk_layernorm");
    rules.decay_qk_norms =
        document_.is(qk, Type::kBool) && document_.boolean(qk);
    const auto members = split_groups(params, rules);
    std::vector<std::vector<int64_t>> ids;
    for (const Id group : document_.items(groups)) ids.push_back(ids_of(group));
    size_t placed = 0;
    bool same = true;
    for (size_t g = 0; g < ids.size(); ++g) {
      placed += members[g].size();
      same = same && ids[g].size() == members[g].size();
    }
    if (!same || placed != params.size())
      throw input_error(
          {rank_.file.path, {}},
          "the optimizer's groups have {} parameters, those of the model "
          "make groups of {} ({} in all)",
          sizes_of(ids, [](const auto& list) { return list.size(); }),
          sizes_of(members, [](const auto& list) { return list.size(); }),
          params.size())
          .with_hint(
              "which number is which parameter can't be told: were some "
              "frozen, or given learning rates of their own?");
    for (size_t g = 0; g < ids.size(); ++g) {
      for (size_t i = 0; i < ids[g].size(); ++i)
        if (const auto at = by_id.find(ids[g][i]); at != by_id.end())
          add_states(members[g][i], at->second);
      if (mains != kNoId) add_mains(mains, g, members[g]);
    }
  }

  void add(const LegacyParam& param, std::string state, Id node) {
    const auto ref = torch::as_tensor(document_, node, rank_.file.storages,
                                      state + "." + param.name);
    if (!ref) return tell_value(param, state, node);
    LocalState found{.chunk = param.chunk,
                     .entry = param.index,
                     .state = std::move(state),
                     .tensor = local_tensor(*ref),
                     .whole = false};
    if (ref->shape != param.shape) {
      found.whole = element_count(ref->shape) == 1;
      if (!found.whole)
        throw input_error({rank_.file.path, found.state + "." + param.name},
                          "has shape {}, its parameter has {}",
                          to_string(ref->shape), to_string(param.shape))
            .with_hint("are the parameters in another order than the names?");
    }
    out_.states.push_back(std::move(found));
  }

  void add_states(const LegacyParam& param, Id node) {
    const auto pairs = document_.as_pairs(node);
    if (!pairs)
      throw input_error({rank_.file.path, param.name},
                        "the optimizer's state is not a dict");
    for (size_t i = 0; i < pairs->size(); i += 2)
      if (document_.is((*pairs)[i], Type::kString))
        add(param, std::string(document_.text((*pairs)[i])), (*pairs)[i + 1]);
  }

  // Main weights stand for the 16-bit parameters of each group.
  void add_mains(Id mains, size_t group,
                 const std::vector<LegacyParam>& members) {
    const auto lists = document_.items(mains);
    const Id list = group < lists.size() ? lists[group] : kNoId;
    std::vector<LegacyParam> rounded;
    for (const LegacyParam& param : members)
      if (element_size(param.dtype) == 2) rounded.push_back(param);
    const auto items = document_.is(list, Type::kList) ? document_.items(list)
                                                       : std::span<const Id>{};
    if (items.size() != rounded.size())
      throw input_error({rank_.file.path, {}},
                        "{} main weights in group {}, which has {} 16-bit "
                        "parameters",
                        items.size(), group, rounded.size());
    for (size_t i = 0; i < rounded.size(); ++i)
      add(rounded[i], "fp32_param", items[i]);
  }

  // A count of steps as a plain number (torch before 1.12).
  void tell_value(const LegacyParam& param, const std::string& state, Id node) {
    if (document_.is(node, Type::kNone) || told_) return;
    told_ = true;
    catalog_.problems.push_back(
        warning("optimizer_value", {rank_.file.path, param.name},
                "the optimizer's state \"{}\" is not a tensor; skipped, here "
                "and of other parameters",
                printable(state)));
  }

  const LegacyRank& rank_;
  const Document& document_;
  LegacyStates& out_;
  Catalog& catalog_;
  bool told_ = false;
};

}  // namespace

void tell_unread(Catalog& catalog, const std::string& path,
                 const std::string& what) {
  for (const Problem& problem : catalog.problems)
    if (problem.kind == "optimizer_unread" && problem.message == what) return;
  catalog.problems.push_back(
      warning("optimizer_unread", {path, {}}, "{}", what));
}

std::vector<std::vector<LegacyParam>> split_or_throw(
    const std::vector<LegacyParam>& params, size_t count,
    const LegacyRank& rank, const std::string& path) {
  auto split = split_optimizers(params, count, rank.chunks.size());
  if (!split)
    throw input_error({path, {}},
                      "{} optimizers for {} state dicts: which parameters "
                      "are whose can't be told",
                      count, rank.chunks.size());
  return std::move(*split);
}

std::vector<LegacyParam> legacy_params(const LegacyRank& rank, bool tied) {
  std::vector<LegacyParam> params;
  for (uint32_t c = 0; c < rank.chunks.size(); ++c) {
    for (size_t i = 0; i < rank.chunks[c].size(); ++i) {
      const LegacyEntry& entry = rank.chunks[c][i];
      if (!entry.tensor || is_legacy_buffer(entry.name)) continue;
      LegacyParam param{.name = entry.name,
                        .chunk = c,
                        .index = i,
                        .dtype = entry.tensor->dtype,
                        .shape = entry.tensor->shape,
                        .numel = element_count(entry.tensor->shape).value_or(0),
                        .expert = parse_legacy_name(entry.name).is_expert,
                        .shared = false};
      param.shared = tied && rank.facts.pp.value_or(1) > 1 &&
                     (is_word_embedding(param.name) ||
                      embedding_of_copy(param.name).has_value());
      params.push_back(std::move(param));
    }
  }
  return params;
}

LegacyStates read_legacy_states(const LegacyRank& rank, bool tied,
                                Catalog& catalog,
                                const formats::ReadOptions& options) {
  LegacyStates out;
  const std::vector<LegacyParam> params = legacy_params(rank, tied);
  if (!rank.dir.optimizer_file.empty()) {
    read_flat_states(rank, params, catalog, options, out);
    return out;
  }
  const Document& document = rank.document();
  const Id optimizer = rank.find("optimizer");
  if (optimizer == kNoId || document.is(optimizer, Type::kNone)) return out;
  const auto subs = optimizers_in(document, optimizer);
  const auto split = split_or_throw(params, subs.size(), rank, rank.file.path);
  PlainReader reader(rank, out, catalog);
  for (size_t i = 0; i < subs.size(); ++i) reader.read(subs[i], split[i]);
  if (out.form == LegacyStates::Form::kNone &&
      rank.facts.distributed_optimizer.value_or(false))
    tell_unread(catalog, rank.dir.path,
                "no distrib_optim.pt: weights are read, there is no "
                "optimizer's state");
  return out;
}

}  // namespace ckpt::megatron
