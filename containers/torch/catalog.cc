// SPDX-License-Identifier: Apache-2.0
// Puts a tree's values into a catalog: ties, objects, and the skeleton from
// which a torch file is written back.
#include <map>
#include <tuple>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/tree.h"
#include "lib/text/format.h"
#include "lib/tree_memory.h"

namespace ckpt::torch {
namespace {

using pickle::Id;

// Storages that no tensor covers are carried in memory: scales, sizes. Larger
// ones are named in a warning.
constexpr uint64_t kMaxLoose = uint64_t{16} << 20;
constexpr uint64_t kMaxLooseSum = uint64_t{64} << 20;

// Tensors that agree in all of these are one tensor under several names.
using Identity = std::tuple<uint32_t, uint64_t, DType, Dims, Dims, uint8_t>;

Identity identity(const TensorRef& ref) {
  return {ref.storage, ref.extent.offset,  ref.dtype,
          ref.shape,   ref.extent.strides, ref.transform};
}

// Gives the same number to tensors with the same elements.
class Ties {
 public:
  explicit Ties(const Catalog& catalog) {
    for (const Tensor& tensor : catalog.tensors)
      last_ = std::max(last_, tensor.tie);
  }

  void count(const NamedTensor& tensor) {
    if (!tensor.ref.distributed) ++groups_[identity(tensor.ref)].size;
  }
  uint32_t number(const NamedTensor& tensor) {
    if (tensor.ref.distributed) return 0;
    Group& group = groups_[identity(tensor.ref)];
    if (group.size < 2) return 0;
    if (group.tie == 0) group.tie = ++last_;
    return group.tie;
  }

 private:
  struct Group {
    uint32_t size = 0;
    uint32_t tie = 0;
  };
  uint32_t last_ = 0;
  std::map<Identity, Group> groups_;
};

void add_loose_storages(Catalog& catalog, const Container& container,
                        const Tree& tree, Skeleton& skeleton) {
  uint64_t sum = 0;
  for (const Id node : tree.loose_storages) {
    const StorageUse* use = container.storages.find(node);
    if (!use) continue;
    if (use->bytes > kMaxLoose || use->bytes > kMaxLooseSum - sum) {
      catalog.problems.push_back(
          warning("large_storage", {container.path, {}},
                  "storage {} of {} belongs to no tensor and is too large "
                  "to be carried",
                  text::printable(container.storages.all[use->storage].key),
                  text::iec_size(use->bytes)));
      continue;
    }
    sum += use->bytes;
    skeleton.storages.emplace_back(node,
                                   storage_content(catalog, container, node));
  }
}

}  // namespace

void add_to_catalog(Catalog& catalog, const Container& container,
                    const Tree& tree) {
  Ties ties(catalog);
  for (const NamedTensor& found : tree.tensors) ties.count(found);
  for (const NamedTensor& found : tree.tensors) {
    Tensor tensor = make_tensor(found.name, found.ref);
    tensor.kind = found.kind;
    tensor.param = found.param;
    tensor.state = found.state;
    tensor.tie = ties.number(found);
    catalog.tensors.push_back(std::move(tensor));
  }
  const size_t objects = catalog.objects.size() + tree.objects.size();
  tree_memory::Charge().add(objects * sizeof(Object));
  if (objects > 1024) catalog.objects.reserve(objects);
  for (const NamedObject& object : tree.objects)
    catalog.objects.push_back({object.name, container.document, object.node});
  catalog.problems.insert(catalog.problems.end(), tree.problems.begin(),
                          tree.problems.end());
}

void set_skeleton(Catalog& catalog, const Container& container,
                  const Tree& tree) {
  Skeleton skeleton{.document = container.document,
                    .root = container.document->root(),
                    .tensors = {},
                    .storages = {}};
  for (const NamedTensor& found : tree.tensors)
    skeleton.tensors.emplace_back(found.node, found.name);
  add_loose_storages(catalog, container, tree, skeleton);
  catalog.skeleton = std::move(skeleton);
}

void check_materialisable(const Tensor& tensor, const Catalog& catalog) {
  constexpr uint64_t kFree = uint64_t{1} << 30;
  constexpr uint64_t kMaxRatio = 1024;
  const uint64_t bytes = byte_size(tensor);
  if (bytes <= kFree) return;
  const uint64_t item = std::max<uint64_t>(1, element_size(tensor.dtype));
  for (const Piece& piece : tensor.pieces) {
    const Dims& strides = piece.extent.strides;
    if (strides.empty()) continue;
    uint64_t stored = item;
    for (size_t d = 0; d < strides.size() && d < piece.box.shape.size(); ++d)
      if (piece.box.shape[d] > 0)
        stored += (piece.box.shape[d] - 1) * strides[d];
    if (volume(piece.box) / kMaxRatio <= stored / item) continue;
    throw unsafe_error({catalog.files.at(piece.extent.file).path,
                        text::printable(tensor.name)},
                       "expands {} of storage to {}", text::iec_size(stored),
                       text::iec_size(bytes))
        .with_hint("leave it out with --exclude");
  }
}

}  // namespace ckpt::torch
