// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/value_item.h"

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "lib/text/format.h"

namespace ckpt::dcp {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

// The kPersistent nodes that a value leads to.
std::vector<Id> persistents(const Document& document, Id root) {
  std::vector<Id> found, open{root};
  std::unordered_set<Id> seen{root};
  const auto visit = [&](Id id) {
    if (id != kNoId && seen.insert(id).second) open.push_back(id);
  };
  while (!open.empty()) {
    const Id id = open.back();
    open.pop_back();
    switch (document.type(id)) {
      case Type::kPersistent:
        found.push_back(id);
        break;
      case Type::kCall: {
        const pickle::Call call = document.call(id);
        for (const Id part :
             {call.callable, call.args, call.kwargs, call.state})
          visit(part);
        for (const Id item : call.items) visit(item);
        for (const Id item : call.pairs) visit(item);
        break;
      }
      case Type::kList:
      case Type::kTuple:
      case Type::kSet:
      case Type::kFrozenSet:
      case Type::kDict:
        for (const Id item : document.items(id)) visit(item);
        break;
      default:
        break;
    }
  }
  return found;
}

const std::string* content_of(const Catalog& source, const Document& document,
                              Id node) {
  if (!source.skeleton || source.skeleton->document.get() != &document)
    return nullptr;
  for (const auto& [id, content] : source.skeleton->storages)
    if (id == node) return &content;
  return nullptr;
}

// The dtype of ("storage", class, …); bytes where the class says none.
DType dtype_of(const Document& document, Id persistent) {
  const Id id = document.items(persistent)[0];
  if (!document.is(id, Type::kTuple) || document.items(id).size() < 2)
    return DType::u8;
  const Id type = document.items(id)[1];
  if (!document.is(type, Type::kGlobal)) return DType::u8;
  return dtype_from_storage(document.text(type)).value_or(DType::u8);
}

}  // namespace

bool has_unknown_storage(const Catalog& source, const Document& document,
                         Id node) {
  for (const Id id : persistents(document, node))
    if (!content_of(source, document, id)) return true;
  return false;
}

std::string value_item(const Catalog& source, const std::string& name,
                       const Document& document, Id node, bool wrap) {
  Document tree;
  std::unordered_map<Id, Id> inlined;
  for (const Id id : persistents(document, node)) {
    const std::string* content = content_of(source, document, id);
    if (!content)
      throw unfaithful_error({source.path, text::printable(name)},
                             "this object holds tensors, and a value beside "
                             "them can't be written alone");
    inlined[id] =
        torch::add_inline_storage(tree, dtype_of(document, id), *content);
  }
  Id root = tree.import(document, node, inlined);
  if (wrap) root = tree.add_container(Type::kList, {root});
  torch::FilePlan plan = torch::plan_file(tree, root, {}, "archive");
  if (plan.file.literals.size() != 1 ||
      plan.file.literals[0].bytes.size() != plan.file.size)
    throw bug_error({source.path, name}, "an object with gaps");
  return std::move(plan.file.literals.own()[0].bytes);
}

}  // namespace ckpt::dcp
