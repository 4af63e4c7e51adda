// SPDX-License-Identifier: Apache-2.0
// Copies a value tree with some entries left out, renamed or replaced by
// tensors. Sharing and cycles are kept; nothing recurses. Private to this
// room.
#pragma once

#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "containers/torch/file_plan.h"
#include "lib/pickle/value.h"

namespace ckpt::torch {

class Copier {
 public:
  Copier(const pickle::Document& source, std::span<const TensorSlot> slots)
      : source_(source), slots_(slots) {}

  // Replaces a tensor's node by slots[slot], inside the wrappers that it had.
  void set_tensor(pickle::Id node, size_t slot) { tensors_[node] = slot; }
  // Sets the content of a storage that has no tensor.
  void set_storage(pickle::Id node, const Content& content) {
    storages_[node] = &content;
  }
  // Leaves out entry `index` of a mapping, or gives it another key.
  void drop(pickle::Id mapping, uint32_t index) {
    edits_[{mapping, index}] = {.drop = true, .key = {}};
  }
  void rename(pickle::Id mapping, uint32_t index, std::string key) {
    edits_[{mapping, index}] = {.drop = false, .key = std::move(key)};
  }
  // Makes element `index` of a list or tuple None, so that the others keep
  // their places.
  void blank(pickle::Id container, uint32_t index) {
    edits_[{container, index}] = {.drop = true, .key = {}};
  }

  // Returns the id in document().
  pickle::Id copy(pickle::Id root);
  // Adds an entry to a mapping that was copied.
  void add(pickle::Id mapping, const std::string& key, size_t slot);
  pickle::Document& document() { return out_; }

 private:
  struct Edit {
    bool drop = false;
    std::string key;
  };
  const Edit* edit(pickle::Id holder, size_t index) const;
  pickle::Id copied(pickle::Id node) const;
  void make(pickle::Id root);
  std::vector<pickle::Id> needed(pickle::Id node) const;
  pickle::Id create(pickle::Id node);
  pickle::Id create_call(pickle::Id node);
  pickle::Id create_tensor(pickle::Id node, size_t slot);
  pickle::Id create_storage(pickle::Id node);
  std::vector<pickle::Id> storage_arguments(size_t slot);
  void fill(pickle::Id node);
  void fill_pairs(pickle::Id node, const std::vector<pickle::Id>& pairs);

  const pickle::Document& source_;
  std::span<const TensorSlot> slots_;
  pickle::Document out_;
  std::unordered_map<pickle::Id, size_t> tensors_;
  std::unordered_map<pickle::Id, const Content*> storages_;
  std::map<std::pair<pickle::Id, size_t>, Edit> edits_;
  std::vector<pickle::Id> copies_;        // by source node
  std::unordered_set<pickle::Id> begun_;  // being made
  std::vector<pickle::Id> unfilled_;
};

}  // namespace ckpt::torch
