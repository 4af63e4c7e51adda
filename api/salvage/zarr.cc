// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "api/salvage/structure.h"
#include "ckpt/error.h"
#include "containers/zarr/array.h"
#include "containers/zarr/dtypes.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/state/common.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::library {
namespace {

// What the chunks' files tell: their grid, and the bytes of each.
struct Chunks {
  Dims grid;
  uint64_t bytes = 0;
};

std::optional<Dims> index_of(std::string_view name) {
  Dims index;
  while (true) {
    const size_t dot = std::min(name.find('.'), name.size());
    const auto at = text::number(name.substr(0, dot), uint64_t{1} << 40);
    if (!at) return std::nullopt;
    index.push_back(*at);
    if (dot == name.size()) return index;
    name.remove_prefix(dot + 1);
  }
}

// Nothing if a chunk is missing or sizes differ (packed or cut).
std::optional<Chunks> chunks_in(const std::string& directory) {
  Chunks chunks;
  uint64_t found = 0;
  for (const std::string& name : io::list_directory(directory)) {
    const auto index = index_of(name);
    if (!index) continue;
    const uint64_t bytes = io::file_size(io::join(directory, name)).value_or(0);
    if (found++ == 0) {
      chunks.bytes = bytes;
      chunks.grid = Dims(std::vector<uint64_t>(index->size()));
    }
    if (bytes != chunks.bytes || bytes == 0 ||
        index->size() != chunks.grid.size())
      return std::nullopt;
    for (size_t d = 0; d < index->size(); ++d)
      chunks.grid[d] = std::max(chunks.grid[d], (*index)[d] + 1);
  }
  uint64_t all = found == 0 ? 0 : 1;
  for (const uint64_t n : chunks.grid)
    all = checked_mul(all, n).value_or(UINT64_MAX);
  if (found == 0 || all != found) return std::nullopt;
  return chunks;
}

// Elements of a chunk along each dimension; nothing if the grid does not cut
// the shape into equal parts.
std::optional<Dims> cut(const Shape& shape, const Dims& grid) {
  if (shape.size() != grid.size()) return std::nullopt;
  Dims parts;
  for (size_t d = 0; d < grid.size(); ++d) {
    if (shape[d] == 0 || shape[d] % grid[d] != 0) return std::nullopt;
    parts.push_back(shape[d] / grid[d]);
  }
  return parts;
}

// "decoder.layers.3.mlp" -> "decoder.layers.#.mlp"
std::string without_numbers(std::string_view name) {
  std::string text;
  for (size_t at = 0; at <= name.size();) {
    const size_t dot = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, dot - at);
    const bool number =
        !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    text += number ? "#" : std::string(part);
    text += '.';
    at = dot + 1;
  }
  return text;
}

// A norm's weight and bias have one shape.
std::string norm_of(std::string_view name) {
  for (const std::string_view end : {"weight", "bias"})
    if (name.ends_with(end) && name.find("norm") != name.npos)
      return std::string(name.substr(0, name.size() - end.size()));
  return {};
}

// "…bucket_idx_0." of a flat buffer.
std::string bucket_of(std::string_view name) {
  return megatron::is_bucket_key(name)
             ? std::string(name.substr(0, name.rfind('.') + 1))
             : "";
}

// Why another array must have the shape of this one; "" if it need not.
std::string kinship(const std::string& name, const std::string& other) {
  const megatron::Key a = megatron::parse_key(name);
  const megatron::Key b = megatron::parse_key(other);
  if (!bucket_of(name).empty())
    return bucket_of(name) == bucket_of(other) ? "the same buffer" : "";
  if (a.model == b.model && a.chain == b.chain) return "the same parameter";
  if (a.state != b.state) return {};
  if (without_numbers(name) == without_numbers(other))
    return "the same tensor of another layer";
  if (!norm_of(name).empty() && norm_of(name) == norm_of(other))
    return "the other half of the norm";
  return {};
}

std::optional<Shape> with_layers(const megatron::Key& key, const Shape& shape,
                                 const megatron::Facts& facts) {
  if (key.expert_axis || key.expert) return std::nullopt;
  if (!key.layer_axis) return shape;
  if (!facts.num_layers) return std::nullopt;
  Shape stacked{*facts.num_layers};
  for (const uint64_t n : shape) stacked.push_back(n);
  return stacked;
}

// Shapes of Megatron's modules that the args determine.
std::optional<Shape> shape_by_args(const std::string& name,
                                   const megatron::Facts& facts) {
  const megatron::Key key = megatron::parse_key(name);
  if (!facts.hidden_size || key.tower || !key.rooted) return std::nullopt;
  const uint64_t hidden = *facts.hidden_size;
  const auto ends = [&](std::string_view end) {
    return key.name.ends_with(end);
  };
  const auto heads = facts.num_attention_heads;
  const uint64_t head =
      !heads ? 0 : facts.kv_channels.value_or(hidden / *heads);
  if (ends("norm.weight") || ends("norm.bias") || ends("layer_norm_weight") ||
      ends("layer_norm_bias"))
    return ends("q_layernorm.weight") || ends("k_layernorm.weight")
               ? std::nullopt
               : with_layers(key, {hidden}, facts);
  if (ends("word_embeddings.weight") || key.name == "output_layer.weight") {
    if (!facts.padded_vocab_size) return std::nullopt;
    return Shape{*facts.padded_vocab_size, hidden};
  }
  if (ends("linear_proj.weight") && heads)
    return with_layers(key, {hidden, *heads * head}, facts);
  if (ends("linear_qkv.weight") && heads) {
    const uint64_t groups = facts.num_query_groups.value_or(*heads);
    return with_layers(key, {(*heads + 2 * groups) * head, hidden}, facts);
  }
  if (!facts.ffn_hidden_size) return std::nullopt;
  const uint64_t inner = *facts.ffn_hidden_size;
  if (ends("linear_fc2.weight"))
    return with_layers(key, {hidden, inner}, facts);
  if (ends("linear_fc1.weight") && facts.gated)
    return with_layers(key, {*facts.gated ? 2 * inner : inner, hidden}, facts);
  return std::nullopt;
}

class Finder {
 public:
  Finder(const std::string& directory, const Chunks& chunks)
      : name_(io::base_name(directory)), chunks_(chunks) {
    const std::string all = io::parent(directory);
    for (const std::string& name : io::list_directory(all)) {
      const std::string path = io::join(all, name);
      if (name == name_ || !io::is_directory(path)) continue;
      try {
        if (zarr::is_array(path)) others_[name] = zarr::read_array(path);
      } catch (const Error&) {
        continue;  // its own damage is reported elsewhere
      }
    }
  }

  std::optional<Inferred> find(const megatron::Facts& facts,
                               const Manifest::Entry* entry) const {
    if (entry) return describe(entry->shape, {entry->dtype}, "ckpt's manifest");
    for (const auto& [name, other] : others_) {
      const std::string why = kinship(name_, name);
      if (why.empty() || other.codec != Codec::kRaw) continue;
      std::set<DType> types = types_in_use();
      if (is_optimizer() == is_optimizer(name)) types = {other.dtype};
      if (auto found = describe(other.shape, types, name + ", " + why))
        return found;
    }
    const auto shape = shape_by_args(name_, facts);
    if (!shape) return std::nullopt;
    return describe(*shape, types_in_use(), "the args of common.pt");
  }

 private:
  static bool is_optimizer(const std::string& name) {
    return !megatron::parse_key(name).state.empty();
  }
  bool is_optimizer() const { return is_optimizer(name_); }

  // Types of arrays like this one: those of the model, or of its optimizer.
  std::set<DType> types_in_use() const {
    std::set<DType> types;
    for (const auto& [name, other] : others_)
      if (is_optimizer(name) == is_optimizer()) types.insert(other.dtype);
    return types;
  }

  // Nothing unless exactly one of the types gives chunks of that size.
  std::optional<Inferred> describe(const Shape& shape,
                                   const std::set<DType>& types,
                                   const std::string& from) const {
    const auto parts = cut(shape, chunks_.grid);
    if (!parts) return std::nullopt;
    std::optional<DType> dtype;
    for (const DType type : types) {
      if (byte_size(type, *parts) != chunks_.bytes) continue;
      if (dtype) return std::nullopt;
      dtype = type;
    }
    if (!dtype || zarr::type_name(*dtype).empty()) return std::nullopt;
    return Inferred{zarr::describe(*dtype, shape, *parts), from};
  }

  const std::string name_;
  const Chunks& chunks_;
  std::map<std::string, zarr::Array> others_;
};

}  // namespace

std::optional<Inferred> infer_array(const std::string& directory,
                                    const megatron::Facts& facts,
                                    const Manifest::Entry* entry) {
  const auto chunks = chunks_in(directory);
  if (!chunks) return std::nullopt;
  return Finder(directory, *chunks).find(facts, entry);
}

megatron::Facts facts_beside(const std::string& directory) {
  const std::string path = io::join(directory, megatron::kCommonFile);
  if (!io::is_file(path)) return {};
  try {
    Catalog catalog;
    const megatron::Common common =
        megatron::read_common_file(path, catalog, {});
    megatron::add_common_objects(common, catalog);
    return megatron::facts_of(catalog);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
    return {};
  }
}

}  // namespace ckpt::library
