// SPDX-License-Identifier: Apache-2.0
// The tensors of a model by name, in order, and which of them rules have used.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::families {

class NamedTensors {
 public:
  explicit NamedTensors(std::vector<Tensor> tensors)
      : tensors_(std::move(tensors)) {
    for (size_t i = 0; i < tensors_.size(); ++i)
      index_.emplace(tensors_[i].name, i);
    used_.resize(tensors_.size(), false);
  }
  // False if there is one of that name.
  bool add(Tensor tensor) {
    if (!index_.emplace(tensor.name, tensors_.size()).second) return false;
    tensors_.push_back(std::move(tensor));
    used_.push_back(false);
    return true;
  }
  const Tensor* find(const std::string& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
  }
  void use(const std::string& name) { used_[index_.at(name)] = true; }
  // Frees the pieces of a tensor that nothing will ask for again.
  void spend(const std::string& name) {
    std::vector<Piece>().swap(tensors_[index_.at(name)].pieces);
  }
  std::vector<Tensor>& tensors() { return tensors_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  bool used(size_t i) const { return used_[i]; }

 private:
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<bool> used_;
};

}  // namespace ckpt::families
