// SPDX-License-Identifier: Apache-2.0
// Edits the common part of a catalog: a copy of its values in one document,
// with the bytes of small tensors.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ckpt/catalog.h"
#include "lib/pickle/value.h"

namespace ckpt::megatron {

class CommonEditor {
 public:
  explicit CommonEditor(Catalog& catalog);

  pickle::Document& document() { return *document_; }
  // The value of an entry; kNoId if absent.
  pickle::Id find(std::string_view name) const;
  // Changes an entry, or appends it.
  void set(std::string_view name, pickle::Id value);
  // Copies a value of another document.
  pickle::Id import(const pickle::Document& other, pickle::Id value) {
    return document_->import(other, value);
  }
  // Copies the value of an object with its own archive, and the bytes of its
  // tensors.
  pickle::Id import_object(const Object& object);
  // A number, or a tensor of one element whose bytes are at hand.
  std::optional<double> scalar(pickle::Id value) const;

  // Gives the catalog the changed values.
  void finish();

 private:
  Catalog& catalog_;
  std::shared_ptr<pickle::Document> document_;
  std::unordered_map<pickle::Id, Content> storages_;  // bytes, by node
  std::unordered_map<std::string, pickle::Id> entries_;
  std::vector<std::string> added_;
};

}  // namespace ckpt::megatron
