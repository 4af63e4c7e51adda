// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/optimizer_common.h"

#include <cstring>

#include "containers/torch/item.h"
#include "formats/megatron/state/common.h"
#include "lib/io/file.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

template <class T>
std::optional<double> element(const std::string& bytes, uint64_t index) {
  if (bytes.size() / sizeof(T) <= index) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return static_cast<double>(value);
}

}  // namespace

CommonEditor::CommonEditor(Catalog& catalog)
    : catalog_(catalog), document_(std::make_shared<Document>()) {
  const std::shared_ptr<const Document> old =
      catalog.skeleton ? catalog.skeleton->document : nullptr;
  std::unordered_map<Id, Id> copied;
  if (old)
    for (const auto& [node, content] : catalog.skeleton->storages) {
      const Id copy = document_->import(*old, node);
      copied[node] = copy;
      storages_.insert_or_assign(copy, content);
    }
  for (const Object& object : catalog.objects) {
    if (!is_common(catalog, object) || !object.document) continue;
    entries_[object.name] =
        object.document == old
            ? document_->import(*old, object.node, copied)
            : document_->import(*object.document, object.node);
  }
}

Id CommonEditor::find(std::string_view name) const {
  const auto found = entries_.find(std::string(name));
  return found == entries_.end() ? kNoId : found->second;
}

void CommonEditor::set(std::string_view name, Id value) {
  const auto [at, fresh] = entries_.insert_or_assign(std::string(name), value);
  if (fresh) added_.push_back(at->first);
}

Id CommonEditor::import_object(const Object& object) {
  if (object.bytes == 0 && object.document)
    return document_->import(*object.document, object.node);
  const File& file = catalog_.files.at(object.file);
  const io::Handle handle = io::Handle::open_read(file.path);
  const torch::OpenedObject opened =
      torch::open_archive(catalog_, object, handle);
  const Document& from = *opened.container.document;
  std::unordered_map<Id, Id> copied;
  for (const auto& [node, use] : opened.container.storages.uses) {
    const Id copy = document_->import(from, node);
    copied[node] = copy;
    storages_.insert_or_assign(copy, torch::storage_content(opened, node));
  }
  Id value = from.root();
  // torch_dist stores values in a list of one.
  if (catalog_.format != "megatron_zarr" && from.is(value, Type::kList) &&
      from.items(value).size() == 1)
    value = from.items(value)[0];
  return document_->import(from, value, copied);
}

std::optional<double> CommonEditor::scalar(Id value) const {
  const Document& document = *document_;
  if (const auto number = document.as_real(value)) return number;
  if (!document.is_call(value, "torch._utils", "_rebuild_tensor_v2"))
    return std::nullopt;
  const auto args = document.items(document.call(value).args);
  if (args.size() < 3) return std::nullopt;
  const auto content = storages_.find(args[0]);
  const auto offset = document.as_int(args[1]);
  if (content == storages_.end() || !offset || *offset < 0) return std::nullopt;
  if (!document.is(args[2], Type::kTuple) || !document.items(args[2]).empty())
    return std::nullopt;
  const auto id = document.items(document.items(args[0])[0]);
  if (id.size() < 2 || !document.is(id[1], Type::kGlobal)) return std::nullopt;
  const auto index = static_cast<uint64_t>(*offset);
  const auto dtype = dtype_from_storage(document.text(id[1]));
  if (dtype == DType::f32)
    return element<float>(content->second.bytes(), index);
  if (dtype == DType::f64)
    return element<double>(content->second.bytes(), index);
  if (dtype == DType::i32)
    return element<int32_t>(content->second.bytes(), index);
  if (dtype == DType::i64)
    return element<int64_t>(content->second.bytes(), index);
  return std::nullopt;
}

void CommonEditor::finish() {
  for (Object& object : catalog_.objects) {
    if (!is_common(catalog_, object)) continue;
    const auto found = entries_.find(object.name);
    if (found == entries_.end()) continue;
    object.document = document_;
    object.node = found->second;
    object.file = 0;
    object.offset = object.bytes = 0;
  }
  for (const std::string& name : added_)
    catalog_.objects.push_back(
        {.name = name, .document = document_, .node = entries_.at(name)});
  // No root: that is the dict before the changes, and the old file must not be
  // taken for the new one.
  Skeleton skeleton{document_, kNoId, {}, {}};
  for (auto& [node, content] : storages_)
    skeleton.storages.emplace_back(node, std::move(content));
  catalog_.skeleton = std::move(skeleton);
}

}  // namespace ckpt::megatron
