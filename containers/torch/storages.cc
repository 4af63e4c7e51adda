// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/storages.h"

#include "ckpt/note.h"
#include "lib/text/format.h"
#include "lib/text/words.h"

namespace ckpt::torch {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

uint64_t read_count(const Document& document, Id node, std::string_view what,
                    const std::string& path) {
  if (!document.is(node, Type::kInt) || document.integer(node) < 0)
    throw input_error({path, {}},
                      "persistent id: {} is not an integer of 64 bits >= 0",
                      what);
  return static_cast<uint64_t>(document.integer(node));
}

// torch writes strings; some writers of the Python 2 days wrote integers.
std::string read_key(const Document& document, Id node,
                     const std::string& path) {
  if (document.is(node, Type::kString) || document.is(node, Type::kBytes))
    return std::string(document.text(node));
  if (document.is(node, Type::kInt))
    return std::to_string(document.integer(node));
  throw input_error({path, {}},
                    "persistent id: the storage key is not a string");
}

uint64_t byte_count(uint64_t elements, const std::optional<DType>& dtype,
                    const std::string& key, const std::string& path) {
  const auto bytes = checked_mul(elements, item_size(dtype));
  // File offsets are signed, so more than 2^63 bytes can't exist.
  if (!bytes || *bytes > INT64_MAX)
    throw input_error({path, {}},
                      "storage {}: {} elements of {} bytes overflow",
                      text::printable(key), elements, item_size(dtype));
  return *bytes;
}

// (view key, offset, size) in elements: the storage was a view of another.
void read_view(const Document& document, Id node, StorageId& id,
               const std::string& path) {
  if (document.is(node, Type::kNone)) return;
  if ((!document.is(node, Type::kTuple) && !document.is(node, Type::kList)) ||
      document.items(node).size() != 3)
    throw input_error({path, {}},
                      "storage {}: its view is not a tuple of 3 elements",
                      text::printable(id.key));
  const auto items = document.items(node);
  const uint64_t offset = read_count(document, items[1], "view offset", path);
  const uint64_t size = read_count(document, items[2], "view size", path);
  id.begin = byte_count(offset, id.dtype, id.key, path);
  id.size = byte_count(size, id.dtype, id.key, path);
  if (id.begin > id.bytes || id.size > id.bytes - id.begin)
    throw input_error(
        {path, {}}, "storage {}: a view of bytes {}-{} leaves its {} bytes",
        text::printable(id.key), id.begin, id.begin + id.size, id.bytes);
}

std::string describe(const std::optional<DType>& dtype) {
  return dtype ? std::string(name(*dtype)) : "untyped";
}

// Adds a use of a storage; the first one declares its size.
void add_use(Id node, const StorageId& id,
             std::unordered_map<std::string, uint32_t>& by_key,
             Storages& storages, std::vector<Problem>& problems) {
  const auto [it, first] =
      by_key.try_emplace(id.key, static_cast<uint32_t>(storages.all.size()));
  if (first)
    storages.all.push_back(
        {.key = id.key, .declared = id.bytes, .dtype = id.dtype});
  const Storage& storage = storages.all[it->second];
  if (storage.declared != id.bytes)
    throw input_error({storages.path, {}},
                      "storage {}: declared with {} bytes and with {}",
                      text::printable(id.key), storage.declared, id.bytes);
  if (storage.dtype != id.dtype)
    warn(problems, "storage_dtypes", storages.path,
         fmt::format("storage {} is declared as {} and as {}; each tensor is "
                     "read as its own declaration says",
                     text::printable(id.key), describe(storage.dtype),
                     describe(id.dtype)));
  storages.uses.emplace(node, StorageUse{.storage = it->second,
                                         .dtype = id.dtype,
                                         .begin = id.begin,
                                         .bytes = id.size});
}

}  // namespace

uint64_t item_size(const std::optional<DType>& dtype) {
  return dtype ? element_size(*dtype) : 1;
}

namespace {

// torch.jit.save names a class for each type, also for those that Python's
// torch has none for: UInt16Storage, Float8_e4m3fnStorage.
std::optional<DType> dtype_of_script(std::string_view name) {
  constexpr std::string_view kEnd = "Storage";
  if (!name.ends_with(kEnd)) return std::nullopt;
  const auto dtype =
      dtype_from_torch(text::lower(name.substr(0, name.size() - kEnd.size())));
  return dtype && info(*dtype).storage.empty() ? dtype : std::nullopt;
}

}  // namespace

std::optional<DType> storage_dtype(const Document& document, Id node,
                                   const std::string& path) {
  if (!document.is(node, Type::kGlobal))
    throw input_error({path, {}},
                      "persistent id: the storage type is not a class");
  // torch.FloatStorage, torch.cuda.FloatStorage, torch.storage.…
  const std::string_view module = document.module(node);
  const std::string_view name = document.text(node);
  if (module.substr(0, module.find('.')).starts_with("torch")) {
    if (name == "UntypedStorage") return std::nullopt;
    if (const auto dtype = dtype_from_storage(name)) return dtype;
    if (const auto dtype = dtype_of_script(name)) return dtype;
  }
  throw input_error({path, {}}, "unknown storage type {}.{}",
                    text::printable(module), text::printable(name));
}

StorageId read_storage_id(const Document& document, Id node, size_t arity,
                          const std::string& path) {
  const Id tuple = document.items(node)[0];
  if (!document.is(tuple, Type::kTuple) ||
      document.items(tuple).size() != arity)
    throw input_error({path, {}}, "persistent id is not a tuple of {} elements",
                      arity);
  const auto items = document.items(tuple);
  const bool is_text = document.is(items[0], Type::kString) ||
                       document.is(items[0], Type::kBytes);
  if (!is_text || document.text(items[0]) != "storage")
    throw input_error({path, {}}, "persistent id does not say 'storage'");

  StorageId id;
  id.dtype = storage_dtype(document, items[1], path);
  id.key = read_key(document, items[2], path);
  id.bytes = byte_count(read_count(document, items[4], "size", path), id.dtype,
                        id.key, path);
  id.size = id.bytes;
  if (arity == 6) read_view(document, items[5], id, path);
  return id;
}

void collect_storages(const Document& document, size_t arity,
                      const std::function<bool(Id)>& skip, Storages& storages,
                      std::vector<Problem>& problems) {
  std::unordered_map<std::string, uint32_t> by_key;
  for (Id node = 0; node < document.size(); ++node) {
    if (document.type(node) != Type::kPersistent || skip(node)) continue;
    const StorageId id = read_storage_id(document, node, arity, storages.path);
    add_use(node, id, by_key, storages, problems);
  }
}

uint32_t add_file(Catalog& catalog, const std::string& path, uint64_t size) {
  catalog.files.push_back({.path = path, .size = size});
  return static_cast<uint32_t>(catalog.files.size() - 1);
}

void warn(std::vector<Problem>& problems, std::string kind, std::string file,
          std::string message) {
  problems.push_back(warning(std::move(kind), {std::move(file), {}}, "{}",
                             std::move(message)));
}

}  // namespace ckpt::torch
