// SPDX-License-Identifier: Apache-2.0
// Dotted names for what a value tree holds: tensors, and the largest subtrees
// that hold no tensor (objects).
//
//   {"model": {"w": tensor, "blocks": [tensor]}, "step": 7}
//   tensors  model.w, model.blocks.0       objects  step
//
// An nn.Module contributes its _parameters, _buffers and _modules without those
// words, a sparse tensor its parts: x.indices, x.values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "containers/torch/container.h"
#include "containers/torch/tensors.h"

namespace ckpt::torch {

// A tensor found in a tree.
struct NamedTensor {
  std::string name;  // unique in the tree
  pickle::Id node = pickle::kNoId;
  TensorRef ref;
  std::vector<std::string> path;  // the key at each level; joined: the name
  Kind kind = Kind::model;
  std::string param;  // optimizer state: name or index of its parameter …
  std::string state;  // … and which state: "exp_avg"
};

struct NamedObject {
  std::string name;
  pickle::Id node = pickle::kNoId;
};

struct Tree {
  std::vector<NamedTensor> tensors;  // in the order of the pickle
  std::vector<NamedObject> objects;
  std::vector<Problem> problems;  // equal names, tensors without data
  // kPersistent nodes of storages that no tensor above covers.
  std::vector<pickle::Id> loose_storages;
};

// Walks the document from `root`, iteratively. Shared values are listed under
// each of their names (tied weights); cycles are cut. Throws input_error for
// malformed tensors, nesting deeper than 512 and sharing that multiplies
// without bound. `prefix` goes before every name ("" for none).
Tree walk(const Container& container, pickle::Id root,
          const std::string& prefix = {});

// Adds a container's tree to a catalog: tensors with ties, objects, problems.
void add_to_catalog(Catalog& catalog, const Container& container,
                    const Tree& tree);
// Makes the tree the catalog's skeleton; reads the small storages that no
// tensor covers.
void set_skeleton(Catalog& catalog, const Container& container,
                  const Tree& tree);

// Throws unsafe_error for a tensor far larger than its stored bytes (stride 0),
// which can be listed but not written. Writers call it on every source tensor.
void check_materialisable(const Tensor& tensor, const Catalog& catalog);

}  // namespace ckpt::torch
