// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/value_item.h"

#include <unordered_map>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "lib/pickle/parts.h"
#include "lib/text/format.h"

namespace ckpt::dcp {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

const Content* content_of(const Catalog& source, const Document& document,
                          Id node) {
  if (!source.skeleton || source.skeleton->document.get() != &document)
    return nullptr;
  for (const auto& [id, content] : source.skeleton->storages)
    if (id == node) return &content;
  return nullptr;
}

// The dtype of ("storage", class, …); bytes if the class implies none.
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
  for (const Id id : pickle::storages_below(document, node))
    if (!content_of(source, document, id)) return true;
  return false;
}

std::string value_item(const Catalog& source, const std::string& name,
                       const Document& document, Id node, bool wrap) {
  Document tree;
  std::unordered_map<Id, Id> inlined;
  for (const Id id : pickle::storages_below(document, node)) {
    const Content* content = content_of(source, document, id);
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
