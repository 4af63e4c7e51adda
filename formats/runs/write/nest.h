// SPDX-License-Identifier: Apache-2.0
// A new state dict, to be laid out as DCP: a source's tensors and values at the
// places where a loader expects them.
//
//   nest.add({"optimizer", "state", "model.norm.weight", "exp_avg"}, 7);
//   nest.add_value({"optimizer", "param_groups"}, document, list);
//
// Private to this room.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/pickle/value.h"

namespace ckpt::runs {

class Nest {
 public:
  using Path = std::vector<std::string>;

  explicit Nest(const Catalog& source);

  // Adds source.tensors[index]; "" elements of a path are left out.
  void add(const Path& path, size_t index);
  // A list and a dict each come out as a value of their own.
  void add_value(const Path& path, const pickle::Document& from,
                 pickle::Id value);

  // Returns the tensors in the order in which they were added:
  // source.tensors[of()[i]].
  Catalog take();
  const std::vector<size_t>& of() const { return of_; }

 private:
  pickle::Id dict_of(const Path& path, std::string* name);

  const Catalog& source_;
  Catalog catalog_;
  std::vector<size_t> of_;
  std::shared_ptr<pickle::Document> document_ =
      std::make_shared<pickle::Document>();
  pickle::Id root_ = pickle::kNoId;
  pickle::Id rebuild_ = pickle::kNoId;
  pickle::Id arguments_ = pickle::kNoId;
  Skeleton skeleton_;
  std::map<std::string, pickle::Id> dicts_;
};

}  // namespace ckpt::runs
