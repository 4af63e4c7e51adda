// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/nest.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/file_plan.h"
#include "containers/torch/item.h"
#include "containers/torch/tensor_nodes.h"
#include "formats/dcp/objects.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::dcp {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

constexpr size_t kMaxDepth = 256;
// Lists are filled with None up to the highest index; this many may be None.
constexpr uint64_t kFreeGaps = 1024;
// Tensors inside objects are carried in memory up to these sizes.
constexpr uint64_t kMaxStorage = uint64_t{16} << 20;
constexpr uint64_t kMaxStorageSum = uint64_t{64} << 20;

constexpr uint32_t kNone = UINT32_MAX;

// A dict, a list or a leaf of the nest. Children come after their parent.
struct Place {
  enum class What : uint8_t { kUnknown, kDict, kList, kTensor, kObject };
  What what = What::kUnknown;
  uint32_t entry = kNone;  // of a leaf
  std::vector<std::pair<PathElement, uint32_t>> children;
};

// The shape of the nest, shared by all copies of a catalog.
struct Nest {
  std::vector<Place> places{1};
  std::vector<std::string> objects;  // names of entries that are objects
  std::vector<uint32_t> tensors;     // places of tensors, in walk order
  std::unordered_map<std::string, uint32_t> object_places;
};

class Builder {
 public:
  explicit Builder(Nest& nest) : nest_(nest) {
    nest_.places[0].what = Place::What::kDict;
  }

  // Returns the reason if the path contradicts earlier ones.
  std::optional<std::string> add(const std::string& name,
                                 std::span<const PathElement> path,
                                 Place::What what) {
    if (path.size() > kMaxDepth)
      return fmt::format("a path of {} levels", path.size());
    uint32_t at = 0;
    for (size_t i = 0; i < path.size(); ++i) {
      const bool is_list = std::holds_alternative<int64_t>(path[i]);
      const auto wanted = is_list ? Place::What::kList : Place::What::kDict;
      Place& holder = nest_.places[at];
      if (holder.what == Place::What::kUnknown) holder.what = wanted;
      if (holder.what != wanted)
        return "what holds it is another entry, or both a dict and a list";
      if (is_list) {
        const int64_t index = std::get<int64_t>(path[i]);
        if (index < 0 ||
            static_cast<uint64_t>(index) > kFreeGaps + 2 * nest_.places.size())
          return fmt::format("index {} of a list", index);
      }
      at = child(at, path[i]);
    }
    Place& leaf = nest_.places[at];
    if (leaf.what != Place::What::kUnknown)
      return "another entry has this path, or lies below it";
    leaf.what = what;
    leaf.entry = what == Place::What::kTensor
                     ? 0
                     : static_cast<uint32_t>(nest_.objects.size());
    if (what == Place::What::kObject) {
      nest_.objects.push_back(name);
      nest_.object_places[name] = at;
    } else {
      tensor_names_[at] = name;
    }
    return std::nullopt;
  }

  // Returns the tensors with their names, in walk order.
  std::vector<std::string> finish() {
    for (Place& place : nest_.places)
      if (place.what == Place::What::kList)
        std::ranges::sort(place.children, {}, [](const auto& child) {
          return std::get<int64_t>(child.first);
        });
    std::vector<std::string> names;
    std::vector<uint32_t> stack{0};
    while (!stack.empty()) {
      const uint32_t at = stack.back();
      stack.pop_back();
      if (nest_.places[at].what == Place::What::kTensor) {
        nest_.tensors.push_back(at);
        names.push_back(std::move(tensor_names_[at]));
      }
      const auto& children = nest_.places[at].children;
      for (size_t i = children.size(); i-- > 0;)
        stack.push_back(children[i].second);
    }
    return names;
  }

 private:
  uint32_t child(uint32_t holder, const PathElement& element) {
    key_ = std::to_string(holder);
    if (const auto* text = std::get_if<std::string>(&element))
      key_.append(":").append(*text);
    else
      key_.append("#").append(std::to_string(std::get<int64_t>(element)));
    const auto [known, fresh] =
        children_.try_emplace(key_, static_cast<uint32_t>(nest_.places.size()));
    if (fresh) {
      nest_.places[holder].children.emplace_back(element, known->second);
      nest_.places.emplace_back();
    }
    return known->second;
  }

  Nest& nest_;
  std::unordered_map<std::string, uint32_t> children_;
  std::unordered_map<uint32_t, std::string> tensor_names_;
  std::string key_;
};

// Makes the value tree of a nest. `objects`: its objects' values by entry;
// kNoId: None.
Id make_tree(const Nest& nest, Document& document, std::span<const Id> objects,
             std::vector<Id>& nodes) {
  torch::TensorNodes tensors(document);
  nodes.assign(nest.places.size(), kNoId);
  // Children come after their parents.
  for (size_t i = nest.places.size(); i-- > 0;) {
    const Place& place = nest.places[i];
    switch (place.what) {
      case Place::What::kTensor:
        nodes[i] = tensors.add();
        break;
      case Place::What::kObject:
        nodes[i] = objects.empty() || objects[place.entry] == kNoId
                       ? document.add_none()
                       : objects[place.entry];
        break;
      case Place::What::kList: {
        nodes[i] = document.add_container(Type::kList);
        int64_t length = 0;
        for (const auto& [element, at] : place.children) {
          for (; length < std::get<int64_t>(element); ++length)
            document.append(nodes[i], document.add_none());
          document.append(nodes[i], nodes[at]);
          ++length;
        }
        break;
      }
      default: {
        nodes[i] = document.add_container(Type::kDict);
        for (const auto& [element, at] : place.children)
          document.set(nodes[i], std::get<std::string>(element), nodes[at]);
      }
    }
  }
  document.set_root(nodes[0]);
  return nodes[0];
}

Skeleton make_skeleton(const Nest& nest, std::shared_ptr<Document> document,
                       std::span<const Id> objects,
                       std::span<const std::string> names) {
  std::vector<Id> nodes;
  Skeleton skeleton;
  skeleton.root = make_tree(nest, *document, objects, nodes);
  skeleton.document = std::move(document);
  skeleton.tensors.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i)
    skeleton.tensors.emplace_back(nodes[nest.tensors[i]], names[i]);
  return skeleton;
}

// Copies objects, with their small storages, into the document of the skeleton.
class ObjectTaker {
 public:
  ObjectTaker(Catalog& catalog, const Nest& nest)
      : catalog_(catalog),
        nest_(nest),
        document_(std::make_shared<Document>()),
        values_(nest.objects.size(), kNoId) {}

  void take(size_t index, const torch::OpenedObject& opened) {
    const Object& object = catalog_.objects[index];
    const auto found = nest_.object_places.find(object.name);
    if (found == nest_.object_places.end()) return;
    const Document& source = *opened.container.document;
    std::unordered_map<Id, Id> substitutes;
    for (const auto& [node, use] : opened.container.storages.uses)
      add_storage(opened, object, node, use, substitutes);
    const Id value = document_->import(source, source.root(), substitutes);
    values_[nest_.places[found->second].entry] = value;
    taken_.emplace_back(index, value);
  }

  // Makes the skeleton with all objects in it; they live in its document.
  void finish() {
    std::vector<std::string> names;
    for (const auto& [node, name] : catalog_.skeleton->tensors)
      names.push_back(name);
    Skeleton skeleton = make_skeleton(nest_, document_, values_, names);
    skeleton.storages = std::move(storages_);
    catalog_.skeleton = std::move(skeleton);
    for (const auto& [index, value] : taken_) {
      catalog_.objects[index].document = document_;
      catalog_.objects[index].node = value;
    }
  }

 private:
  void add_storage(const torch::OpenedObject& opened, const Object& object,
                   Id node, const torch::StorageUse& use,
                   std::unordered_map<Id, Id>& substitutes) {
    const Document& source = *opened.container.document;
    const Id id = document_->import(source, source.items(node)[0]);
    const Id copy = document_->add_persistent(id);
    substitutes[node] = copy;
    if (use.bytes > kMaxStorage || use.bytes > kMaxStorageSum - sum_) {
      catalog_.problems.push_back(warning(
          "large_storage", {catalog_.files.at(object.file).path, object.name},
          "a tensor of {} inside of this object is too large to "
          "be carried",
          text::iec_size(use.bytes)));
      return;
    }
    sum_ += use.bytes;
    storages_.emplace_back(copy, torch::storage_content(opened, node));
  }

  Catalog& catalog_;
  const Nest& nest_;
  std::shared_ptr<Document> document_;
  std::vector<Id> values_;  // by entry
  std::vector<std::pair<size_t, Id>> taken_;
  std::vector<std::pair<Id, Content>> storages_;
  uint64_t sum_ = 0;
};

void load_nested(Catalog& catalog, const Nest& nest, bool restricted) {
  // If the nesting was dropped, don't bring it back.
  const bool nested = catalog.skeleton &&
                      catalog.skeleton->tensors.size() == nest.tensors.size();
  if (!nested) return open_objects(catalog, restricted);
  ObjectTaker taker(catalog, nest);
  open_objects(catalog, restricted,
               [&](size_t index, torch::OpenedObject& opened) {
                 taker.take(index, opened);
               });
  taker.finish();
}

class NestOpener : public ObjectOpener {
 public:
  NestOpener(std::shared_ptr<const Nest> nest, bool restricted)
      : nest_(std::move(nest)), restricted_(restricted) {}
  void open(Catalog& catalog) const override {
    load_nested(catalog, *nest_, restricted_);
  }

 private:
  std::shared_ptr<const Nest> nest_;
  bool restricted_;
};

// An entry of either kind, in index order.
struct Entry {
  uint32_t position = 0;
  const std::string* name = nullptr;
  Place::What what = Place::What::kTensor;
};

std::vector<Entry> entries_of(const Metadata& metadata) {
  std::vector<Entry> entries;
  entries.reserve(metadata.tensors.size() + metadata.bytes.size());
  for (const TensorEntry& entry : metadata.tensors)
    entries.push_back({entry.position, &entry.name, Place::What::kTensor});
  for (const BytesEntry& entry : metadata.bytes)
    entries.push_back({entry.position, &entry.name, Place::What::kObject});
  // Parameters from one flat tensor share its position.
  std::ranges::stable_sort(entries, {}, &Entry::position);
  return entries;
}

}  // namespace

void add_nest(Metadata& metadata, Catalog& catalog,
              const formats::ReadOptions& options) {
  auto nest = std::make_shared<Nest>();
  Builder builder(*nest);
  for (const Entry& entry : entries_of(metadata)) {
    std::vector<PathElement> flat;
    const std::vector<PathElement>* path = nullptr;
    if (metadata.planner) {
      const auto found = metadata.planner->find(*entry.name);
      if (found != metadata.planner->end()) path = &found->second;
    }
    if (path == nullptr) flat.emplace_back(*entry.name);
    const auto why = builder.add(*entry.name, path ? *path : flat, entry.what);
    if (!why) continue;
    catalog.problems.push_back(
        warning("planner_conflict", {metadata.path, *entry.name},
                "planner_data gives {} a place that can't be: {}; a nested "
                "file can't be made of this checkpoint, only one of flat "
                "names",
                printable(*entry.name), *why));
    return;
  }
  const std::vector<std::string> names = builder.finish();
  catalog.skeleton =
      make_skeleton(*nest, std::make_shared<Document>(), {}, names);
  catalog.object_opener =
      std::make_shared<const NestOpener>(nest, options.restrict_globals);
}

}  // namespace ckpt::dcp
