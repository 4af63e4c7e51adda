// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/common.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/tree.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

// The name of an entry with any type of key.
std::string entry_name(const Document& document, Id key, size_t position) {
  if (document.is(key, Type::kString)) return std::string(document.text(key));
  if (const auto number = document.as_int(key)) return std::to_string(*number);
  return fmt::format("entry {}", position);
}

void check_dict(const Document& document, Id root, const std::string& path) {
  if (document.as_pairs(root)) return;
  throw input_error({path, {}}, "the common part is not a dict but a {}",
                    name(document.type(root)));
}

// Limits on the bytes of tensors carried with the common part, as in torch's
// skeleton. What exceeds them is reported, and refused when written.
constexpr uint64_t kMostTensor = uint64_t{16} << 20;
constexpr uint64_t kMostTensors = uint64_t{64} << 20;

}  // namespace

Common read_common_file(const std::string& path, Catalog& catalog,
                        const formats::ReadOptions& options) {
  const torch::Container container =
      torch::open_container(path, catalog, options);
  const Id root = container.document->root();
  check_dict(*container.document, root, path);
  torch::Tree tree;
  for (const auto& [node, use] : container.storages.uses)
    tree.loose_storages.push_back(node);
  std::ranges::sort(tree.loose_storages);
  torch::set_skeleton(catalog, container, tree);
  return {container.document, root, path};
}

Common read_common_item(const torch::OpenedObject& opened,
                        const std::string& path, Catalog& catalog) {
  const torch::Container& container = opened.container;
  const Document& document = *container.document;
  const Id list = document.root();
  if (!document.is(list, Type::kList) || document.items(list).size() != 1)
    throw input_error({path, kCommonObject}, "is not a list of one value");
  const Id root = document.items(list)[0];
  check_dict(document, root, path);
  Skeleton skeleton{.document = container.document, .root = root};
  uint64_t sum = 0;
  for (const auto& [node, use] : container.storages.uses) {
    if (use.bytes > kMostTensor || use.bytes > kMostTensors - sum) {
      catalog.problems.push_back(
          warning("large_storage", {path, kCommonObject},
                  "a tensor of {} is too large to be carried",
                  text::iec_size(use.bytes)));
      continue;
    }
    sum += use.bytes;
    skeleton.storages.emplace_back(node, torch::storage_content(opened, node));
  }
  std::ranges::sort(skeleton.storages, {},
                    [](const auto& storage) { return storage.first; });
  catalog.skeleton = std::move(skeleton);
  return {container.document, root, path};
}

void add_common_objects(const Common& common, Catalog& catalog) {
  if (!common.document) return;
  const Document& document = *common.document;
  const auto pairs = document.as_pairs(common.root);
  std::vector<Object> objects;
  for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2)
    objects.push_back({.name = entry_name(document, (*pairs)[i], i / 2),
                       .document = common.document,
                       .node = (*pairs)[i + 1]});
  catalog.objects.insert(catalog.objects.begin(),
                         std::make_move_iterator(objects.begin()),
                         std::make_move_iterator(objects.end()));
}

Facts facts_of(const Catalog& catalog) {
  for (const Object& object : catalog.objects)
    if (object.name == kArgs && object.document)
      return read_facts(*object.document, object.node, catalog.path);
  return {};
}

}  // namespace ckpt::megatron
