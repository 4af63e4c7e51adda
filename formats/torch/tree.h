// Dotted names for what a value tree holds: tensors, and the largest subtrees
// that hold no tensor (objects).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/torch/container.h"
#include "formats/torch/tensors.h"

namespace ckpt::torch {

// A tensor found in a tree.
struct NamedTensor {
  std::string name;  // unique in the tree
  pickle::Id node = pickle::kNoId;
  TensorRef ref;
  std::vector<std::string> path;  // the key at each level; joined: the name
  Kind kind = Kind::model;
  std::string param;  // optimizer state: index or name of its parameter …
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
};

// Walks the document from `root`, iteratively; a value that is shared is
// visited under its first path only, except tensors and what holds them,
// which are listed under each of their names (tied weights). `prefix` goes
// before every name ("" for none).
Tree walk(const Container& container, pickle::Id root,
          const std::string& prefix = {});

// Adds a container's tree to a catalog: tensors with ties, objects, problems
// and (if the catalog has none) the skeleton.
void add_to_catalog(Catalog& catalog, const Container& container,
                    const Tree& tree);

// A tensor far larger than the bytes behind it (stride 0) can be listed but
// not written: throws unsafe_error. Writers call it on every source tensor.
void check_materialisable(const Tensor& tensor, const Catalog& catalog);

}  // namespace ckpt::torch
