// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/bucket_key.h"

#include <fmt/format.h>

#include "lib/text/number.h"

namespace ckpt::megatron {
namespace {

// Removes `word` from the front.
bool eat(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

bool eat_number(std::string_view& text, uint64_t& value) {
  const auto number = text::take_number(text);
  if (number) value = *number;
  return number.has_value();
}

// A rank has few buffers and buckets; a number beyond this is not an index.
constexpr uint64_t kMostBuffers = 1 << 20;

// An element of a list, which grows by at most one.
template <class T>
T* element(std::vector<T>& list, uint64_t index) {
  if (index > list.size() || index >= kMostBuffers) return nullptr;
  if (index == list.size()) list.emplace_back();
  return &list[index];
}

using Keys = std::map<std::pair<GroupId, std::pair<uint64_t, uint64_t>>,
                      std::vector<uint32_t>>;

// Adds the tensors of one bucket; returns what is wrong with them, or "".
std::string add_bucket(const Catalog& catalog, std::vector<Buffer>& buffers,
                       const std::vector<uint32_t>& tensors) {
  for (const uint32_t t : tensors) {
    const Tensor& tensor = catalog.tensors[t];
    const BucketKey key = *parse_bucket_key(tensor.name);
    Buffer* buffer = element(buffers, key.buffer);
    Bucket* bucket = buffer ? element(buffer->buckets, key.bucket) : nullptr;
    if (!bucket)
      return tensor.name + ": the buffers or buckets before it are missing";
    if (tensor.shape.size() != 1)
      return fmt::format("{}: {} is not a flat buffer", tensor.name,
                         to_string(tensor.shape));
    const auto dtype = key.param_dtype.starts_with("torch.")
                           ? dtype_from_torch(key.param_dtype.substr(6))
                           : std::nullopt;
    if (buffer->buckets.size() == 1 && bucket->states.empty())
      buffer->dtype = dtype;
    if (buffer->dtype != dtype)
      return tensor.name + ": other buckets of the buffer have another dtype";
    if (bucket->states.empty()) bucket->length = tensor.shape[0];
    if (bucket->length != tensor.shape[0])
      return fmt::format("{}: {} elements, another state of the bucket has {}",
                         tensor.name, tensor.shape[0], bucket->length);
    bucket->states.emplace_back(std::string(key.state), t);
  }
  return {};
}

}  // namespace

std::optional<BucketKey> parse_bucket_key(std::string_view text) {
  BucketKey key;
  uint64_t chain = 0;
  if (eat(text, "chained_")) {
    if (!eat_number(text, chain) || !eat(text, ".")) return std::nullopt;
    key.chain = chain;
  }
  if (!eat(text, "optimizer.distributed.dp_group_idx_") ||
      !eat_number(text, key.group) || !eat(text, ".gbuf_idx_") ||
      !eat_number(text, key.buffer) || !eat(text, ".dtype_("))
    return std::nullopt;
  const size_t end = text.find(").bucket_idx_");
  if (end == text.npos) return std::nullopt;
  const std::string_view dtypes = text.substr(0, end);
  key.param_dtype = dtypes.substr(0, dtypes.find(','));
  text.remove_prefix(end);
  if (!eat(text, ").bucket_idx_") || !eat_number(text, key.bucket) ||
      !eat(text, ".") || text.empty() || text.find('.') != text.npos)
    return std::nullopt;
  key.state = text;
  return key;
}

std::optional<Groups> find_groups(const Catalog& catalog, std::string& why) {
  Keys keys;
  for (uint32_t t = 0; t < catalog.tensors.size(); ++t)
    if (const auto key = parse_bucket_key(catalog.tensors[t].name))
      keys[{{key->chain, key->group}, {key->buffer, key->bucket}}].push_back(t);
  Groups groups;
  for (const auto& [id, tensors] : keys) {
    why = add_bucket(catalog, groups[id.first], tensors);
    if (!why.empty()) return std::nullopt;
  }
  return groups;
}

std::string object_prefix(const GroupId& id) {
  const std::string chain =
      id.chain ? fmt::format("chained_{}.", *id.chain) : "";
  return fmt::format("{}optimizer.distributed.dp_group_idx_{}.", chain,
                     id.group);
}

}  // namespace ckpt::megatron
