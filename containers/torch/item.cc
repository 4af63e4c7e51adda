// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/item.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "containers/torch/distributed.h"
#include "containers/torch/item_ends.h"
#include "containers/torch/storages.h"
#include "lib/codec/stream.h"
#include "lib/failures.h"
#include "lib/io/ahead.h"
#include "lib/io/remote.h"
#include "lib/pickle/decode.h"
#include "lib/text/format.h"

namespace ckpt::torch {
namespace {

using text::printable;

// Items up to this size are read whole, and neighbours with them.
constexpr uint64_t kSmallItem = 2 * kItemEnd;
constexpr uint64_t kBlock = 64 << 10;
// Objects are usually small. Larger ones than this are read in place.
constexpr uint64_t kSmallObject = 64 << 10;
// Pickles up to this length, and so many of them, are remembered.
constexpr size_t kMostKnown = 4096;

std::string describe(DType dtype, const Shape& shape) {
  return fmt::format("{} {}", name(dtype), to_string(shape));
}

void check_tensor(const std::string& path, uint64_t offset, DType found,
                  const Shape& found_shape, DType dtype, const Shape& shape,
                  const std::string& name) {
  if (found == dtype && found_shape == shape) return;
  throw input_error({path, printable(name)},
                    "the item at byte {} is a tensor {}, its index says {}",
                    offset, describe(found, found_shape),
                    describe(dtype, shape));
}

// Rethrows an error from inside an item, adding the item's place.
[[noreturn]] void rethrow(const Error& error, const std::string& path,
                          uint64_t offset, const std::string& name) {
  throw Error(error.code(), {path, printable(name)},
              fmt::format("the item at byte {}: {}", offset, error.problem()),
              error.hint());
}

// The value of an item that should be a tensor, in a few words.
std::string what_it_is(const pickle::Document& document) {
  const pickle::Id root = document.root();
  std::string what(pickle::name(document.type(root)));
  const std::string callable = document.callable_name(root);
  return callable.empty() ? what : what + " " + printable(callable);
}

// The class of a tensor that only that class can rebuild; "" for other values.
std::string subclass_name(const pickle::Document& document) {
  const pickle::Id root = document.root();
  if (!document.is_call(root, "torch._tensor", "_rebuild_from_type_v2"))
    return {};
  const pickle::Id args = document.call(root).args;
  if (!document.is(args, pickle::Type::kTuple)) return {};
  const auto items = document.items(args);
  if (items.size() < 2 || is_distributed_class(document, items[1]) ||
      !document.is(items[1], pickle::Type::kGlobal) ||
      !document.is_global(items[0], "torch._utils",
                          "_rebuild_wrapper_subclass"))
    return {};
  return std::string(document.module(items[1])) + "." +
         std::string(document.text(items[1]));
}

}  // namespace

Container open_item(const io::Handle& item, uint32_t file, uint64_t base,
                    std::vector<StoredCrc>* crcs,
                    std::vector<Problem>* problems) {
  Catalog scratch;
  Container container = open_zip(item, scratch);
  for (Storage& storage : container.storages.all) {
    if (storage.file != 0)
      throw input_error({item.path(), {}},
                        "record data/{} of an archive inside of a file is "
                        "deflated",
                        printable(storage.key))
          .with_hint("torch stores tensors as they are: save it again");
    storage.file = file;
    storage.offset += base;
  }
  if (crcs != nullptr)
    for (StoredCrc& crc : scratch.crcs) {
      crc.file = file;
      crc.begin += base;
      crc.end += base;
      crcs->push_back(std::move(crc));
    }
  if (problems != nullptr)
    problems->insert(problems->end(), scratch.problems.begin(),
                     scratch.problems.end());
  return container;
}

// --- tensors ---

std::string_view TensorLocator::read(uint64_t offset, uint64_t count,
                                     uint64_t ahead) {
  const uint64_t end = buffer_at_ + buffer_.size();
  if (offset < buffer_at_ || offset > end || count > end - offset) {
    const uint64_t left = file_.size() - offset;
    buffer_ = file_.read_string(offset, std::min(left, count + ahead));
    buffer_at_ = offset;
  }
  return std::string_view(buffer_).substr(offset - buffer_at_, count);
}

std::optional<TensorLocator::Geometry> TensorLocator::decode(
    std::string_view pickle) {
  try {
    const auto decoded =
        pickle::decode(std::as_bytes(std::span(pickle)), "data.pkl");
    if (decoded.end != pickle.size()) return std::nullopt;
    const pickle::Document& document = *decoded.document;
    Storages storages;
    std::vector<Problem> problems;
    collect_storages(
        document, 5, [](pickle::Id) { return false; }, storages, problems);
    if (storages.all.size() != 1 || !problems.empty()) return std::nullopt;
    storages.all[0].size = storages.all[0].declared;
    auto ref = as_tensor(document, document.root(), storages);
    if (!ref || ref->distributed || ref->quantizer != pickle::kNoId)
      return std::nullopt;
    return Geometry{.dtype = ref->dtype,
                    .shape = std::move(ref->shape),
                    .strides = std::move(ref->extent.strides),
                    .offset = ref->extent.offset,
                    .declared = storages.all[0].declared,
                    .key = storages.all[0].key,
                    .transform = ref->transform};
  } catch (const Error&) {
    return std::nullopt;  // opening it as a whole says what is wrong
  }
}

const std::optional<TensorLocator::Geometry>& TensorLocator::geometry(
    std::string_view pickle) {
  std::string key(pickle);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  if (known_.size() == kMostKnown) known_.clear();
  return known_.emplace(std::move(key), decode(pickle)).first->second;
}

std::optional<LocatedTensor> TensorLocator::locate_ends(
    std::string_view head, std::string_view tail, uint64_t length, DType dtype,
    const Shape& shape, std::vector<StoredCrc>* crcs) {
  const auto ends = read_ends(head, tail, length);
  if (!ends) return std::nullopt;
  const std::optional<Geometry>& found = geometry(ends->pickle);
  if (!found || found->key != ends->key || found->declared != ends->data_size ||
      found->dtype != dtype || found->shape != shape)
    return std::nullopt;
  LocatedTensor located{.extent = {.offset = ends->data_offset + found->offset,
                                   .strides = found->strides,
                                   .file = number_},
                        .transform = found->transform};
  if (ends->big_endian && info(dtype).swap > 1) located.transform |= kSwapBytes;
  if (crcs != nullptr && ends->crc32 != 0)
    crcs->push_back({.file = number_,
                     .begin = ends->data_offset,
                     .end = ends->data_offset + ends->data_size,
                     .crc32 = ends->crc32,
                     .record = std::string(ends->record)});
  return located;
}

LocatedTensor TensorLocator::locate(uint64_t offset, uint64_t length,
                                    DType dtype, const Shape& shape,
                                    const std::string& name,
                                    std::vector<StoredCrc>* crcs) {
  if (length > file_.size() || offset > file_.size() - length)
    throw input_error({file_.path(), printable(name)},
                      "an item of {} bytes at byte {} of a file of {}", length,
                      offset, file_.size());
  // One read covers the end of an item and the beginning of the next one.
  std::string head_copy;
  std::string_view head, tail;
  if (length <= kSmallItem) {
    head = tail = read(offset, length, kBlock);
  } else {
    head_copy = read(offset, kItemEnd, 0);
    head = head_copy;
    tail = read(offset + length - kItemEnd, kItemEnd, kItemEnd);
  }
  const size_t before = crcs == nullptr ? 0 : crcs->size();
  auto located = locate_ends(head, tail, length, dtype, shape, crcs);
  if (!located) return locate_slowly(offset, length, dtype, shape, name, crcs);
  located->extent.offset += offset;
  for (size_t i = before; crcs != nullptr && i < crcs->size(); ++i) {
    (*crcs)[i].begin += offset;
    (*crcs)[i].end += offset;
  }
  return *located;
}

LocatedTensor TensorLocator::locate_slowly(uint64_t offset, uint64_t length,
                                           DType dtype, const Shape& shape,
                                           const std::string& name,
                                           std::vector<StoredCrc>* crcs) {
  try {
    const io::Handle item = file_.slice(offset, length);
    const Container container = open_item(item, number_, offset, crcs);
    const pickle::Document& document = *container.document;
    const auto ref = as_tensor(document, document.root(), container.storages);
    if (const std::string subclass = subclass_name(document); !subclass.empty())
      throw unfaithful_error(
          {file_.path(), printable(name)},
          "is a tensor subclass ({}) that the index does not tell from a plain "
          "tensor: it is too small, or in several parts",
          printable(subclass))
          .with_hint(
              fmt::format("leave it out: --exclude '{}'", printable(name)));
    if (!ref || ref->distributed)
      throw input_error({}, "it is not a tensor (but: {})",
                        what_it_is(document));
    check_tensor(file_.path(), offset, ref->dtype, ref->shape, dtype, shape,
                 name);
    return {.extent = ref->extent, .transform = ref->transform};
  } catch (const Error& error) {
    if (!error.where().tensor.empty() &&
        error.where().tensor == printable(name))
      throw;
    rethrow(error, file_.path(), offset, name);
  }
}

LocatedTensor locate_tensor(const io::Handle& item, uint32_t file,
                            uint64_t base, DType dtype, const Shape& shape,
                            const std::string& name,
                            std::vector<StoredCrc>* crcs) {
  TensorLocator locator(item, file);
  const size_t before = crcs == nullptr ? 0 : crcs->size();
  LocatedTensor located =
      locator.locate(0, item.size(), dtype, shape, name, crcs);
  located.extent.offset += base;
  for (size_t i = before; crcs != nullptr && i < crcs->size(); ++i) {
    (*crcs)[i].begin += base;
    (*crcs)[i].end += base;
  }
  return located;
}

// --- objects ---

OpenedObject open_archive(const Catalog& catalog, const Object& object,
                          const io::Handle& file) {
  const File& source = catalog.files.at(object.file);
  const bool packed = source.codec != Codec::kRaw;
  const uint64_t at = packed ? source.packed_offset : object.offset;
  try {
    io::Handle item =
        file.slice(at, packed ? source.packed_size : object.bytes);
    if (packed)
      item = io::Handle::of_memory(
          codec::decompress(item, source.codec, source.size, object.name),
          file.path());
    else if (item.size() <= kSmallObject)  // one read instead of seven
      item =
          io::Handle::of_memory(item.read_string(0, item.size()), file.path());
    std::vector<StoredCrc> crcs;
    Container container = open_item(item, object.file, 0, &crcs);
    return {std::move(item), std::move(container), std::move(crcs),
            object.name};
  } catch (const Error& error) {
    rethrow(error, file.path(), at, object.name);
  }
}

void open_object(const Catalog& catalog, Object& object) {
  const io::Handle file =
      io::Handle::open_read(catalog.files.at(object.file).path);
  const OpenedObject opened = open_archive(catalog, object, file);
  object.document = opened.container.document;
  object.node = object.document->root();
}

namespace {

// Where an object's archive is in its file, and what is asked for of it: all of
// a small one, else its front.
io::Range place_of(const Catalog& catalog, size_t id) {
  const Object& object = catalog.objects[id];
  const File& file = catalog.files.at(object.file);
  const bool packed = file.codec != Codec::kRaw;
  const uint64_t begin = packed ? file.packed_offset : object.offset;
  const uint64_t bytes = packed ? file.packed_size : object.bytes;
  return {begin, begin + std::min(bytes, kSmallObject)};
}

}  // namespace

void ask_for_objects(const Catalog& catalog, std::vector<size_t> ids) {
  // What isn't read stays in memory until the file is closed.
  constexpr uint64_t kBytes = uint64_t{8} << 20;
  constexpr size_t kRequests = 1024;
  const auto path_of = [&](size_t id) -> const std::string& {
    return catalog.files.at(catalog.objects[id].file).path;
  };
  std::erase_if(ids, [&](size_t id) { return !io::is_url(path_of(id)); });
  std::ranges::sort(ids, [&](size_t a, size_t b) {
    const int order = path_of(a).compare(path_of(b));
    if (order != 0) return order < 0;
    return place_of(catalog, a).begin < place_of(catalog, b).begin;
  });
  if (ids.size() > kRequests) ids.resize(kRequests);
  const failures::Unimportant whoever_reads_it_meets_it_again;
  uint64_t bytes = 0;
  for (size_t i = 0; i < ids.size() && bytes < kBytes;) {
    const std::string& path = path_of(ids[i]);
    std::vector<io::Range> ranges;
    for (; i < ids.size() && path_of(ids[i]) == path; ++i) {
      if (bytes >= kBytes) continue;
      ranges.push_back(place_of(catalog, ids[i]));
      bytes += ranges.back().end - ranges.back().begin;
    }
    try {
      io::ask_for(io::Handle::open_read(path), ranges, {.looks = true});
    } catch (const Error&) {
      continue;
    }
  }
}

}  // namespace ckpt::torch
