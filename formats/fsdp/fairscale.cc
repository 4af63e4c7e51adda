// SPDX-License-Identifier: Apache-2.0
#include "formats/fsdp/fairscale.h"

#include <algorithm>
#include <string_view>

#include "ckpt/error.h"
#include "containers/torch/tensors.h"
#include "formats/fsdp/expand.h"
#include "lib/text/format.h"

namespace ckpt::fsdp {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

constexpr const char* kObjects[] = {"shard_metadata", "fsdp_metadata"};

// What torch_xla's FullyShardedDataParallel keeps beside its shards:
// get_shard_metadata(), which its users save with each rank's state dict.
//
//   {"model": {"layers.0._fsdp_shard._fsdp_wrapped_module.flat_param_0": part},
//    "shard_metadata": {
//      "shard_info": {"layers.0": {
//        "_fsdp_shard._fsdp_wrapped_module.flat_param_0": {
//          "_orig_name": "_fsdp_wrapped_module.flat_param_0",
//          "_orig_size": torch.Size([70])}}},
//      "flatten_info": {"layers.0._fsdp_wrapped_module.flat_param_0":
//          (["norm.weight", …], [torch.Size([7]), …], [7, …])},
//      "rank": 0, "world_size": 2}}
//
// A parameter without flatten_info is sharded alone: its elements one after
// another. Parts have one length; the last ones are padded with zeros.

constexpr const char* kObject = "shard_metadata";

class XlaParser {
 public:
  XlaParser(const Document& document, const std::string& path)
      : document_(document), path_(path) {}

  ShardMetadata parse(Id node) {
    result_.object = kObject;
    result_.all.source = path_;
    result_.rank = count_of(document_.find(node, "rank"));
    result_.ranks = count_of(document_.find(node, "world_size"));
    flats_ = document_.find(node, "flatten_info");
    for (const auto& [module, shards] :
         pairs_of(document_.find(node, "shard_info"), "shard_info"))
      for (const auto& [name, info] : pairs_of(shards, "a module's shards"))
        add(module.empty() ? "" : module + ".", name, info);
    if (result_.all.all.empty()) fail("it names no shard");
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw input_error({path_, {}}, "its metadata of shards: {}",
                      text::printable(what));
  }

  std::vector<std::pair<std::string, Id>> pairs_of(Id node,
                                                   const char* what) const {
    const auto flat = document_.as_pairs(node);
    if (!flat) fail(std::string(what) + " is not a dict");
    std::vector<std::pair<std::string, Id>> pairs;
    for (size_t i = 0; i + 1 < flat->size(); i += 2)
      pairs.emplace_back(text_of((*flat)[i]), (*flat)[i + 1]);
    return pairs;
  }

  std::string text_of(Id node) const {
    if (!document_.is(node, Type::kString)) fail("a name is not text");
    return std::string(document_.text(node));
  }

  std::vector<Id> list_of(Id node) const {
    if (!document_.is(node, Type::kList) && !document_.is(node, Type::kTuple))
      fail("flatten_info has no lists");
    const auto items = document_.items(node);
    return {items.begin(), items.end()};
  }

  std::optional<uint64_t> count_of(Id node) const {
    const auto count = document_.as_int(node);
    if (!count || *count < 0) return std::nullopt;
    return static_cast<uint64_t>(*count);
  }

  Shape shape_of(Id node) const {
    const auto sizes = torch::as_ints(document_, node);
    if (!sizes || sizes->size() > kMaxRank) fail("a shape is malformed");
    Shape shape;
    for (const int64_t size : *sizes) {
      if (size < 0) fail("a shape is negative");
      shape.push_back(static_cast<uint64_t>(size));
    }
    if (!element_count(shape)) fail("a shape overflows");
    return shape;
  }

  void add(const std::string& module, const std::string& name, Id info) {
    const std::string original = text_of(document_.find(info, "_orig_name"));
    const Shape size = shape_of(document_.find(info, "_orig_size"));
    FlatParameter flat{.key = module + name,
                       .leaf = name,
                       .parameters = {},
                       .alignment = 1,
                       .padding = {}};
    const size_t end = original.rfind('.') + 1;  // 0 if there is no dot
    const std::string leaf = original.substr(end);
    const auto called = [&](const std::string& parameter) {
      return with_parameter(original, leaf, parameter);
    };
    const Id lists =
        flats_ == kNoId ? kNoId : document_.find(flats_, module + original);
    if (lists == kNoId) {
      flat.parameters.push_back({called(leaf), size});
    } else {
      const std::vector<Id> parts = list_of(lists);
      if (parts.size() < 2) fail("flatten_info has no names and shapes");
      const std::vector<Id> names = list_of(parts[0]);
      const std::vector<Id> shapes = list_of(parts[1]);
      if (names.empty() || names.size() != shapes.size())
        fail("flatten_info has not as many shapes as names");
      for (size_t i = 0; i < names.size(); ++i)
        flat.parameters.push_back(
            {called(text_of(names[i])), shape_of(shapes[i])});
    }
    check_size(flat, size);
    result_.all.all.push_back(std::move(flat));
  }

  void check_size(const FlatParameter& flat, const Shape& size) const {
    uint64_t sum = 0;
    for (const Parameter& one : flat.parameters) {
      const auto next = checked_add(sum, element_count(one.shape).value_or(0));
      if (!next) fail("a shape overflows");
      sum = *next;
    }
    if (sum != element_count(size))
      fail(flat.key + " has other sizes than its parameters");
  }

  const Document& document_;
  const std::string& path_;
  Id flats_ = kNoId;
  ShardMetadata result_;
};

// Nothing if the file has none. Throws input_error if it is malformed.
std::optional<ShardMetadata> read_xla_metadata(const Document& document,
                                               const std::string& path) {
  const Id node = document.find(document.root(), kObject);
  if (node == kNoId || document.find(node, "shard_info") == kNoId)
    return std::nullopt;
  return XlaParser(document, path).parse(node);
}

// Finds a tensor by its name, or below "model.".
const Tensor* find(const Catalog& catalog, const std::string& key) {
  const Tensor* tensor = catalog.find(key);
  return tensor != nullptr ? tensor : catalog.find("model." + key);
}

class Parser {
 public:
  Parser(const Document& document, const std::string& path)
      : document_(document), path_(path) {}

  ShardMetadata parse(Id node) {
    result_.all.source = path_;
    const Id list = document_.find(node, "param_metadata");
    if (!document_.is(list, Type::kList)) fail("has no list of param_metadata");
    for (const Id unit : document_.items(list)) add_unit(unit);
    return std::move(result_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text,
                         Args&&... args) const {
    throw input_error({path_, {}}, "its metadata of shards: {}",
                      fmt::format(text, std::forward<Args>(args)...));
  }

  std::string text_of(Id node, const char* what) const {
    if (!document_.is(node, Type::kString)) fail("{} is not a string", what);
    return std::string(document_.text(node));
  }

  std::vector<Id> list_of(Id node, const char* what) const {
    if (!document_.is(node, Type::kList) && !document_.is(node, Type::kTuple))
      fail("{} is not a list", what);
    const auto items = document_.items(node);
    return {items.begin(), items.end()};
  }

  void add_unit(Id unit) {
    const std::string module =
        text_of(document_.find(unit, "fsdp_path"), "fsdp_path");
    const auto params = document_.as_pairs(document_.find(unit, "params"));
    if (!params) fail("params of '{}' is not a dict", printable(module));
    const Id own = document_.find(unit, "no_broadcast_optim_state");
    if (document_.is(own, Type::kBool) && document_.boolean(own))
      throw unfaithful_error({path_, printable(module)},
                             "each rank has parameters of its own here "
                             "(no_broadcast_optim_state), under one name")
          .with_hint("open one rank's file alone");
    for (size_t i = 0; i + 1 < params->size(); i += 2)
      add_flat(module, text_of((*params)[i], "a key of params"),
               (*params)[i + 1]);
    const Id shared = document_.find(unit, "shared_param_info");
    if (shared == kNoId) return;
    for (const Id pair : list_of(shared, "shared_param_info")) {
      const auto names = list_of(pair, "a pair of shared_param_info");
      if (names.size() != 2) fail("a shared parameter is not a pair of names");
      result_.shared.emplace_back(text_of(names[0], "a name"),
                                  text_of(names[1], "a name"));
    }
  }

  void add_flat(const std::string& module, const std::string& leaf, Id node) {
    FlatParameter flat{
        .key = module.empty() ? leaf : module + "." + leaf,
        .leaf = leaf,
        .parameters = {},
        .alignment = 1,
        .padding = {},
    };
    const auto names = list_of(document_.find(node, "names"), "names");
    const auto shapes = list_of(document_.find(node, "shapes"), "shapes");
    const auto numels =
        torch::as_ints(document_, document_.find(node, "numels"));
    if (names.empty() || shapes.size() != names.size() || !numels ||
        numels->size() != names.size())
      fail("{} has {} names, {} shapes and {} numels", printable(flat.key),
           names.size(), shapes.size(), numels ? numels->size() : 0);
    for (size_t i = 0; i < names.size(); ++i)
      flat.parameters.push_back({text_of(names[i], "a name"),
                                 shape_of(flat.key, shapes[i], (*numels)[i])});
    const auto padding = document_.as_int(document_.find(node, "padding"));
    if (!padding || *padding < 0)
      fail("{} has no padding", printable(flat.key));
    result_.padding.push_back(static_cast<uint64_t>(*padding));
    result_.all.all.push_back(std::move(flat));
  }

  Shape shape_of(const std::string& key, Id node, int64_t numel) const {
    const auto sizes = torch::as_ints(document_, node);
    if (!sizes || sizes->size() > kMaxRank)
      fail("a malformed shape in {}", printable(key));
    Shape shape;
    for (const int64_t size : *sizes) {
      if (size < 0) fail("a shape in {} is negative", printable(key));
      shape.push_back(static_cast<uint64_t>(size));
    }
    const auto count = element_count(shape);
    if (!count || numel < 0 || *count != static_cast<uint64_t>(numel))
      fail("shape {} in {} has not {} elements", to_string(shape),
           printable(key), numel);
    return shape;
  }

  const Document& document_;
  const std::string& path_;
  ShardMetadata result_;
};

}  // namespace

std::optional<ShardMetadata> read_shard_metadata(
    const pickle::Document& document, const std::string& path) {
  for (const char* key : kObjects) {
    const Id node = document.find(document.root(), key);
    if (document.find(node, "param_metadata") == kNoId) continue;
    ShardMetadata metadata = Parser(document, path).parse(node);
    metadata.object = key;
    return metadata;
  }
  return read_xla_metadata(document, path);
}

void check_padding(const std::vector<ShardMetadata>& ranks,
                   const Catalog& catalog) {
  for (size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].rank.value_or(r) != r ||
        ranks[r].ranks.value_or(ranks.size()) != ranks.size())
      throw input_error({ranks[r].all.source, {}},
                        "is rank {} of {} by its metadata of shards, by the "
                        "files' names {} of {}",
                        ranks[r].rank.value_or(r),
                        ranks[r].ranks.value_or(ranks.size()), r, ranks.size())
          .with_hint("are all ranks' files here, and numbered as the ranks?");
  const auto& first = ranks.at(0).all.all;
  for (size_t f = 0; f < first.size(); ++f) {
    const Tensor* tensor = find(catalog, first[f].key);
    if (tensor == nullptr || tensor->shape.size() != 1) continue;
    uint64_t elements = 0;
    for (const Parameter& parameter : first[f].parameters)
      elements += element_count(parameter.shape).value_or(0);
    const uint64_t part = tensor->shape[0] / ranks.size();
    for (size_t r = 0; r < ranks.size(); ++r) {
      const auto& all = ranks[r].all.all;
      const Where where{ranks[r].all.source, printable(first[f].key)};
      if (f >= all.size() || all[f].key != first[f].key)
        throw input_error(where,
                          "its metadata of shards is not that of rank 0");
      const uint64_t begin = r * part;
      const uint64_t padding =
          begin + part - std::clamp(elements, begin, begin + part);
      if (ranks[r].padding.empty() || padding == ranks[r].padding[f]) continue;
      throw input_error(where,
                        "the padding of its part is {} elements, as rank {} "
                        "of {} it has {}",
                        ranks[r].padding[f], r, ranks.size(), padding)
          .with_hint("are all ranks' files here, and numbered as the ranks?");
    }
  }
}

void finish(const ShardMetadata& metadata, Catalog& catalog) {
  uint32_t tie = 0;
  for (const Tensor& tensor : catalog.tensors) tie = std::max(tie, tensor.tie);
  for (const auto& [source, other] : metadata.shared) {
    const Tensor* known = find(catalog, source);
    if (known == nullptr || find(catalog, other) != nullptr) continue;
    const size_t at = static_cast<size_t>(known - catalog.tensors.data());
    if (known->tie == 0) catalog.tensors[at].tie = ++tie;
    Tensor copy = catalog.tensors[at];
    copy.name.replace(copy.name.size() - source.size(), source.size(), other);
    catalog.tensors.push_back(std::move(copy));
  }
  const auto gone = std::erase_if(catalog.objects, [&](const Object& object) {
    return object.name == metadata.object ||
           object.name.starts_with(metadata.object + ".");
  });
  if (gone > 0)
    catalog.assumptions.push_back(metadata.object +
                                  ": used, and left out of the objects");
}

bool holds_flat(const pickle::Document& document) {
  for (const char* key : kObjects) {
    const Id node = document.find(document.root(), key);
    if (document.find(node, "param_metadata") != kNoId ||
        document.find(node, "shard_info") != kNoId)
      return true;
  }
  for (Id id = 0; id < document.size(); ++id) {
    if (document.type(id) != Type::kString) continue;
    const std::string_view text = document.text(id);
    const size_t dot = text.rfind('.');
    if (is_flat_leaf(dot == text.npos ? text : text.substr(dot + 1)))
      return true;
  }
  return false;
}

}  // namespace ckpt::fsdp
