// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "ckpt/error.h"
#include "formats/megatron/legacy/names.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxChunks = 4096;

std::string joined(const std::vector<std::string>& path) {
  std::string name;
  for (const std::string& part : path) name += (name.empty() ? "" : ".") + part;
  return name;
}

// Walks a state dict and the dicts in it, in order.
class ChunkReader {
 public:
  explicit ChunkReader(const torch::Container& file)
      : file_(file), document_(*file.document) {}

  LegacyChunk read(Id dict, const std::string& key) {
    if (!push({}, dict)) {
      throw input_error({file_.path, {}}, "{} is not a dict", printable(key));
    }
    while (!stack_.empty()) {
      Level& level = stack_.back();
      if (level.next >= level.pairs.size()) {
        stack_.pop_back();
        continue;
      }
      const Id name = level.pairs[level.next];
      const Id value = level.pairs[level.next + 1];
      level.next += 2;
      if (!document_.is(name, Type::kString))
        throw input_error({file_.path, {}}, "{}: a key that is not text",
                          printable(key));
      std::vector<std::string> path = level.path;
      path.emplace_back(document_.text(name));
      const bool extra = is_extra_state(path.back());
      if (extra || !push(path, value)) add(std::move(path), value, extra);
    }
    return std::move(chunk_);
  }

 private:
  struct Level {
    std::vector<std::string> path;
    std::vector<Id> pairs;
    size_t next = 0;
  };

  bool push(const std::vector<std::string>& path, Id value) {
    auto pairs = document_.as_pairs(value);
    if (!pairs) return false;
    if (stack_.size() == kMaxDepth)
      throw input_error({file_.path, printable(joined(path))},
                        "state dicts nested deeper than {}", kMaxDepth);
    stack_.push_back({path, std::move(*pairs), 0});
    return true;
  }

  void add(std::vector<std::string> path, Id value, bool extra) {
    LegacyEntry entry{.path = std::move(path),
                      .name = {},
                      .node = value,
                      .tensor = std::nullopt};
    entry.name = joined(entry.path);
    if (!names_.insert(entry.name).second)
      throw input_error({file_.path, printable(entry.name)},
                        "two entries of a state dict have this name");
    if (!extra) {
      const auto ref =
          torch::as_tensor(document_, value, file_.storages, entry.name);
      if (ref) entry.tensor = local_tensor(*ref);
    }
    chunk_.push_back(std::move(entry));
  }

  const torch::Container& file_;
  const Document& document_;
  std::vector<Level> stack_;
  std::unordered_set<std::string> names_;
  LegacyChunk chunk_;
};

// NeMo's: just a state dict.
bool is_bare(const LegacyRank& rank) {
  return rank.dir.model_file.ends_with(kNemoWeights);
}

double read_version(const LegacyRank& rank) {
  if (is_bare(rank)) return 3;
  const Id node = rank.find("checkpoint_version");
  const Document& document = rank.document();
  if (node == kNoId) return 0;
  const auto version = document.as_real(node);
  if (!version)
    throw input_error({rank.file.path, {}},
                      "checkpoint_version is not a number");
  // Only these were ever written; rows of query_key_value depend on it.
  if (*version != 0 && *version != 1 && *version != 2 && *version != 3)
    throw input_error({rank.file.path, {}},
                      "checkpoint_version {}: 0, 1, 2 and 3 are known",
                      *version);
  return *version;
}

std::optional<int64_t> read_iteration(const LegacyRank& rank) {
  for (const char* key : {"iteration", "total_iters"})
    if (const auto value = rank.document().as_int(rank.find(key))) return value;
  return std::nullopt;
}

// Removes what NeMo's module puts before Megatron's names.
void cut_prefix(LegacyChunk& chunk) {
  for (const std::string_view prefix : {"model.module.", "model."}) {
    if (!std::ranges::all_of(chunk, [&](const LegacyEntry& entry) {
          return entry.name.starts_with(prefix);
        }))
      continue;
    for (LegacyEntry& entry : chunk) entry.name.erase(0, prefix.size());
    return;
  }
}

void read_chunks(LegacyRank& rank) {
  const Id whole = rank.find("model");
  if (is_bare(rank) && whole == kNoId && rank.find("model0") == kNoId) {
    rank.chunks.push_back(
        ChunkReader(rank.file).read(rank.document().root(), "model"));
    cut_prefix(rank.chunks.back());
    return;
  }
  if (whole != kNoId) {
    rank.chunks.push_back(ChunkReader(rank.file).read(whole, "model"));
    return;
  }
  const auto pairs = rank.document().as_pairs(rank.document().root());
  size_t numbered = 0;
  for (size_t i = 0; i < pairs->size(); i += 2)
    if (rank.document().is((*pairs)[i], Type::kString) &&
        is_model_key(rank.document().text((*pairs)[i])))
      ++numbered;
  // A stage without layers may lack its state dict.
  const uint64_t stages =
      std::max<uint64_t>(rank.facts.vpp.value_or(1), numbered);
  if (numbered == 0 || stages > kMaxChunks)
    throw input_error({rank.file.path, {}}, "{} state dicts of a model",
                      numbered)
        .with_hint("a legacy Megatron checkpoint has model, or model0, …");
  for (uint64_t i = 0; i < stages; ++i) {
    const std::string key = fmt::format("model{}", i);
    const Id node = rank.find(key);
    rank.chunks.push_back(
        node == kNoId ? LegacyChunk{} : ChunkReader(rank.file).read(node, key));
  }
}

}  // namespace

LocalTensor local_tensor(const torch::TensorRef& ref) {
  return {ref.dtype, ref.shape, ref.extent, ref.transform};
}

bool is_model_key(std::string_view key) {
  if (!key.starts_with("model")) return false;
  return std::ranges::all_of(key.substr(5), text::is_digit);
}

LegacyRank read_legacy_rank(const LegacyDir& dir, Catalog& catalog,
                            const formats::ReadOptions& options) {
  return read_legacy_rank(
      dir, torch::open_container(dir.model_file, catalog, options));
}

LegacyRank read_legacy_rank(const LegacyDir& dir, torch::Container file) {
  LegacyRank rank;
  rank.dir = dir;
  rank.file = std::move(file);
  if (!rank.document().as_pairs(rank.document().root()))
    throw input_error({dir.model_file, {}}, "expected a dict");
  rank.facts = read_facts(rank.document(), rank.find("args"), dir.model_file);
  rank.version = read_version(rank);
  rank.iteration = read_iteration(rank);
  read_chunks(rank);
  return rank;
}

}  // namespace ckpt::megatron
