// SPDX-License-Identifier: Apache-2.0
// Values that are not tensors, as trees: nested dicts and lists. Tuples, sets
// and instances of classes are leaves. Rules and names are those of
// megatron-core's dict_utils.
//
//   Catalog::objects ──► json_of, inspect_types, diff_trees, merge_trees
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt {

// Canonical JSON: {"!tensor": …} and so on for what JSON lacks; values of more
// than 100,000 elements are shown in part. The object must have been opened
// (load_objects).
std::string json_of(const Object& object);

// An object from JSON, canonical or not: tagged numbers are numbers. Throws
// usage_error for invalid JSON, and for tags of what JSON lacks (!tuple,
// !tensor).
Object object_from_json(std::string name, const std::string& json);

// A leaf, or a dict or list without elements: where it is and what it is.
struct TreeLeaf {
  std::string path;  // "optimizer.param_groups.0.lr"; "" for the tree itself
  std::string type;  // "float", "str", "torch Tensor", "argparse Namespace"
};
// At most `limit` of them, in the order of the tree.
std::vector<TreeLeaf> inspect_types(const Object& tree,
                                    uint64_t limit = 100'000);

struct TreeDifference {
  struct Mismatch {
    std::string path;
    std::string left, right;  // types of the two leaves
  };
  std::vector<std::string> only_left;
  std::vector<std::string> only_right;
  std::vector<Mismatch> mismatching;
  bool empty() const {
    return only_left.empty() && only_right.empty() && mismatching.empty();
  }
};
// Paths that only one side has, and leaves that are not equal. Tensors inside
// an object are compared by description, not by elements.
TreeDifference diff_trees(const Object& left, const Object& right);

// Both trees in one: dicts by their keys, lists of equal length element by
// element. Throws unfaithful_error, naming the path, for lists of
// different lengths and for a leaf that both have.
Object merge_trees(const Object& left, const Object& right);

}  // namespace ckpt
