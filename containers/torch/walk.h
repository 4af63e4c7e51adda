// SPDX-License-Identifier: Apache-2.0
// The order in which values are visited, and their names: the reader lists
// them, the writer finds them again. Private to this room.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/pickle/value.h"

namespace ckpt::torch {

// How a value is attached to its holder.
enum class Site : uint8_t {
  kRoot,
  kPair,     // value `index` of a mapping (dict, OrderedDict …)
  kElement,  // of a list, tuple or set
  kInside,   // somewhere in an opaque object or a tensor's parts
};

struct Visit {
  pickle::Id node = pickle::kNoId;
  pickle::Id holder = pickle::kNoId;
  uint32_t index = 0;
  Site site = Site::kRoot;
  // It is, or is below, what an nn.Module keeps beside its state dict: buffers
  // that are not persistent, and plain attributes.
  bool attribute = false;
  std::vector<std::string> path;  // the root's is empty
};

// What the visitor wants next.
enum class Next : uint8_t {
  kDescend,     // if it leads to a storage
  kOpen,        // even if it does not
  kAttributes,  // of a tensor: only its Python attributes
  kSkip,
};

// Visits `root` and, below it, every value that leads to a kPersistent node
// or is an entry of a mapping, list or tuple on the way there. Throws
// input_error (naming `file`) for nesting or sharing without bound.
void visit_tree(
    const pickle::Document& document, pickle::Id root, const std::string& file,
    const std::function<Next(const Visit&, bool holds_storage)>& visitor);

// Which nodes lead to one of `targets`, including the targets themselves.
std::vector<bool> mark_holders(const pickle::Document& document,
                               std::vector<pickle::Id> targets);

// Key, value, key, value … of a dict or a call that behaves like one.
bool is_mapping(const pickle::Document& document, pickle::Id node);

// The dicts of an nn.Module's parameters, buffers and modules, of the state
// that its class's __setstate__ gets; nothing if it is another object's.
std::optional<std::array<pickle::Id, 3>> module_parts(
    const pickle::Document& document, pickle::Id state);

// "weight", "3", "None": a dict's key in a dotted name.
std::string key_text(const pickle::Document& document, pickle::Id key,
                     size_t position);

// "a.b.c", with the prefix before it.
std::string join_path(const std::string& prefix,
                      const std::vector<std::string>& path);

}  // namespace ckpt::torch
