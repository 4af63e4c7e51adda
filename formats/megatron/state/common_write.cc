// SPDX-License-Identifier: Apache-2.0
// Makes a target's common.pt from the objects of a source.

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/file_plan.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/state/common.h"
#include "formats/megatron/state/job_args.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

// The dtype of ("storage", class, …); bytes if the class has none.
DType storage_dtype(const Document& document, Id persistent) {
  const Id id = document.items(persistent)[0];
  if (!document.is(id, Type::kTuple) || document.items(id).size() < 2)
    return DType::u8;
  const Id type = document.items(id)[1];
  if (!document.is(type, Type::kGlobal)) return DType::u8;
  return dtype_from_storage(document.text(type)).value_or(DType::u8);
}

// Megatron classes that core 0.9, the last with its own kind of zarr, lacks.
// (It has ModelType, AttnType, AttnMaskType.)
bool is_newer_class(std::string_view name) {
  constexpr std::string_view kOld[] = {"ModelType", "AttnType", "AttnMaskType"};
  if (!name.starts_with("megatron.")) return false;
  const std::string_view last = name.substr(name.find_last_of(". ") + 1);
  return std::ranges::find(kOld, last) == std::end(kOld);
}

// Copies values into one document, including the bytes of small tensors.
class Copier {
 public:
  explicit Copier(const Catalog& source) : source_(source) {
    if (!source.skeleton) return;
    const Document& from = *source.skeleton->document;
    for (const auto& [node, content] : source.skeleton->storages)
      inlined_[node] = torch::add_inline_storage(
          document_, storage_dtype(from, node), content);
  }

  // Members of newer enumerations become their values.
  void plain_enums(const Document& from, std::vector<std::string>& classes) {
    for (size_t node = 0; node < from.size(); ++node) {
      const Id id = static_cast<Id>(node);
      if (from.type(id) != Type::kCall) continue;
      const std::string name = from.callable_name(id);
      if (!is_newer_class(name)) continue;
      const Id args = from.call(id).args;
      if (!from.is(args, Type::kTuple) || from.items(args).size() != 1)
        continue;
      inlined_[id] = document_.import(from, from.items(args)[0]);
      if (std::ranges::find(classes, name) == classes.end())
        classes.push_back(name);
    }
    plain_ = &from;
  }

  // Nothing if the value has a tensor whose bytes are not at hand.
  Id copy(const Object& object) {
    const bool known =
        object.document.get() == plain_ ||
        (source_.skeleton && source_.skeleton->document == object.document);
    const size_t before = document_.size();
    const Id id =
        known ? document_.import(*object.document, object.node, inlined_)
              : document_.import(*object.document, object.node);
    for (size_t node = before; node < document_.size(); ++node)
      if (document_.type(static_cast<Id>(node)) == Type::kPersistent &&
          !torch::is_inline_storage(document_, static_cast<Id>(node)))
        return kNoId;
    return id;
  }

  Document& document() { return document_; }

 private:
  const Catalog& source_;
  Document document_;
  std::unordered_map<Id, Id> inlined_;
  const Document* plain_ = nullptr;  // whose ids are in inlined_, too
};

// The file that already has all this: the same values under the same keys, with
// nothing left out.
std::string unchanged_file(const Catalog& source,
                           const std::vector<const Object*>& entries) {
  if (!source.skeleton) return {};
  const Document& document = *source.skeleton->document;
  const auto pairs = document.as_pairs(source.skeleton->root);
  if (!pairs || pairs->size() != 2 * entries.size()) return {};
  for (size_t i = 0; i < entries.size(); ++i) {
    const Object& entry = *entries[i];
    const Id key = (*pairs)[2 * i];
    if (entry.document != source.skeleton->document ||
        entry.node != (*pairs)[2 * i + 1] || !document.is(key, Type::kString) ||
        document.text(key) != entry.name)
      return {};
  }
  for (const File& file : source.files)
    if (io::base_name(file.path) == kCommonFile && file.codec == Codec::kRaw &&
        io::parent(file.path) == source.path)
      return file.path;
  return {};
}

std::string archive(const Document& document, Id root) {
  torch::FilePlan plan =
      torch::plan_file(document, root, {}, torch::archive_root_of(kCommonFile));
  if (plan.file.literals.size() != 1 ||
      plan.file.literals[0].bytes.size() != plan.file.size)
    throw bug_error({kCommonFile, {}}, "a common part with gaps");
  return std::move(plan.file.literals[0].bytes);
}

}  // namespace

bool is_common(const Catalog& source, const Object& object) {
  if (parse_object_key(object.name)) return false;
  return object.bytes == 0 || !source.format.starts_with("megatron_");
}

CommonTarget plan_common(const Catalog& source,
                         const std::vector<ArgChange>& changes, bool old_core) {
  std::vector<const Object*> entries;
  for (const Object& object : source.objects)
    if (is_common(source, object)) entries.push_back(&object);
  Copier copier(source);
  Document& document = copier.document();
  const Id dict = document.add_container(Type::kDict);
  CommonTarget target;
  for (const Object* entry : entries)
    if (old_core && entry->name == kArgs && entry->document)
      copier.plain_enums(*entry->document, target.plain);
  for (const Object* entry : entries) {
    if (!entry->document)
      throw bug_error({{}, entry->name}, "an object that nobody has opened");
    const Id value = copier.copy(*entry);
    if (value == kNoId) {
      target.problems.push_back(warning(
          "object_left_out", {{}, entry->name},
          "holds tensors that the common part can't carry; it is left out"));
      continue;
    }
    if (entry->name == kArgs)
      target.changed = set_args(document, value, changes);
    if (entry->name == kArgs && !source.format.starts_with("megatron_"))
      set_dtype_args(document, value, source);
    document.set(dict, document.add_string(entry->name), value);
  }
  if (target.changed.empty() && target.problems.empty() && target.plain.empty())
    target.copy_of = unchanged_file(source, entries);
  if (target.copy_of.empty()) {
    Document kept;  // without what was left out
    target.bytes = archive(kept, kept.import(document, dict));
  }
  return target;
}

}  // namespace ckpt::megatron
