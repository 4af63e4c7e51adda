// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/objects.h"

#include <optional>
#include <string_view>
#include <unordered_map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/container.h"
#include "containers/torch/item.h"
#include "containers/torch/nested.h"
#include "containers/torch/tensors.h"
#include "containers/torch/tree.h"
#include "formats/runs/merge.h"
#include "lib/io/file.h"
#include "lib/pickle/decode.h"
#include "lib/pickle/json.h"

namespace ckpt::runs {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

constexpr uint64_t kMaxJson = uint64_t{256} << 20;
// A value's tensors up to this total size stay inside it.
constexpr uint64_t kMaxInside = uint64_t{16} << 20;

bool is_json(const std::string& path) { return path.ends_with(".json"); }

bool is_torch(torch::Sniffed what) {
  return what == torch::Sniffed::kTorchZip ||
         what == torch::Sniffed::kTorchLegacy ||
         what == torch::Sniffed::kTorchTar;
}

uint64_t storage_bytes(const torch::Container& container) {
  uint64_t sum = 0;
  for (const torch::Storage& storage : container.storages.all)
    sum = checked_add(sum, storage.size).value_or(UINT64_MAX);
  return sum;
}

std::optional<uint64_t> as_number(const Document& document, Id id) {
  const auto value = document.as_int(id);
  if (!value || *value < 0) return std::nullopt;
  return static_cast<uint64_t>(*value);
}

// Finds "a.b" below a value.
Id below(const Document& document, Id id, std::string_view key) {
  while (id != pickle::kNoId) {
    const size_t dot = key.find('.');
    id = document.find(id, key.substr(0, dot));
    if (dot == key.npos) return id;
    key.remove_prefix(dot + 1);
  }
  return id;
}

// Imports the value into the common document, with the bytes of its storages.
Id import_value(const torch::Container& container, const Catalog& catalog,
                Values& values) {
  const Document& source = *container.document;
  Document& document = *values.document;
  std::unordered_map<Id, Id> substitutes;
  for (const auto& [node, use] : container.storages.uses) {
    const Id copy =
        document.add_persistent(document.import(source, source.items(node)[0]));
    substitutes[node] = copy;
    values.storages.emplace_back(
        copy, torch::storage_content(catalog, container, node));
  }
  return document.import(source, source.root(), substitutes);
}

// A file of pickle.dump, up to its STOP. Python ignores what follows.
pickle::Decoded open_pickle(const std::string& path,
                            const formats::ReadOptions& options,
                            Catalog& catalog) {
  const io::Handle file = io::Handle::open_read(path);
  pickle::Decoded decoded = pickle::decode(file, 0, file.size());
  if (options.restrict_globals) torch::check_globals(decoded.globals, path);
  torch::add_globals(catalog, decoded.globals);
  if (decoded.end != file.size())
    catalog.problems.push_back(warning("trailing_bytes", {path, {}},
                                       "{} bytes after the end of the pickle",
                                       file.size() - decoded.end));
  return decoded;
}

// The bytes of torch.storage._load_from_bytes(b"…"); nothing for another value.
std::optional<std::string_view> loaded_bytes(const Document& document,
                                             Id node) {
  if (!document.is_call(node, "torch.storage", "_load_from_bytes"))
    return std::nullopt;
  const Id args = document.call(node).args;
  if (!document.is(args, Type::kTuple)) return std::nullopt;
  const auto items = document.items(args);
  if (items.size() != 1 || !document.is(items[0], Type::kBytes))
    return std::nullopt;
  return document.text(items[0]);
}

// pickle.dump keeps each storage as a file of torch.save of its own:
//
//   _rebuild_tensor_v2(_load_from_bytes(b"magic … n | data"), 0, (n,), …)
//
// They become what torch.save would have written of the same value.
Id import_pickle(const Document& source, const std::string& path,
                 const formats::ReadOptions& options, Values& values,
                 Catalog& catalog) {
  Document& document = *values.document;
  std::unordered_map<Id, Id> substitutes;
  uint64_t left = kMaxInside;
  for (Id node = 0; node < source.size(); ++node) {
    const auto bytes = loaded_bytes(source, node);
    if (!bytes || bytes->size() > left) continue;
    left -= bytes->size();
    const torch::Container inner =
        torch::open_nested(*bytes, path, catalog, options);
    const Id root = inner.document->root();
    const torch::StorageUse* use = inner.storages.find(root);
    if (use == nullptr) continue;
    const torch::Storage& storage = inner.storages.all[use->storage];
    const Id copy = document.add_persistent(
        document.import(*inner.document, inner.document->items(root)[0]));
    substitutes[node] = copy;
    values.storages.emplace_back(
        copy,
        std::string(bytes->substr(storage.offset + use->begin, use->bytes)));
  }
  return document.import(source, source.root(), substitutes);
}

}  // namespace

std::string add_object(const std::string& path, const std::string& name,
                       const formats::ReadOptions& options, Values& values,
                       Catalog& catalog) {
  if (io::file_size(path) == 0) throw input_error({path, {}}, "is empty");
  if (is_json(path)) {
    const Id root = pickle::read_json(*values.document,
                                      io::read_file(path, kMaxJson), path);
    catalog.objects.push_back({name, values.document, root});
    return {};
  }
  const torch::Sniffed what = torch::sniff(path).what;
  if (what == torch::Sniffed::kPickle) {
    const pickle::Decoded decoded = open_pickle(path, options, catalog);
    catalog.objects.push_back(
        {name, values.document,
         import_pickle(*decoded.document, path, options, values, catalog)});
    return {};
  }
  if (!is_torch(what)) {
    catalog.problems.push_back(
        remark("unread_file", {path, {}},
               "is not a file of torch.save; its values are "
               "not shown"));
    return {};
  }
  Catalog one;
  const torch::Container container = torch::open_container(path, one, options);
  if (storage_bytes(container) > kMaxInside) {
    torch::add_to_catalog(
        one, container,
        torch::walk(container, container.document->root(), name + "."));
    for (Tensor& tensor : one.tensors) tensor.kind = Kind::other;
  } else {
    one.objects.push_back(
        {name, values.document, import_value(container, one, values)});
  }
  Merger(catalog).add(std::move(one));
  return container.directory;
}

std::optional<uint64_t> number_in(const std::string& path,
                                  const std::string& key) {
  if (!io::is_file(path)) return std::nullopt;
  if (is_json(path)) {
    Document document;
    const Id root =
        pickle::read_json(document, io::read_file(path, kMaxJson), path);
    return as_number(document, below(document, root, key));
  }
  const torch::Sniffed what = torch::sniff(path).what;
  Catalog aside;
  if (what == torch::Sniffed::kPickle) {
    const auto value = open_pickle(path, {}, aside).document;
    return as_number(*value, below(*value, value->root(), key));
  }
  if (!is_torch(what)) return std::nullopt;
  const torch::Container container = torch::open_container(path, aside);
  return as_number(*container.document,
                   below(*container.document, container.document->root(), key));
}

std::optional<uint64_t> number_of(const Catalog& catalog,
                                  const std::string& object) {
  for (const Object& one : catalog.objects) {
    if (one.name != object) continue;
    Object opened = one;
    if (opened.document == nullptr) torch::open_object(catalog, opened);
    return as_number(*opened.document, opened.node);
  }
  return std::nullopt;
}

}  // namespace ckpt::runs
