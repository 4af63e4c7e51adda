// SPDX-License-Identifier: Apache-2.0
// The legacy stream (before torch 1.6): pickles and storages one after
// another, with no framing.
//
//   pickle 0x1950A86A20F9469CFC6C   the magic number
//   pickle 1001                     the protocol
//   pickle {…}                      sys_info; torch ignores it, data are
//                                   little-endian whatever it says
//   pickle value                    persistent ids of six elements
//   pickle [key, …]                 which storages follow
//   i64 count | data                for each key; nothing is aligned
#include <unordered_map>

#include "containers/torch/nested.h"
#include "containers/torch/storages.h"
#include "lib/pickle/decode.h"
#include "lib/text/format.h"

namespace ckpt::torch {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

constexpr std::string_view kMagic = "119547037146038801333356";
constexpr int64_t kProtocol = 1001;

// Reads the stream's pickles one by one.
class Stream {
 public:
  explicit Stream(const io::Handle& file) : file_(file) {}

  pickle::Decoded next() {
    auto decoded = pickle::decode(file_, at_, file_.size());
    at_ = decoded.end;
    return decoded;
  }
  uint64_t at() const { return at_; }

 private:
  const io::Handle& file_;
  uint64_t at_ = 0;
};

void check_head(Stream& stream, const std::string& path) {
  const auto magic = stream.next();
  const Document& number = *magic.document;
  if (!number.is(number.root(), Type::kBigInt) ||
      number.text(number.root()) != kMagic)
    throw input_error({path, {}}, "the first pickle is not torch's magic");

  const auto protocol = stream.next();
  const auto version =
      protocol.document->is(protocol.document->root(), Type::kInt)
          ? protocol.document->integer(protocol.document->root())
          : -1;
  if (version != kProtocol)
    throw input_error({path, {}}, "legacy protocol {}, known is {}", version,
                      kProtocol);

  const auto sys_info = stream.next();
  if (!sys_info.document->is(sys_info.document->root(), Type::kDict))
    throw input_error({path, {}}, "sys_info, the third pickle, is not a dict");
}

// ("module", class, source file, source) stands for the class.
bool is_module_id(const Document& document, Id node) {
  const Id tuple = document.items(node)[0];
  if (!document.is(tuple, Type::kTuple)) return false;
  const auto items = document.items(tuple);
  return items.size() >= 2 &&
         (document.is(items[0], Type::kString) ||
          document.is(items[0], Type::kBytes)) &&
         document.text(items[0]) == "module" &&
         document.is(items[1], Type::kGlobal);
}

// Puts the classes where their persistent ids are.
std::shared_ptr<const Document> resolve_modules(
    std::shared_ptr<const Document> document) {
  std::unordered_map<Id, Id> classes;
  auto resolved = std::make_shared<Document>();
  for (Id node = 0; node < document->size(); ++node) {
    if (document->type(node) != Type::kPersistent ||
        !is_module_id(*document, node))
      continue;
    const Id type = document->items(document->items(node)[0])[1];
    classes[node] =
        resolved->add_global(document->module(type), document->text(type));
  }
  if (classes.empty()) return document;
  resolved->set_root(resolved->import(*document, document->root(), classes));
  return resolved;
}

uint64_t read_count(const io::Handle& file, uint64_t at) {
  if (file.size() < 8 || at > file.size() - 8)
    throw input_error({file.path(), {}},
                      "the file ends at byte {}, before the size of a storage "
                      "at {}",
                      file.size(), at);
  const std::string bytes = file.read_string(at, 8);
  uint64_t count = 0;
  for (size_t i = 8; i-- > 0;)
    count = count << 8 | static_cast<uint8_t>(bytes[i]);
  return count;
}

// The storages of one stream, in the order of its key list.
class Section {
 public:
  Section(const io::Handle& file, uint64_t at, Container& container,
          Catalog& catalog)
      : file_(file), at_(at), storages_(container.storages), catalog_(catalog) {
    index_ = add_file(catalog, file.path(), file.size());
    for (size_t i = 0; i < storages_.all.size(); ++i)
      by_key_.emplace(storages_.all[i].key, i);
    placed_.resize(storages_.all.size(), false);
  }

  void read(const std::string& key) {
    const std::string shown = text::printable(key);
    const auto it = by_key_.find(key);
    if (it == by_key_.end())
      fail("storage {} has data, but no tensor refers to it", shown);
    if (placed_[it->second]) fail("storage {} is listed twice", shown);
    placed_[it->second] = true;

    Storage& storage = storages_.all[it->second];
    const uint64_t count = read_count(file_, at_);
    at_ += 8;
    const auto bytes = checked_mul(count, item_size(storage.dtype));
    if (!bytes || *bytes > file_.size() - at_)
      fail("storage {}: {} elements of {} bytes at byte {} leave the file",
           shown, count, item_size(storage.dtype), at_);
    if (*bytes < storage.declared)
      fail("storage {}: {} bytes, its tensors say {}", shown, *bytes,
           storage.declared);
    if (*bytes > storage.declared)
      warn(catalog_.problems, "long_storage", file_.path(),
           fmt::format("storage {} holds {} bytes, its tensors say {}; the "
                       "rest is ignored",
                       shown, *bytes, storage.declared));
    storage.file = index_;
    storage.offset = at_;
    storage.size = *bytes;
    at_ += *bytes;
  }

  void finish() {
    for (size_t i = 0; i < placed_.size(); ++i)
      if (!placed_[i])
        fail("storage {} is missing from the list of storages",
             text::printable(storages_.all[i].key));
    if (at_ != file_.size())
      warn(catalog_.problems, "trailing_bytes", file_.path(),
           fmt::format("{} bytes after the last storage", file_.size() - at_));
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
    throw Error(ExitCode::kDamaged, {file_.path(), {}},
                fmt::format(text, std::forward<Args>(args)...));
  }

  const io::Handle& file_;
  uint64_t at_;
  uint32_t index_ = 0;
  Storages& storages_;
  Catalog& catalog_;
  std::unordered_map<std::string, size_t> by_key_;
  std::vector<bool> placed_;
};

void read_storages(const io::Handle& file, Stream& stream, Container& container,
                   Catalog& catalog) {
  const auto decoded = stream.next();
  const Document& keys = *decoded.document;
  if (!keys.is(keys.root(), Type::kList))
    throw input_error({file.path(), {}}, "the list of storages is not a list");
  Section section(file, stream.at(), container, catalog);
  for (const Id key : keys.items(keys.root())) {
    if (keys.is(key, Type::kInt))
      section.read(std::to_string(keys.integer(key)));
    else if (keys.is(key, Type::kString) || keys.is(key, Type::kBytes))
      section.read(std::string(keys.text(key)));
    else
      throw input_error({file.path(), {}}, "a storage key is not a string");
  }
  section.finish();
}

}  // namespace

namespace {

Container open_stream(const io::Handle& file, Catalog& catalog) {
  const std::string& path = file.path();
  Stream stream(file);
  check_head(stream, path);

  Container container;
  container.kind = ContainerKind::kLegacy;
  container.path = path;
  container.version = std::to_string(kProtocol);
  container.storages.path = path;
  auto decoded = stream.next();
  container.document = resolve_modules(std::move(decoded.document));
  container.globals = std::move(decoded.globals);
  collect_storages(
      *container.document, 6, [](Id) { return false; }, container.storages,
      catalog.problems);
  read_storages(file, stream, container, catalog);
  return container;
}

}  // namespace

Container open_legacy(const std::string& path, Catalog& catalog) {
  return open_stream(io::Handle::open_read(path), catalog);
}

Container open_nested(std::string_view bytes, const std::string& path,
                      Catalog& catalog, const Limits& limits) {
  Catalog aside;
  Container container =
      open_stream(io::Handle::of_memory(std::string(bytes), path), aside);
  if (limits.restrict_globals) check_globals(container.globals, path);
  add_globals(catalog, container.globals);
  return container;
}

}  // namespace ckpt::torch
