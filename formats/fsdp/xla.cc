// SPDX-License-Identifier: Apache-2.0
#include "formats/fsdp/xla.h"

#include <string_view>
#include <vector>

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

}  // namespace

std::optional<ShardMetadata> read_xla_metadata(const Document& document,
                                               const std::string& path) {
  const Id node = document.find(document.root(), kObject);
  if (node == kNoId || document.find(node, "shard_info") == kNoId)
    return std::nullopt;
  return XlaParser(document, path).parse(node);
}

}  // namespace ckpt::fsdp
