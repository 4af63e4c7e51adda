// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/model.h"

#include <algorithm>
#include <map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/many.h"
#include "containers/torch/tensors.h"
#include "lib/pickle/value.h"

namespace ckpt::fairseq2 {
namespace {

using families::Rules;
using pickle::Document;
using pickle::Id;

// The state dict inside the wrapper of 0.3 and 0.4.
Id unwrap(const Document& doc, Id root, const std::string& path) {
  const Id key = doc.find(root, "model_key");
  const std::string name =
      doc.is(key, pickle::Type::kString) ? std::string(doc.text(key)) : "model";
  const Id state = doc.find(root, name);
  if (state != pickle::kNoId) return state;
  throw input_error({path, {}}, "\"{}\" with the model's state is missing",
                    name);
}

std::string key_name(const Document& doc, Id key, bool old,
                     const std::string& path) {
  if (!doc.is(key, pickle::Type::kString))
    throw input_error({path, {}}, "a key of type {}, expected strings",
                      name(doc.type(key)));
  std::string_view text = doc.text(key);
  while (old && text.starts_with("module.")) text.remove_prefix(7);
  return std::string(text);
}

// A file's content, with extents in its own catalog.
using Tensors = std::vector<std::pair<std::string, torch::TensorRef>>;
using Files = torch::ManyFiles<Tensors>;

Tensors load(const torch::Container& file, bool old) {
  const std::string& path = file.path;
  const Document& doc = *file.document;
  const Id root = old ? unwrap(doc, doc.root(), path) : doc.root();
  const auto pairs = doc.as_pairs(root);
  if (!pairs)
    throw input_error({path, {}}, "holds a {}, expected a dict of tensors",
                      name(doc.type(root)));
  Tensors tensors;
  tensors.reserve(pairs->size() / 2);
  for (size_t i = 0; i < pairs->size(); i += 2) {
    std::string key = key_name(doc, (*pairs)[i], old, path);
    const Id value = (*pairs)[i + 1];
    auto ref = torch::as_tensor(doc, value, file.storages, key);
    if (!ref)
      throw input_error({path, std::move(key)}, "a {}, expected a tensor",
                        name(doc.type(value)))
          .with_hint("fairseq2's model files hold tensors only");
    tensors.emplace_back(std::move(key), std::move(*ref));
  }
  return tensors;
}

using Index = std::unordered_map<std::string, size_t>;

// Puts the files of one stage together, by tp, then dp.
class StageBuilder {
 public:
  explicit StageBuilder(size_t files) : files_(files) {}

  // `first_file`: the new number of the file's own first one.
  void add(uint32_t tp, uint32_t dp, const std::string& path,
           const Tensors& tensors, uint32_t first_file) {
    next_ = 0;
    for (const auto& [name, ref] : tensors) {
      Key& key = key_of(name, tp, dp, path);
      if (key.parts.empty()) {
        key.storage = ref.storage;
        key.requires_grad = ref.requires_grad;
      }
      key.parts.push_back(
          {tp, dp, ref.dtype, ref.shape, ref.extent, ref.transform});
      key.parts.back().extent.file += first_file;
    }
  }

  Stage finish() {
    next_ = 0;
    by_name_.clear();
    return std::exchange(stage_, Stage());
  }

 private:
  // Most files have the same keys in the same order.
  size_t index_of(const std::string& name, bool& is_new) {
    is_new = false;
    if (next_ < stage_.keys.size() && stage_.keys[next_].name == name)
      return next_++;
    const auto [at, fresh] = by_name_.emplace(name, stage_.keys.size());
    is_new = fresh;
    next_ = at->second + 1;
    return at->second;
  }

  // A file of a stage may lack keys of sdp_00, but never has others.
  Key& key_of(const std::string& name, uint32_t tp, uint32_t dp,
              const std::string& path) {
    const bool first = tp == 0 && dp == 0;
    bool is_new = false;
    const size_t at = index_of(name, is_new);
    if (is_new && !first)
      throw input_error({path, name}, "is not in {} of {}",
                        dp == 0 ? "sdp_00.pt" : "the sdp_00.pt",
                        dp == 0 ? "tp_00" : "this stage")
          .with_hint("a file belongs to another checkpoint");
    if (is_new) {
      stage_.keys.push_back({.name = name, .parts = {}});
      stage_.keys.back().parts.reserve(files_);
    }
    Key& key = stage_.keys[at];
    // Parts come by tp, then dp, so looking at the last one is enough.
    const bool lacks_first =
        dp > 0 && (key.parts.empty() || key.parts.back().tp != tp);
    const bool twice = !key.parts.empty() && key.parts.back().tp == tp &&
                       key.parts.back().dp == dp;
    if (lacks_first)
      throw input_error({path, name}, "is not in the sdp_00.pt beside it")
          .with_hint("a file belongs to another checkpoint");
    if (twice) throw input_error({path, name}, "is there twice");
    return key;
  }

  const size_t files_;  // of a stage
  Stage stage_;
  Index by_name_;
  size_t next_ = 0;  // probably the next key
};

// sdp_00 of every tensor-parallel rank has all the keys.
void check_first_files(const Stage& stage,
                       const std::vector<std::vector<std::string>>& files) {
  const auto tp = static_cast<uint32_t>(files.size());
  for (const Key& key : stage.keys) {
    std::vector<bool> has(tp, false);
    for (const Part& part : key.parts)
      if (part.dp == 0) has[part.tp] = true;
    const auto missing = std::ranges::find(has, false);
    if (missing == has.end()) continue;
    const auto rank = static_cast<size_t>(missing - has.begin());
    throw input_error({files[rank][0], key.name}, "is missing, but it is in {}",
                      short_path(files[0][0]))
        .with_hint("a file belongs to another checkpoint");
  }
}

bool has_buffer_name(std::string_view name) {
  for (const std::string_view suffix :
       {"running_mean", "running_var", "num_batches_tracked", "num_updates"})
    if (name.ends_with(suffix)) return true;
  return false;
}

bool is_integer(DType dtype) {
  switch (dtype) {
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::u64:
    case DType::u32:
    case DType::u16:
    case DType::u8:
    case DType::bool_:
      return true;
    default:
      return false;
  }
}

// Names of one tensor: over one storage in the first file (a blocking save),
// or tied by the family (any other save writes the bytes once per name).
void add_ties(const std::vector<const Key*>& keys, const Rules& rules,
              uint32_t ties, std::vector<Tensor>& tensors) {
  std::map<std::pair<uint32_t, uint64_t>, Tensor*> by_storage;
  std::unordered_map<std::string_view, Tensor*> by_name;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor& tensor = tensors[i];
    by_name.emplace(tensor.name, &tensor);
    if (tensor.pieces.empty()) continue;
    const auto [at, is_new] = by_storage.emplace(
        std::pair(keys[i]->storage, tensor.pieces[0].extent.offset), &tensor);
    if (is_new || at->second->shape != tensor.shape) continue;
    if (at->second->tie == 0) at->second->tie = ++ties;
    tensor.tie = at->second->tie;
  }
  for (const auto& set : rules.tied()) {
    uint32_t tie = 0;
    for (const std::string& name : set) {
      const auto at = by_name.find(name);
      if (at == by_name.end()) continue;
      if (at->second->tie == 0) at->second->tie = tie == 0 ? ++ties : tie;
      tie = at->second->tie;
    }
  }
}

// Adds a second copy of an earlier stage's tensor, as replicas.
void add_replica(Tensor& known, const Tensor& again, Catalog& catalog) {
  if (known.dtype != again.dtype || known.shape != again.shape)
    throw input_error({catalog.path, again.name},
                      "is {} {} in one pipeline stage and {} {} in another",
                      name(known.dtype), to_string(known.shape),
                      name(again.dtype), to_string(again.shape));
  known.pieces.insert(known.pieces.end(), again.pieces.begin(),
                      again.pieces.end());
  catalog.problems.push_back(
      remark("tensor_in_two_stages", {{}, again.name},
             "is in more than one pipeline stage; the first "
             "one is read"));
}

}  // namespace

void read_stages(const Grid& grid, bool old, Catalog& catalog,
                 const formats::ReadOptions& options,
                 const std::function<void(uint32_t, Stage)>& take) {
  const std::vector<RankFile> ranks = rank_files(grid);
  if (ranks.size() >= torch::kManyFiles) torch::check_headers_later(catalog);
  Files files(ranks.size(), options);
  StageBuilder builder(ranks.size() / std::max(1u, grid.pp()));
  in_order<Files::One>(
      ranks.size(),
      [&](size_t i) {
        return files.open(*ranks[i].path, [old](const torch::Container& file) {
          return load(file, old);
        });
      },
      [&](size_t i, Files::One file) {
        const RankFile& rank = ranks[i];
        const uint32_t first = torch::take_aside(file.aside, catalog);
        builder.add(rank.tp, rank.dp, *rank.path, *file.made, first);
        if (i + 1 < ranks.size() && ranks[i + 1].pp == rank.pp) return;
        Stage stage = builder.finish();
        check_first_files(stage, grid.files[rank.pp]);
        take(rank.pp, std::move(stage));
      });
}

bool is_buffer(const Key& key, const Rules& rules) {
  const Part& first = key.parts.front();
  return first.shape.empty() || is_integer(first.dtype) ||
         has_buffer_name(key.name) || rules.buffer(key.name);
}

std::vector<const Part*> parts_of(const Key& key, uint32_t tp) {
  std::vector<const Part*> parts;
  for (const Part& part : key.parts)
    if (part.tp == tp) parts.push_back(&part);
  return parts;
}

void add_stage(Stage& stage, const Rules& rules, Catalog& catalog) {
  const Topology& grid = catalog.topology;
  std::unordered_map<std::string_view, size_t> known;
  for (size_t i = 0; i < catalog.tensors.size(); ++i)
    known.emplace(catalog.tensors[i].name, i);
  std::vector<Tensor> added;
  std::vector<const Key*> added_keys;
  for (Key& key : stage.keys) {
    const bool buffer = is_buffer(key, rules);
    const Sharding sharding = buffer ? Sharding::kWhole : Sharding::kRows;
    std::vector<Local> ranks;
    for (uint32_t tp = 0; tp < grid.tp; ++tp)
      ranks.push_back(
          join_dp(catalog, key.name, parts_of(key, tp), grid.dp, sharding));
    Tensor tensor;
    tensor.name = key.name;
    tensor.dp_replicated = buffer;
    tensor.requires_grad = key.requires_grad;
    tensor.shape = ranks.front().shape;
    const TpRule rule = rules.tp(key.name);
    if (grid.tp > 1 && rule.state == TpRule::State::kUnknown)
      throw families::no_rule_error(catalog.path, tensor, catalog.family,
                                    grid.tp);
    join_tp(catalog, ranks, rule, sharding, tensor);
    std::vector<Part>().swap(key.parts);
    if (const auto at = known.find(key.name); at != known.end()) {
      add_replica(catalog.tensors[at->second], tensor, catalog);
      continue;
    }
    added.push_back(std::move(tensor));
    added_keys.push_back(&key);
  }
  uint32_t ties = 0;
  for (const Tensor& tensor : catalog.tensors)
    ties = std::max(ties, tensor.tie);
  add_ties(added_keys, rules, ties, added);
  for (Tensor& tensor : added) catalog.tensors.push_back(std::move(tensor));
}

}  // namespace ckpt::fairseq2
