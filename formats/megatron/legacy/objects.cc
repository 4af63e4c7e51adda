// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/objects.h"

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/file_plan.h"
#include "containers/torch/item.h"
#include "formats/megatron/legacy/names.h"
#include "lib/pickle/parts.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

constexpr uint64_t kMaxInline = uint64_t{64} << 20;  // of one value

// Copies values out of a rank's file, with the content of storages.
class Importer {
 public:
  Importer(const LegacyRank& rank, Catalog& catalog)
      : rank_(rank), catalog_(catalog) {}

  // Nothing if it is too large to be carried like this.
  std::optional<Id> import(Document& to, Id node,
                           std::unordered_map<Id, Id> substitutes = {}) {
    uint64_t bytes = 0;
    for (const Id storage : pickle::storages_below(rank_.document(), node)) {
      if (substitutes.contains(storage)) continue;
      const torch::StorageUse* use = rank_.file.storages.find(storage);
      if (!use || rank_.file.storages.big_endian) return std::nullopt;
      bytes += std::min(use->bytes, kMaxInline + 1);
      if (bytes > kMaxInline) return std::nullopt;
      substitutes[storage] = torch::add_inline_storage(
          to, use->dtype.value_or(DType::u8),
          torch::storage_content(catalog_, rank_.file, storage));
    }
    return to.import(rank_.document(), node, substitutes);
  }

 private:
  const LegacyRank& rank_;
  Catalog& catalog_;
};

void add_object(const LegacyRank& rank, std::string name, Id node,
                Catalog& catalog) {
  if (pickle::storages_below(rank.document(), node).empty()) {
    catalog.objects.push_back({std::move(name), rank.file.document, node});
    return;
  }
  auto document = std::make_shared<Document>();
  const auto root = Importer(rank, catalog).import(*document, node);
  if (!root) {
    catalog.problems.push_back(warning(
        "large_value", {rank.file.path, name},
        "holds tensors that are too large to be carried as a value; it is "
        "left out"));
    return;
  }
  document->set_root(*root);
  catalog.objects.push_back({std::move(name), std::move(document), *root});
}

// Empties what optimizers keep for each parameter: it is already read as
// tensors.
void empty_states(const Document& from, Id optimizer, Document& to,
                  std::unordered_map<Id, Id>& substitutes) {
  const Id inner = inner_optimizer(from, optimizer);
  const Id state = from.find(inner, "state");
  if (from.is(state, Type::kDict))
    substitutes[state] = to.add_container(Type::kDict);
  for (const char* key : {"fp32_from_fp16_params", "fp32_from_fp16"})
    if (const Id list = from.find(optimizer, key); from.is(list, Type::kList))
      substitutes[list] = to.add_container(Type::kList);
  const Id groups = from.find(inner, "param_groups");
  if (!from.is(groups, Type::kList)) return;
  for (const Id group : from.items(groups))
    if (const Id params = from.find(group, "params");
        from.is(params, Type::kList))
      substitutes[params] = to.add_container(Type::kList);
}

// For finding the rank whose optimizer has the most groups: a rank without
// parameters of some kind may lack theirs.
size_t groups_in(const LegacyRank& rank) {
  size_t count = 0;
  const Document& document = rank.document();
  const Id node = rank.find("optimizer");
  if (node == kNoId) return 0;
  for (const Id optimizer : optimizers_in(document, node)) {
    const Id groups =
        document.find(inner_optimizer(document, optimizer), "param_groups");
    count += 1;
    if (document.is(groups, Type::kList))
      count += document.items(groups).size();
  }
  return count;
}

void add_optimizer(const std::vector<LegacyRank>& ranks, Catalog& catalog) {
  const auto& rank = *std::ranges::max_element(
      ranks, {}, [](const LegacyRank& r) { return groups_in(r); });
  const Id node = rank.find("optimizer");
  auto document = std::make_shared<Document>();
  std::unordered_map<Id, Id> substitutes;
  for (const Id optimizer : optimizers_in(rank.document(), node))
    empty_states(rank.document(), optimizer, *document, substitutes);
  const auto root =
      Importer(rank, catalog).import(*document, node, substitutes);
  if (!root) return;
  document->set_root(*root);
  catalog.objects.push_back(
      {std::string(kOptimizerObject), std::move(document), *root});
}

// True without FP8 scales: None, no bytes, or torch.save(None).
bool is_empty_state(const LegacyRank& rank, Id node) {
  const Document& document = rank.document();
  if (node == kNoId || document.is(node, Type::kNone)) return true;
  if (document.is_call(node, "_io", "BytesIO")) {
    const Id state = document.call(node).state;
    if (!document.is(state, Type::kTuple) || document.items(state).empty() ||
        !document.is(document.items(state)[0], Type::kBytes))
      return false;
    const std::string bytes(document.text(document.items(state)[0]));
    if (bytes.empty()) return true;
    try {
      const torch::Container inner =
          torch::open_item(io::Handle::of_memory(bytes, rank.file.path), 0, 0);
      return inner.document->is(inner.document->root(), Type::kNone);
    } catch (const Error&) {
      return false;
    }
  }
  const auto ref = torch::as_tensor(document, node, rank.file.storages);
  return ref && element_count(ref->shape) == 0;
}

// Adds the keys of the whole model, and the values that are not tensors.
void add_model(const std::vector<LegacyRank>& ranks,
               const std::vector<GlobalChunk>& order, Catalog& catalog) {
  auto document = std::make_shared<Document>();
  const Id root = document->add_container(Type::kList);
  for (const GlobalChunk& chunk : order) {
    std::vector<Id> entries;
    for (const GlobalEntry& entry : chunk) {
      std::vector<Id> path;
      for (const std::string& part : entry.path)
        path.push_back(document->add_string(part));
      const LegacyRank& rank = ranks[entry.rank];
      KeyKind kind = KeyKind::kTensor;
      std::optional<Id> value;
      if (!entry.tensor) {
        kind = is_extra_state(entry.name) && !is_empty_state(rank, entry.node)
                   ? KeyKind::kState
                   : KeyKind::kValue;
        if (kind == KeyKind::kValue)
          value = Importer(rank, catalog).import(*document, entry.node);
      }
      entries.push_back(document->add_container(
          Type::kTuple, {document->add_container(Type::kTuple, path),
                         document->add_int(static_cast<int64_t>(kind)),
                         value.value_or(document->add_none())}));
    }
    document->append(root, document->add_container(Type::kList, entries));
  }
  document->set_root(root);
  catalog.objects.push_back(
      {std::string(kModelObject), std::move(document), root});
}

// FP8 scales: they differ between ranks.
void add_states(const LegacyRank& rank, const LegacyNumbering& numbering,
                Catalog& catalog) {
  auto document = std::make_shared<Document>();
  const Id root = document->add_container(Type::kDict);
  Importer importer(rank, catalog);
  for (uint32_t v = 0; v < rank.chunks.size(); ++v)
    for (const LegacyEntry& entry : rank.chunks[v]) {
      if (entry.tensor || !is_extra_state(entry.name) ||
          is_empty_state(rank, entry.node))
        continue;
      const std::string name = numbering.global_name(rank.dir, v, entry.name);
      if (const auto value = importer.import(*document, entry.node))
        document->set(root, document->add_string(name), *value);
    }
  if (document->items(root).empty()) return;
  document->set_root(root);
  catalog.objects.push_back(
      {std::string(kStatesObject) + rank.dir.name, std::move(document), root});
}

void add_dtypes(const std::vector<std::pair<DType, DType>>& dtypes,
                Catalog& catalog) {
  auto document = std::make_shared<Document>();
  std::vector<Id> pairs;
  for (const auto& [param, grad] : dtypes)
    pairs.push_back(document->add_container(
        Type::kTuple, {torch::add_dtype(*document, param),
                       torch::add_dtype(*document, grad)}));
  const Id root = document->add_container(Type::kList, pairs);
  document->set_root(root);
  catalog.objects.push_back(
      {std::string(kDtypesObject), std::move(document), root});
}

}  // namespace

void add_legacy_objects(const std::vector<LegacyRank>& ranks,
                        const std::vector<GlobalChunk>& order,
                        const LegacyNumbering& numbering,
                        const std::vector<std::pair<DType, DType>>& dtypes,
                        Catalog& catalog) {
  const LegacyRank& first = ranks.front();
  const Document& document = first.document();
  bool model = false;
  const auto pairs = document.as_pairs(document.root());
  for (size_t i = 0; i < pairs->size(); i += 2) {
    if (!document.is((*pairs)[i], Type::kString)) {
      catalog.problems.push_back(
          warning("odd_key", {first.file.path, {}},
                  "a key of the file that is not text: its "
                  "value is left out"));
      continue;
    }
    const std::string key(document.text((*pairs)[i]));
    if (is_model_key(key)) {
      if (!model) add_model(ranks, order, catalog);
      model = true;
    } else if (key == kOptimizerObject) {
      add_optimizer(ranks, catalog);
    } else if (is_rank_key(key) && ranks.size() > 1) {
      for (const LegacyRank& rank : ranks)
        if (const Id node = rank.find(key); node != kNoId)
          add_object(rank, key + "." + rank.dir.name, node, catalog);
    } else {
      add_object(first, key, (*pairs)[i + 1], catalog);
    }
  }
  for (const LegacyRank& rank : ranks) add_states(rank, numbering, catalog);
  if (!dtypes.empty()) add_dtypes(dtypes, catalog);
}

}  // namespace ckpt::megatron
