// SPDX-License-Identifier: Apache-2.0
#include "containers/gguf/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/name_table.h"
#include "lib/tree_memory.h"

namespace ckpt::gguf {
namespace {

using pickle::Document;
using pickle::Id;
using text::printable;

// ggml's own bounds: GGML_MAX_DIMS, and arrays of arrays that nobody writes.
constexpr uint64_t kMostDims = 4;
constexpr int kMostDepth = 4;
constexpr uint64_t kMostName = 1 << 16;
// Vocabularies have a million tokens, and as many merges; templates some KiB.
constexpr uint64_t kMostValues = uint64_t{1} << 24;
constexpr uint64_t kMostText = uint64_t{1} << 26;

struct ValueType {
  std::string_view name;
  uint64_t bytes;  // 0: of no fixed size
};
constexpr auto kValueTypes = std::to_array<ValueType>({{"u8", 1},
                                                       {"i8", 1},
                                                       {"u16", 2},
                                                       {"i16", 2},
                                                       {"u32", 4},
                                                       {"i32", 4},
                                                       {"f32", 4},
                                                       {"bool", 1},
                                                       {"str", 0},
                                                       {"arr", 0},
                                                       {"u64", 8},
                                                       {"i64", 8},
                                                       {"f64", 8}});
constexpr uint32_t kBool = 7, kString = 8, kArray = 9;

// A file read from front to back, some pages at a time.
class Cursor {
 public:
  explicit Cursor(const io::Handle& file) : file_(file) {}

  uint64_t at() const { return at_; }
  uint64_t left() const { return file_.size() - at_; }
  void about(std::string name) { about_ = std::move(name); }
  void set_version(bool big, bool narrow) {
    big_ = big;
    narrow_ = narrow;
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw input_error({file_.path(), about_}, "byte {}: {}", at_, why)
        .with_hint("the file is damaged: fetch or copy it again");
  }

  // `count` bytes in one piece, valid until the next call.
  std::string_view take(uint64_t count) {
    if (count > left())
      fail(
          fmt::format("the file ends {} bytes later, {} "
                      "are needed: it is cut off",
                      left(), count));
    if (at_ < begin_ || at_ + count > begin_ + held_.size()) {
      begin_ = at_;
      held_ = file_.read_string(
          at_, std::min(left(), std::max<uint64_t>(count, kPage)));
    }
    const auto taken = std::string_view(held_).substr(at_ - begin_, count);
    at_ += count;
    return taken;
  }

  template <class T>
  T number() {
    std::array<char, sizeof(T)> bytes;
    std::memcpy(bytes.data(), take(sizeof(T)).data(), sizeof(T));
    if (big_) std::ranges::reverse(bytes);
    return std::bit_cast<T>(bytes);
  }

  // A count or a length.
  uint64_t count() { return narrow_ ? number<uint32_t>() : number<uint64_t>(); }

  std::string_view text(uint64_t most) {
    const uint64_t length = count();
    if (length > left() || length > most)
      fail(length > left()
               ? fmt::format("a text of {} bytes, more than the file has",
                             length)
               : fmt::format("a text of {} bytes; {} are read at most", length,
                             most));
    return take(length);
  }

 private:
  static constexpr uint64_t kPage = uint64_t{1} << 18;
  const io::Handle& file_;
  uint64_t at_ = 0, begin_ = 0;
  std::string held_, about_;
  bool big_ = false, narrow_ = false;
};

class KeyReader {
 public:
  KeyReader(Cursor& cursor, Document& document)
      : cursor_(cursor), document_(document) {}

  Key read() {
    Key key;
    key.name = cursor_.text(kMostName);
    cursor_.about(key.name);
    const uint32_t type = type_of_value();
    key.type = kValueTypes[type].name;
    key.value = type == kArray ? array(key.type, 0) : scalar(type);
    cursor_.about({});
    return key;
  }

 private:
  uint32_t type_of_value() {
    const auto type = cursor_.number<uint32_t>();
    if (type >= kValueTypes.size())
      cursor_.fail(
          fmt::format("a value of type {}, which GGUF does not have", type));
    return type;
  }

  Id array(std::string& said, int depth) {
    if (depth == kMostDepth) cursor_.fail("arrays too deep in one another");
    const uint32_t type = type_of_value();
    const uint64_t count = cursor_.count();
    const uint64_t each = std::max<uint64_t>(kValueTypes[type].bytes, 1);
    if (count > cursor_.left() / each)
      cursor_.fail(
          fmt::format("an array of {} values, more than the file has", count));
    if (count > kMostValues)
      cursor_.fail(fmt::format("an array of {} values; {} are read at most",
                               count, kMostValues));
    std::string inner;
    std::vector<Id> values;
    for (uint64_t i = 0; i < count; ++i) {
      inner = kValueTypes[type].name;
      values.push_back(type == kArray ? array(inner, depth + 1) : scalar(type));
    }
    said = fmt::format("arr:{}", kValueTypes[type].name);
    return document_.add_container(pickle::Type::kList, values);
  }

  Id scalar(uint32_t type) {
    switch (type) {
      case 0:
        return document_.add_int(cursor_.number<uint8_t>());
      case 1:
        return document_.add_int(cursor_.number<int8_t>());
      case 2:
        return document_.add_int(cursor_.number<uint16_t>());
      case 3:
        return document_.add_int(cursor_.number<int16_t>());
      case 4:
        return document_.add_int(cursor_.number<uint32_t>());
      case 5:
        return document_.add_int(cursor_.number<int32_t>());
      case 6:
        return document_.add_float(shortest(cursor_.number<float>()));
      case kBool:
        return boolean();
      case kString:
        return document_.add_string(cursor_.text(kMostText));
      case 10:
        return document_.add_big_int(
            std::to_string(cursor_.number<uint64_t>()));
      case 11:
        return document_.add_int(cursor_.number<int64_t>());
      default:
        return document_.add_float(cursor_.number<double>());
    }
  }

  // The decimal number that was meant: 1e-06, and not 9.999999974752427e-07.
  // As a float it is the same.
  static double shortest(float value) {
    if (!std::isfinite(value)) return value;
    return std::strtod(fmt::format("{}", value).c_str(), nullptr);
  }

  Id boolean() {
    const auto value = cursor_.number<uint8_t>();
    if (value > 1) cursor_.fail(fmt::format("a bool of value {}", value));
    return document_.add_bool(value == 1);
  }

  Cursor& cursor_;
  Document& document_;
};

Entry read_entry(Cursor& cursor, const std::string& path) {
  Entry entry;
  entry.name = cursor.text(kMostName);
  cursor.about(entry.name);
  const auto dims = cursor.number<uint32_t>();
  if (dims > kMostDims)
    cursor.fail(
        fmt::format("{} dimensions; ggml has {} at most", dims, kMostDims));
  for (uint32_t d = 0; d < dims; ++d) entry.shape.push_back(cursor.count());
  std::ranges::reverse(entry.shape);
  const auto type = cursor.number<uint32_t>();
  entry.begin = cursor.number<uint64_t>();
  entry.type = ggml_info(type);
  if (!entry.type)
    throw unfaithful_error({path, entry.name},
                           "is of ggml's type {}, which is not known", type)
        .with_hint(
            "a newer ckpt may know it; llama.cpp's own llama-quantize "
            "writes it as F16 or Q8_0");
  const uint64_t row = entry.shape.empty() ? 1 : entry.shape.back();
  if (row % entry.type->elements != 0)
    cursor.fail(fmt::format(
        "rows of {1} elements don't divide into blocks of {2}, as {0} has them",
        entry.type->name, row, entry.type->elements));
  uint64_t blocks = row / entry.type->elements;
  bool fits = true;
  for (size_t d = 0; d + 1 < entry.shape.size(); ++d)
    fits = fits && !__builtin_mul_overflow(blocks, entry.shape[d], &blocks);
  if (!fits || __builtin_mul_overflow(blocks, entry.type->bytes, &entry.bytes))
    cursor.fail(fmt::format("{} {} is too large", entry.type->name,
                            to_string(entry.shape)));
  cursor.about({});
  return entry;
}

uint64_t padded(uint64_t size, uint64_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

uint64_t alignment_of(const Header& header, const std::string& path) {
  for (const Key& key : header.keys) {
    if (key.name != kAlignment) continue;
    const auto value = header.document->as_int(key.value);
    if (!value || *value < 1 || *value > (1 << 20) ||
        !std::has_single_bit(static_cast<uint64_t>(*value)))
      throw input_error({path, key.name}, "is not a power of two up to 2^20");
    return static_cast<uint64_t>(*value);
  }
  return kUsualAlignment;
}

// ggml's reader wants the data of tensors one behind the other.
void place(Header& header, const io::Handle& file) {
  std::ranges::stable_sort(header.entries, {}, [](const Entry& entry) {
    return std::pair(entry.begin, entry.bytes);
  });
  uint64_t at = 0;
  for (Entry& entry : header.entries) {
    if (entry.begin != at)
      throw input_error({file.path(), entry.name},
                        "its data begin at byte {} of the data, expected {}",
                        entry.begin, at);
    const uint64_t room = file.size() - header.data_begin;
    if (entry.begin > room || entry.bytes > room - entry.begin)
      throw input_error({file.path(), entry.name},
                        "its {} bytes begin at byte {}, and the file has {}",
                        entry.bytes, header.data_begin + entry.begin,
                        file.size())
          .with_hint("the file is cut off: fetch or copy it again");
    at = padded(entry.begin + entry.bytes, header.alignment);
    entry.begin += header.data_begin;
    header.data_end = entry.begin + entry.bytes;
  }
}

template <class Items>
void check_unique(const Items& items, const std::string& path,
                  std::string_view what) {
  text::NameTable names;
  names.reserve(items.size());
  for (uint32_t i = 0; const auto& item : items) names.add(item.name, i++);
  names.sort();
  if (const auto twice = names.duplicate())
    throw input_error({path, std::string(twice->name)}, "{} given twice", what);
}

void start(Cursor& cursor, Header& header) {
  if (cursor.left() < kMagic.size() || cursor.take(4) != kMagic)
    cursor.fail("does not begin with GGUF");
  uint32_t version = cursor.number<uint32_t>();
  header.big_endian = (version & 0xffff) == 0;
  if (header.big_endian) version = __builtin_bswap32(version);
  if (version < 1 || version > 3)
    cursor.fail(fmt::format("version {}; 1 to 3 are known", version));
  header.version = version;
  cursor.set_version(header.big_endian, version == 1);
}

}  // namespace

Header read_header(const io::Handle& file) {
  Cursor cursor(file);
  Header header;
  start(cursor, header);
  const uint64_t tensors = cursor.count(), keys = cursor.count();
  // The least that a key and a tensor take.
  if (keys > cursor.left() / 9 || tensors > cursor.left() / 20)
    cursor.fail(
        fmt::format("{} keys and {} tensors, more than a file of {} "
                    "bytes can have",
                    keys, tensors, file.size()));
  header.document = std::make_shared<Document>();
  try {
    KeyReader reader(cursor, *header.document);
    for (uint64_t k = 0; k < keys; ++k) header.keys.push_back(reader.read());
  } catch (const tree_memory::Full&) {
    tree_memory::fail(file.path(), header.document->memory(), cursor.at(),
                      file.size());
  }
  for (uint64_t t = 0; t < tensors; ++t)
    header.entries.push_back(read_entry(cursor, file.path()));
  check_unique(header.keys, file.path(), "key");
  check_unique(header.entries, file.path(), "tensor");
  header.alignment = alignment_of(header, file.path());
  header.data_begin = padded(cursor.at(), header.alignment);
  header.data_end = std::min(header.data_begin, file.size());
  if (!header.entries.empty() && header.data_begin > file.size())
    cursor.fail("the file ends where the data should begin: it is cut off");
  place(header, file);
  return header;
}

namespace {

class Encoder {
 public:
  explicit Encoder(const Document& document) : document_(document) {}

  template <class T>
  void number(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void text(std::string_view text) {
    number<uint64_t>(text.size());
    out_ += text;
  }
  void key(const Key& key) {
    text(key.name);
    about_ = key.name;
    value_of_type(key.type, key.value);
  }
  std::string& out() { return out_; }

 private:
  static uint32_t number_of(std::string_view type) {
    const auto found = std::ranges::find(kValueTypes, type, &ValueType::name);
    if (found == kValueTypes.end())
      throw bug_error({}, "GGUF has no type {}", type);
    return static_cast<uint32_t>(found - kValueTypes.begin());
  }

  void value_of_type(std::string_view type, Id value) {
    if (!type.starts_with("arr:")) {
      number(number_of(type));
      return scalar(type, value);
    }
    type.remove_prefix(4);
    const auto items = document_.items(value);
    number(kArray);
    number(number_of(type));
    number<uint64_t>(items.size());
    for (const Id item : items) scalar(type, item);
  }

  [[noreturn]] void refuse(std::string_view type) const {
    throw unfaithful_error({{}, about_}, "is no {}, as GGUF has it", type);
  }

  void scalar(std::string_view type, Id value) {
    if (type == "str") {
      if (!document_.is(value, pickle::Type::kString)) refuse(type);
      return text(document_.text(value));
    }
    if (type == "f32" || type == "f64") {
      const auto real = document_.as_real(value);
      if (!real) refuse(type);
      return type == "f32" ? number(static_cast<float>(*real)) : number(*real);
    }
    if (type == "u64" && document_.is(value, pickle::Type::kBigInt))
      return number<uint64_t>(std::stoull(std::string(document_.text(value))));
    const auto whole = document_.as_int(value);
    if (!whole) refuse(type);
    integer(type, *whole);
  }

  template <class T>
  void narrowed(std::string_view type, int64_t value) {
    if (!std::in_range<T>(value)) refuse(type);
    number(static_cast<T>(value));
  }

  void integer(std::string_view type, int64_t value) {
    if (type == "u8") return narrowed<uint8_t>(type, value);
    if (type == "i8") return narrowed<int8_t>(type, value);
    if (type == "u16") return narrowed<uint16_t>(type, value);
    if (type == "i16") return narrowed<int16_t>(type, value);
    if (type == "u32") return narrowed<uint32_t>(type, value);
    if (type == "i32") return narrowed<int32_t>(type, value);
    if (type == "u64") return narrowed<uint64_t>(type, value);
    if (type == "i64") return number(value);
    if (value != 0 && value != 1) refuse(type);
    number(static_cast<uint8_t>(value));
  }

  const Document& document_;
  std::string out_, about_;
};

}  // namespace

Encoded encode_header(const Document& document, const std::vector<Key>& keys,
                      const std::vector<Described>& tensors) {
  uint64_t alignment = kUsualAlignment;
  for (const Key& key : keys)
    if (key.name == kAlignment)
      alignment = static_cast<uint64_t>(
          document.as_int(key.value).value_or(kUsualAlignment));
  Encoder encoder(document);
  encoder.out() += kMagic;
  encoder.number<uint32_t>(3);
  encoder.number<uint64_t>(tensors.size());
  encoder.number<uint64_t>(keys.size());
  for (const Key& key : keys) encoder.key(key);
  Encoded encoded;
  uint64_t at = 0;
  for (const Described& tensor : tensors) {
    if (tensor.shape.size() > kMostDims)
      throw unfaithful_error({{}, std::string(tensor.name)},
                             "has {} dimensions; GGUF has {} at most",
                             tensor.shape.size(), kMostDims);
    encoder.text(tensor.name);
    encoder.number(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t d = tensor.shape.size(); d-- > 0;)
      encoder.number<uint64_t>(tensor.shape[d]);
    encoder.number(static_cast<uint32_t>(tensor.type));
    encoder.number(at);
    encoded.begins.push_back(at);
    at = padded(at + tensor.bytes, alignment);
  }
  encoder.out().resize(padded(encoder.out().size(), alignment), '\0');
  for (uint64_t& begin : encoded.begins) begin += encoder.out().size();
  encoded.size = encoder.out().size() + at;
  encoded.head = std::move(encoder.out());
  return encoded;
}

}  // namespace ckpt::gguf
