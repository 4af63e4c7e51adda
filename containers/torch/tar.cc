// SPDX-License-Identifier: Apache-2.0
// The tar container of torch <= 0.1.9; read-only.
//
//   storages   pickle n; n times: pickle (key, location, storage class),
//              i64 count, data; then pickle [(key, root key, offset, size), …]
//   tensors    pickle n; n times: pickle (key, storage key, tensor class),
//              i32 rank, 4 bytes, rank i64 sizes, rank i64 strides, i64 offset
//   pickle     the value; persistent ids are tensor keys in digits
//
// Nothing is extracted: members are ranges of the file. The value is rewritten
// to the form that the other containers have: each tensor becomes a call of
// _rebuild_tensor on a storage with a persistent id of five elements.
#include <charconv>
#include <map>
#include <unordered_map>

#include "containers/torch/storages.h"
#include "lib/pickle/decode.h"
#include "lib/text/format.h"

namespace ckpt::torch {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

constexpr uint64_t kBlock = 512;

struct Member {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// A field of octal digits, ended by a space or NUL.
uint64_t read_octal(std::string_view field, const std::string& path) {
  const size_t from = field.find_first_not_of(' ');
  if (from != field.npos) field.remove_prefix(from);
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(field.data(), field.data() + field.size(), value, 8);
  const bool ended =
      end == field.data() + field.size() || *end == ' ' || *end == '\0';
  if (error != std::errc() || !ended)
    throw input_error({path, {}},
                      "tar: a member's size is not an octal number");
  return value;
}

std::map<std::string, Member> read_members(const io::Handle& file,
                                           Catalog& catalog) {
  std::map<std::string, Member> members;
  for (uint64_t at = 0; at <= file.size() && file.size() - at >= kBlock;) {
    const std::string header = file.read_string(at, kBlock);
    if (header[0] == '\0') break;
    if (header.substr(257, 5) != "ustar")
      throw input_error({file.path(), {}}, "tar: no header at byte {}", at);
    const std::string name =
        header.substr(0, std::min<size_t>(header.find('\0'), 100));
    const uint64_t size =
        read_octal(std::string_view(header).substr(124, 12), file.path());
    at += kBlock;
    if (size > file.size() - at)
      throw input_error({file.path(), {}},
                        "tar: member {} of {} bytes leaves the file",
                        text::printable(name), size);
    const bool known = name == "storages" || name == "tensors" ||
                       name == "pickle" || name == "sys_info";
    const char type = header[156];
    if (known && type != '0' && type != '\0')
      throw input_error({file.path(), {}}, "tar: member {} is not a plain file",
                        name);
    if (known && !members.emplace(name, Member{at, at + size}).second)
      throw input_error({file.path(), {}}, "tar: two members {}", name);
    if (!known)
      warn(catalog.problems, "odd_record", file.path(),
           fmt::format("tar member {} is not torch's; it is ignored",
                       text::printable(name)));
    at += (size + kBlock - 1) / kBlock * kBlock;
  }
  for (const char* name : {"storages", "tensors", "pickle"})
    if (!members.contains(name))
      throw input_error({file.path(), {}}, "tar: member {} is missing", name);
  return members;
}

// Reads the numbers and pickles of one member, front to back.
class Cursor {
 public:
  Cursor(const io::Handle& file, const Member& member, const char* name)
      : file_(file), at_(member.begin), end_(member.end), name_(name) {}

  pickle::Decoded pickle() {
    auto decoded = pickle::decode(file_, at_, end_);
    at_ = decoded.end;
    return decoded;
  }
  uint64_t number(size_t bytes) {
    uint64_t value = 0;
    const std::string text = file_.read_string(take(bytes), bytes);
    for (size_t i = bytes; i-- > 0;)
      value = value << 8 | static_cast<uint8_t>(text[i]);
    return value;
  }
  // Skips some bytes and returns where they are.
  uint64_t take(uint64_t bytes) {
    if (bytes > end_ - at_)
      fail("{} bytes at byte {} leave the member", bytes, at_);
    at_ += bytes;
    return at_ - bytes;
  }
  uint64_t at() const { return at_; }
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
    throw Error(ExitCode::kDamaged, {file_.path(), {}},
                fmt::format("tar member {}: {}", name_,
                            fmt::format(text, std::forward<Args>(args)...)));
  }

 private:
  const io::Handle& file_;
  uint64_t at_;
  uint64_t end_;
  const char* name_;
};

// A pickled tuple's elements; the document keeps them alive.
struct Record {
  std::shared_ptr<const Document> document;
  std::vector<Id> items;

  int64_t integer(size_t i, Cursor& cursor) const {
    if (!document->is(items[i], Type::kInt))
      cursor.fail("element {} of a record is not an integer", i);
    return document->integer(items[i]);
  }
};

Record read_record(Cursor& cursor, size_t size) {
  const auto decoded = cursor.pickle();
  const Id root = decoded.document->root();
  if (!decoded.document->is(root, Type::kTuple) ||
      decoded.document->items(root).size() != size)
    cursor.fail("a record is not a tuple of {} elements", size);
  const auto items = decoded.document->items(root);
  return {decoded.document, {items.begin(), items.end()}};
}

uint64_t read_size(Cursor& cursor) {
  const auto decoded = cursor.pickle();
  const Id root = decoded.document->root();
  if (!decoded.document->is(root, Type::kInt) ||
      decoded.document->integer(root) < 0)
    cursor.fail("it does not begin with a count");
  return static_cast<uint64_t>(decoded.document->integer(root));
}

// Builds the storages of the file and the document that refers to them.
class Builder {
 public:
  Builder(const io::Handle& file, Catalog& catalog) : file_(file) {
    index_ = add_file(catalog, file.path(), file.size());
    storages_.path = file.path();
  }

  void read_storages(Cursor cursor) {
    const uint64_t count = read_size(cursor);
    for (uint64_t i = 0; i < count; ++i) read_storage(cursor);
    const auto decoded = cursor.pickle();
    const Document& views = *decoded.document;
    if (!views.is(views.root(), Type::kList))
      cursor.fail("the list of views is not a list");
    for (const Id view : views.items(views.root()))
      add_view(cursor, views, view);
  }

  void read_tensors(Cursor cursor) {
    const uint64_t count = read_size(cursor);
    for (uint64_t i = 0; i < count; ++i) read_tensor(cursor);
  }

  // The value, with its tensors put in.
  std::shared_ptr<const Document> resolve(const Document& value) {
    std::unordered_map<Id, Id> found;
    for (Id node = 0; node < value.size(); ++node)
      if (value.type(node) == Type::kPersistent)
        found[node] = resolve_id(value, value.items(node)[0]);
    document_->set_root(document_->import(value, value.root(), found));
    return document_;
  }
  Storages storages() { return std::move(storages_); }

 private:
  void read_storage(Cursor& cursor) {
    const Record record = read_record(cursor, 3);
    const int64_t key = record.integer(0, cursor);
    const auto dtype =
        storage_dtype(*record.document, record.items[2], file_.path());
    const auto bytes = checked_mul(cursor.number(8), item_size(dtype));
    if (!bytes) cursor.fail("storage {}: its size overflows", key);
    const uint64_t offset = cursor.take(*bytes);
    storages_.all.push_back({.key = std::to_string(key),
                             .file = index_,
                             .offset = offset,
                             .size = *bytes,
                             .declared = *bytes,
                             .dtype = dtype});
    add_storage(cursor, key,
                {.storage = static_cast<uint32_t>(storages_.all.size() - 1),
                 .dtype = dtype,
                 .begin = 0,
                 .bytes = *bytes});
  }

  void add_view(Cursor& cursor, const Document& views, Id view) {
    if (!views.is(view, Type::kTuple) || views.items(view).size() != 4)
      cursor.fail("a view is not a tuple of 4 elements");
    int64_t numbers[4];
    for (size_t i = 0; i < 4; ++i) {
      const Id item = views.items(view)[i];
      if (!views.is(item, Type::kInt) || views.integer(item) < 0)
        cursor.fail("a view has an element that is not an integer >= 0");
      numbers[i] = views.integer(item);
    }
    const auto root = uses_.find(numbers[1]);
    if (root == uses_.end())
      cursor.fail("a view of storage {}, which is not there", numbers[1]);
    StorageUse use = root->second;
    const auto begin =
        checked_mul(static_cast<uint64_t>(numbers[2]), item_size(use.dtype));
    const auto bytes =
        checked_mul(static_cast<uint64_t>(numbers[3]), item_size(use.dtype));
    if (!begin || !bytes || *begin > use.bytes || *bytes > use.bytes - *begin)
      cursor.fail("view {}: it leaves the {} bytes of storage {}", numbers[0],
                  use.bytes, numbers[1]);
    use.begin += *begin;
    use.bytes = *bytes;
    add_storage(cursor, numbers[0], use);
  }

  void add_storage(Cursor& cursor, int64_t key, const StorageUse& use) {
    if (!uses_.emplace(key, use).second)
      cursor.fail("two storages with the key {}", key);
  }

  void read_tensor(Cursor& cursor) {
    const Record record = read_record(cursor, 3);
    const int64_t key = record.integer(0, cursor);
    const int64_t storage_key = record.integer(1, cursor);
    const uint64_t rank = cursor.number(4);
    if (rank > kMaxRank)
      cursor.fail("tensor {}: rank {} is too large", key, rank);
    cursor.take(4);
    const Id sizes = read_ints(cursor, rank);
    const Id strides = read_ints(cursor, rank);
    const Id offset =
        document_->add_int(static_cast<int64_t>(cursor.number(8)));
    const auto use = uses_.find(storage_key);
    if (use == uses_.end())
      cursor.fail("tensor {}: storage {} is not there", key, storage_key);
    const Id call = document_->add_call(
        document_->add_global("torch._utils", "_rebuild_tensor"),
        document_->add_container(
            Type::kTuple, {storage_node(use->second), offset, sizes, strides}));
    if (!tensors_.emplace(key, call).second)
      cursor.fail("two tensors with the key {}", key);
  }

  Id read_ints(Cursor& cursor, uint64_t count) {
    std::vector<Id> items;
    for (uint64_t i = 0; i < count; ++i)
      items.push_back(
          document_->add_int(static_cast<int64_t>(cursor.number(8))));
    return document_->add_container(Type::kTuple, items);
  }

  Id storage_node(const StorageUse& use) {
    const std::string type =
        use.dtype ? std::string(info(*use.dtype).storage) : "UntypedStorage";
    const uint64_t count =
        storages_.all[use.storage].size / item_size(use.dtype);
    const Id id = document_->add_container(
        Type::kTuple,
        {document_->add_string("storage"), document_->add_global("torch", type),
         document_->add_string(storages_.all[use.storage].key),
         document_->add_string("cpu"),
         document_->add_int(static_cast<int64_t>(count))});
    const Id node = document_->add_persistent(id);
    storages_.uses.emplace(node, use);
    return node;
  }

  Id resolve_id(const Document& value, Id id) {
    // (class, source file, source) stands for the class.
    if (value.is(id, Type::kTuple) && !value.items(id).empty() &&
        value.is(value.items(id)[0], Type::kGlobal)) {
      const Id type = value.items(id)[0];
      return document_->add_global(value.module(type), value.text(type));
    }
    int64_t key = -1;
    if (value.is(id, Type::kInt)) key = value.integer(id);
    if (value.is(id, Type::kString)) {
      const std::string_view text = value.text(id);
      std::from_chars(text.data(), text.data() + text.size(), key);
    }
    const auto tensor = tensors_.find(key);
    if (tensor == tensors_.end())
      throw input_error({file_.path(), {}},
                        "a persistent id names no tensor of the file");
    return tensor->second;
  }

  const io::Handle& file_;
  uint32_t index_ = 0;
  Storages storages_;
  std::shared_ptr<Document> document_ = std::make_shared<Document>();
  std::unordered_map<int64_t, StorageUse> uses_;
  std::unordered_map<int64_t, Id> tensors_;
};

}  // namespace

Container open_tar(const std::string& path, Catalog& catalog) {
  const io::Handle file = io::Handle::open_read(path);
  const auto members = read_members(file, catalog);
  Builder builder(file, catalog);
  builder.read_storages(Cursor(file, members.at("storages"), "storages"));
  builder.read_tensors(Cursor(file, members.at("tensors"), "tensors"));

  Cursor cursor(file, members.at("pickle"), "pickle");
  const auto value = cursor.pickle();
  Container container;
  container.kind = ContainerKind::kTar;
  container.path = path;
  container.version = "tar";
  container.globals = value.globals;
  container.document = builder.resolve(*value.document);
  container.storages = builder.storages();
  return container;
}

}  // namespace ckpt::torch
