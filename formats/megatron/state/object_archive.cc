// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/object_archive.h"

#include <map>
#include <tuple>
#include <unordered_map>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "containers/torch/item.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

// A dtype that has no storage class: torch writes UntypedStorage.
constexpr DType kUntyped = DType::f8_e4m3;

// The storages of an archive, each once however many tensors view it.
std::unordered_map<Id, Id> inline_storages(const torch::OpenedObject& opened,
                                           Document& document) {
  std::map<std::tuple<uint32_t, uint64_t, uint64_t>, Id> known;
  std::unordered_map<Id, Id> inlined;
  const auto& uses = opened.container.storages.uses;
  for (const auto& [node, use] : std::map(uses.begin(), uses.end())) {
    const auto [at, fresh] =
        known.try_emplace({use.storage, use.begin, use.bytes}, Id{});
    if (fresh)
      at->second =
          torch::add_inline_storage(document, use.dtype.value_or(kUntyped),
                                    torch::storage_content(opened, node));
    inlined[node] = at->second;
  }
  return inlined;
}

Id value_of(const Document& document, Form form, const ckpt::Where& where) {
  const Id root = document.root();
  if (form == Form::kBare) return root;
  if (!document.is(root, Type::kList) || document.items(root).size() != 1)
    throw input_error(where, "the object's item is not a list of one value");
  return document.items(root)[0];
}

}  // namespace

Form form_of(std::string_view format) {
  return format == "megatron_torch_dist" ? Form::kListOfOne : Form::kBare;
}

std::string object_archive(const Catalog& source, const Object& object,
                           Form form, const std::string& archive_root) {
  const std::string& path = source.files.at(object.file).path;
  const torch::OpenedObject opened =
      torch::open_archive(source, object, io::Handle::open_read(path));
  const Document& from = *opened.container.document;
  const Id value = value_of(from, form_of(source.format),
                            {path, text::printable(object.name)});
  Document document;
  const auto inlined = inline_storages(opened, document);
  Id root = document.import(from, value, inlined);
  if (form == Form::kListOfOne)
    root = document.add_container(Type::kList, {root});
  torch::FilePlan plan = torch::plan_file(document, root, {}, archive_root);
  if (plan.file.literals.size() != 1 ||
      plan.file.literals[0].bytes.size() != plan.file.size)
    throw bug_error({path, object.name}, "an archive with gaps");
  return std::move(plan.file.literals[0].bytes);
}

}  // namespace ckpt::megatron
