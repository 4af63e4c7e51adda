// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/write/nest.h"

#include "formats/target.h"

namespace ckpt::runs {

using pickle::Document;
using pickle::Id;
using pickle::Type;

Nest::Nest(const Catalog& source) : source_(source) {
  catalog_.path = source.path;
  catalog_.family = source.family;
  catalog_.dialect = source.dialect;
  root_ = document_->add_container(Type::kDict);
  rebuild_ = document_->add_global("torch._utils", "_rebuild_tensor_v2");
  const Id storage = document_->add_container(
      Type::kTuple, {document_->add_string("storage"),
                     document_->add_global("torch", "FloatStorage"),
                     document_->add_string("0"), document_->add_string("cpu"),
                     document_->add_int(0)});
  arguments_ = document_->add_container(Type::kTuple,
                                        {document_->add_persistent(storage)});
}

// The dict that the path's last element is a key of; `name`: the whole path,
// dotted.
Id Nest::dict_of(const Path& path, std::string* name) {
  Id dict = root_;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i].empty()) continue;
    *name += (name->empty() ? "" : ".") + path[i];
    if (i + 1 == path.size()) break;
    const auto [known, fresh] = dicts_.try_emplace(*name, pickle::kNoId);
    if (fresh) {
      known->second = document_->add_container(Type::kDict);
      document_->set(dict, path[i], known->second);
    }
    dict = known->second;
  }
  return dict;
}

void Nest::add(const Path& path, size_t index) {
  std::string name;
  const Id dict = dict_of(path, &name);
  Tensor tensor = formats::without_pieces(source_.tensors[index]);
  tensor.name = name;
  tensor.tie = 0;
  const Id node = document_->add_call(rebuild_, arguments_);
  document_->set(dict, path.back(), node);
  skeleton_.tensors.emplace_back(node, name);
  catalog_.tensors.push_back(std::move(tensor));
  of_.push_back(index);
}

void Nest::add_value(const Path& path, const Document& from, Id value) {
  std::string name;
  const Id dict = dict_of(path, &name);
  const Id copy = document_->import(from, value);
  document_->set(dict, path.back(), copy);
  catalog_.objects.push_back(
      {.name = name, .document = document_, .node = copy});
}

Catalog Nest::take() {
  skeleton_.root = root_;
  document_->set_root(root_);
  skeleton_.document = document_;
  catalog_.skeleton = std::move(skeleton_);
  return std::move(catalog_);
}

}  // namespace ckpt::runs
