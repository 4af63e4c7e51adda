// SPDX-License-Identifier: Apache-2.0
// What a distributed checkpoint holds, and how to load parts of it.
#include "ckpt/sharded.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "api/requests.h"
#include "api/strictness.h"
#include "formats/format.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/state/common.h"
#include "lib/pickle/whole_json.h"
#include "lib/text/suggest.h"
#include "reshard/prove/prove.h"
#include "reshard/run/read.h"

namespace ckpt {
namespace {

// Opens a catalog that the caller may change.
Catalog open_catalog(const std::string& path, const OpenOptions& options) {
  return formats::open(path, options.format,
                       {.family = options.family,
                        .shard_dims_file = options.shard_dims_file,
                        .restrict_globals = options.restrict_globals});
}

struct StrictWord {
  std::string_view word;
  StrictHandling value;
};
constexpr std::array<StrictWord, 8> kStrictWords{{
    {"assume_ok_unexpected", StrictHandling::kAssumeOkUnexpected},
    {"log_unexpected", StrictHandling::kLogUnexpected},
    {"log_all", StrictHandling::kLogAll},
    {"raise_unexpected", StrictHandling::kRaiseUnexpected},
    {"raise_all", StrictHandling::kRaiseAll},
    {"return_unexpected", StrictHandling::kReturnUnexpected},
    {"return_all", StrictHandling::kReturnAll},
    {"ignore_all", StrictHandling::kIgnoreAll},
}};

// Copies the rows of `part` to where they belong in `whole`, which is larger.
void paste(const TensorData& part, TensorData& whole) {
  const uint64_t element = element_size(part.dtype);
  const Dims from = row_major_strides(part.shape);
  const Dims to = row_major_strides(whole.shape);
  const size_t rank = part.shape.size();
  const uint64_t row = part.shape.back() * element;
  Dims at(rank, 0);
  for (uint64_t done = 0; done < part.bytes.size(); done += row) {
    uint64_t target = 0;
    for (size_t d = 0; d < rank; ++d) target += at[d] * to[d] * element;
    std::copy_n(part.bytes.begin() + static_cast<std::ptrdiff_t>(done), row,
                whole.bytes.begin() + static_cast<std::ptrdiff_t>(target));
    for (size_t d = rank - 1; d-- > 0;) {
      if (++at[d] < part.shape[d]) break;
      at[d] = 0;
    }
  }
}

}  // namespace

TensorData library::read_request(const Catalog& catalog, const Tensor& tensor,
                                 const LoadRequest& request) {
  const Shape& shape = request.shape ? *request.shape : tensor.shape;
  const bool differs = shape != tensor.shape;
  if (differs &&
      (!request.allow_shape_mismatch || shape.size() != tensor.shape.size() ||
       shape.empty() || element_size(tensor.dtype) == 0))
    throw unfaithful_error({catalog.path, tensor.name},
                           "has the global shape {}, requested is {}",
                           to_string(tensor.shape), to_string(shape));
  const Box box = request.box.value_or(Box::whole(shape));
  if (!inside(box, shape) || !byte_size(tensor.dtype, box.shape))
    throw usage_error(
        {catalog.path, tensor.name}, "no box at {} of shape {} in shape {}",
        to_string(box.offset), to_string(box.shape), to_string(shape));
  reshard::prove_shared(catalog, tensor);
  TensorData data{tensor.dtype, box.shape, {}};
  if (!differs) {
    data.bytes = reshard::read_box(catalog, tensor, box);
    return data;
  }
  const uint64_t bytes = *byte_size(tensor.dtype, box.shape);
  try {
    data.bytes.resize(bytes);
  } catch (const std::exception&) {  // bad_alloc, length_error
    throw resource_error({catalog.path, tensor.name},
                         "there is no memory for {} bytes of shape {}", bytes,
                         to_string(box.shape));
  }
  const auto stored = intersect(box, Box::whole(tensor.shape));
  if (!stored) return data;
  const TensorData part{tensor.dtype, stored->shape,
                        reshard::read_box(catalog, tensor, *stored)};
  // Both begin at the box's offset; if they differ, the stored one is shorter.
  paste(part, data);
  return data;
}

Catalog library::open_for(const std::string& path,
                          std::span<const LoadRequest> own,
                          const std::set<std::string>& asked,
                          const LoadOptions& options, LoadResult& result) {
  Catalog catalog = open_catalog(path, options.open);
  std::set<std::string> stored, unexpected;
  for (const Tensor& tensor : catalog.tensors) stored.insert(tensor.name);
  for (const LoadRequest& request : own)
    if (!stored.contains(request.name)) unexpected.insert(request.name);
  std::vector<std::string> missing;
  for (const Tensor& tensor : catalog.tensors)
    if (!asked.contains(tensor.name) &&
        (options.optimizer || tensor.kind != Kind::optim))
      missing.push_back(tensor.name);
  std::ranges::sort(missing);
  const Strictness strictness(options, catalog.path);
  result.unexpected = {unexpected.begin(), unexpected.end()};
  result.missing = std::move(missing);
  strictness.judge(result.unexpected, result.missing);

  // Only what is wanted is located in the files.
  std::erase_if(catalog.tensors, [&](const Tensor& tensor) {
    return !asked.contains(tensor.name);
  });
  locate(catalog);
  return catalog;
}

std::map<std::string, std::string> load_common(const std::string& path,
                                               const OpenOptions& options) {
  Catalog catalog = open_catalog(path, options);
  load_objects(catalog);
  std::map<std::string, std::string> common;
  for (const Object& object : catalog.objects)
    if (megatron::is_common(catalog, object))
      common[object.name] =
          pickle::whole_json(*object.document, object.node, object.name);
  return common;
}

ShardedMetadata load_sharded_metadata(const std::string& path,
                                      const OpenOptions& options) {
  const Catalog catalog = open_catalog(path, options);
  ShardedMetadata all;
  for (const Tensor& tensor : catalog.tensors)
    all.tensors[tensor.name] = {tensor.dtype, tensor.shape, tensor.kind};
  for (const Object& object : catalog.objects) {
    const auto key = megatron::parse_object_key(object.name);
    if (key)
      all.objects[object.name] = {std::string(key->key), Dims(key->offset),
                                  Dims(key->grid)};
    else if (!megatron::is_common(catalog, object))
      all.objects[object.name] = {object.name, {}, {}};
  }
  return all;
}

StrictHandling parse_strict(std::string_view word) {
  std::vector<std::string> words;
  for (const StrictWord& known : kStrictWords) {
    if (known.word == word) return known.value;
    words.emplace_back(known.word);
  }
  const std::string near = text::nearest(std::string(word), words);
  throw usage_error({}, "no such strictness: {}", word)
      .with_hint(near.empty()
                     ? fmt::format("known are {}", fmt::join(words, ", "))
                     : "did you mean " + near + "?");
}

LoadResult load_shards(const std::string& path,
                       std::span<const LoadRequest> requests,
                       const LoadOptions& options) {
  std::set<std::string> asked;
  for (const LoadRequest& request : requests) asked.insert(request.name);
  LoadResult result;
  const Catalog catalog =
      library::open_for(path, requests, asked, options, result);
  std::unordered_map<std::string_view, const Tensor*> by_name;
  for (const Tensor& tensor : catalog.tensors) by_name[tensor.name] = &tensor;
  for (const LoadRequest& request : requests) {
    const auto found = by_name.find(request.name);
    if (found == by_name.end())
      result.tensors.emplace_back();
    else
      result.tensors.push_back(
          library::read_request(catalog, *found->second, request));
  }
  return result;
}

}  // namespace ckpt
