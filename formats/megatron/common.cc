#include "formats/megatron/common.h"

#include <fmt/format.h>

#include "ckpt/error.h"
#include "formats/torch/tree.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

// The name of an entry, whatever its key is.
std::string entry_name(const Document& document, Id key, size_t position) {
  if (document.is(key, Type::kString)) return std::string(document.text(key));
  if (const auto number = document.as_int(key)) return std::to_string(*number);
  return fmt::format("entry {}", position);
}

}  // namespace

Common take_common(const torch::Container& container, Id root,
                   Catalog& catalog) {
  const Document& document = *container.document;
  if (!document.as_pairs(root))
    throw input_error(
        {container.path, {}}, "the common part is no dict but {}",
        root == pickle::kNoId ? "missing" : name(document.type(root)));
  torch::Tree tree;
  for (const auto& [node, use] : container.storages.uses)
    tree.loose_storages.push_back(node);
  std::ranges::sort(tree.loose_storages);
  torch::set_skeleton(catalog, container, tree);
  catalog.skeleton->root = root;
  return {container.document, root, container.path};
}

Common read_common_file(const std::string& path, Catalog& catalog,
                        const formats::ReadOptions& options) {
  const torch::Container container =
      torch::open_container(path, catalog, options);
  return take_common(container, container.document->root(), catalog);
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
