// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/group_objects.h"

#include "ckpt/error.h"
#include "containers/torch/item.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

constexpr std::string_view kLengths = "per_bucket_numel_unpadded";

std::vector<uint64_t> numbers(const Document& document, Id list,
                              const std::string& name) {
  std::vector<uint64_t> all;
  const bool is_list = document.is(list, Type::kList);
  if (is_list)
    for (const Id item : document.items(list)) {
      const auto value = document.as_int(item);
      if (!value || *value < 0) break;
      all.push_back(static_cast<uint64_t>(*value));
    }
  if (!is_list || all.size() != document.items(list).size())
    throw input_error({{}, name}, "is not a list of bucket lengths");
  return all;
}

}  // namespace

Value value_of(const Catalog& catalog, const Object& object) {
  Value value{object.document, object.node};
  if (!value.document) {
    Object opened = object;
    torch::open_object(catalog, opened);
    value = {opened.document, opened.node};
  }
  if (catalog.format == "megatron_zarr") return value;
  if (value.document->is(value.node, Type::kList) &&
      value.document->items(value.node).size() == 1)
    value.node = value.document->items(value.node)[0];
  return value;
}

GroupObjects::GroupObjects(const Catalog& catalog) : catalog_(catalog) {
  std::vector<size_t> lengths;  // which unpadded() opens, one after the other
  for (size_t i = 0; i < catalog.objects.size(); ++i) {
    const std::string& name = catalog.objects[i].name;
    if (name.find("optimizer.distributed.dp_group_idx_") == name.npos) continue;
    index_.emplace(name.substr(0, name.find('/')), i);
    if (name.find(kLengths) != name.npos && !catalog.objects[i].document)
      lengths.push_back(i);
  }
  torch::ask_for_objects(catalog, std::move(lengths));
}

const Object* GroupObjects::find(const GroupId& group,
                                 const std::string& name) const {
  const auto found = index_.find(object_prefix(group) + name);
  return found == index_.end() ? nullptr : &catalog_.objects[found->second];
}

std::optional<std::vector<std::vector<uint64_t>>> GroupObjects::unpadded(
    const GroupId& group) const {
  const Object* object = find(group, std::string(kLengths));
  if (!object) return std::nullopt;
  const Value value = value_of(catalog_, *object);
  const Document& document = *value.document;
  if (!document.is(value.node, Type::kList))
    throw input_error({{}, object->name}, "is not a list of buffers");
  std::vector<std::vector<uint64_t>> all;
  for (const Id buffer : document.items(value.node)) {
    const auto pairs = document.as_pairs(buffer);
    if (!pairs || pairs->size() != 2)
      throw input_error({{}, object->name},
                        "does not say one dtype for each buffer");
    all.push_back(numbers(document, (*pairs)[1], object->name));
  }
  return all;
}

}  // namespace ckpt::megatron
