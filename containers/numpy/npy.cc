// SPDX-License-Identifier: Apache-2.0
#include "containers/numpy/npy.h"

#include <algorithm>
#include <optional>

#include "containers/zarr/dtypes.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::numpy {
namespace {

using text::printable;

constexpr uint64_t kPrefix = 8;  // magic and version
// numpy reads 10,000 unless it is told to trust the file; what it writes for a
// tensor has 118.
constexpr uint64_t kMostHeader = 65536;
constexpr size_t kMostDims = 64;
constexpr std::string_view kBlanks = " \t\r\n";

// What the dict says.
struct Said {
  std::optional<std::string> descr;
  std::optional<bool> fortran;
  std::optional<Shape> shape;
};

class Parser {
 public:
  Parser(std::string_view text, const Where& where)
      : text_(text), where_(where) {}

  Said parse() {
    expect('{');
    while (!take('}')) {
      member(string());
      if (take('}')) break;
      expect(',');
    }
    skip();
    if (at_ != text_.size()) fail("text behind the dict");
    if (!said_.descr || !said_.fortran || !said_.shape)
      fail("'descr', 'fortran_order' and 'shape' are not all there");
    return std::move(said_);
  }

 private:
  [[noreturn]] void fail(std::string_view why) const {
    throw input_error(where_, "byte {} of the .npy header: {}: {}", at_, why,
                      printable(text_.substr(0, 120)));
  }

  void skip() {
    at_ = std::min(text_.find_first_not_of(kBlanks, at_), text_.size());
  }
  bool take(char c) {
    skip();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(fmt::format("expected '{}'", c));
  }
  bool take_word(std::string_view word) {
    skip();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  void member(const std::string& key) {
    expect(':');
    if (key == "descr" && !said_.descr)
      said_.descr = descr();
    else if (key == "fortran_order" && !said_.fortran)
      said_.fortran = boolean();
    else if (key == "shape" && !said_.shape)
      said_.shape = shape();
    else
      fail(
          fmt::format("a key '{}' that it does not have once", printable(key)));
  }

  std::string string() {
    skip();
    const char quote = at_ < text_.size() ? text_[at_] : ' ';
    if (quote != '\'' && quote != '"') fail("expected a string");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == text_.npos) fail("a string without an end");
    std::string value(text_.substr(at_ + 1, end - at_ - 1));
    if (value.find('\\') != value.npos) fail("an escape in a string");
    at_ = end + 1;
    return value;
  }

  std::string descr() {
    skip();
    if (at_ < text_.size() && (text_[at_] == '[' || text_[at_] == '('))
      throw unfaithful_error(where_,
                             "an array of records, whose fields are several "
                             "tensors: {}",
                             printable(text_.substr(0, 120)))
          .with_hint("save each field as an array of its own");
    return string();
  }

  bool boolean() {
    if (take_word("True")) return true;
    if (take_word("False")) return false;
    fail("expected True or False");
  }

  // (), (3,), (3, 4): in Python, (3) is no tuple.
  Shape shape() {
    std::vector<uint64_t> sizes;
    bool comma = true;
    expect('(');
    while (!take(')')) {
      if (!comma) fail("expected ','");
      skip();
      std::string_view rest = text_.substr(at_);
      const auto size = text::take_number(rest, INT64_MAX);
      if (!size) fail("a shape of other things than sizes");
      if (sizes.size() == kMostDims) fail("more dimensions than numpy has");
      sizes.push_back(*size);
      at_ = text_.size() - rest.size();
      take('L');  // Python 2
      comma = take(',');
    }
    if (sizes.size() == 1 && !comma) fail("a shape that is not a tuple");
    return Shape(sizes);
  }

  std::string_view text_;
  const Where& where_;
  size_t at_ = 0;
  Said said_;
};

[[noreturn]] void refuse(std::string_view descr, const Where& where) {
  const std::string type = printable(descr);
  const std::string_view plain = descr.substr(
      !descr.empty() && std::string_view("<>=|").find(descr[0]) != descr.npos);
  const char kind = plain.empty() ? ' ' : plain[0];
  if (kind == 'O')
    throw unfaithful_error(where,
                           "an array of Python objects ({}): a pickle, which "
                           "is not executed",
                           type)
        .with_hint(
            "`ckpt scan` says what it would run; save its numbers as an "
            "array of numbers");
  if (kind == 'V')
    throw unfaithful_error(
        where, "elements of raw bytes ({}), which may be any type", type)
        .with_hint(
            plain == "V2"
                ? "numpy.save keeps no name of ml_dtypes' bfloat16: if it was "
                  "that, save a.view(ml_dtypes.bfloat16).astype('float32')"
                : "numpy.save keeps no names of ml_dtypes' types: view it as "
                  "the one that it was, and save .astype('float32')");
  if (kind == 'U' || kind == 'S' || kind == 'a' || kind == 'T')
    throw unfaithful_error(where, "an array of text ({}), not of numbers",
                           type);
  throw unfaithful_error(where, "no tensor has numpy's type {}", type)
      .with_hint("save it .astype(…) one that torch has, too");
}

std::string spelled(const Shape& shape) {
  std::string sizes;
  for (const uint64_t size : shape)
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  return "(" + sizes + (shape.size() == 1 ? ",)" : ")");
}

// From the first dimension, if that is another order than from the last.
Dims column_major(const Shape& shape, uint64_t element) {
  const auto longer = std::ranges::count_if(
      shape, [](const uint64_t size) { return size > 1; });
  if (longer < 2 || std::ranges::count(shape, 0) != 0) return {};
  Dims strides(shape.size(), 0);
  for (size_t d = 0; d < shape.size(); ++d) {
    strides[d] = element;
    element *= shape[d];
  }
  return strides;
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;)
    value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

Array read_array(uint64_t size, const ReadBytes& read, const Where& where) {
  const auto need = [&](uint64_t bytes) {
    if (size < bytes)
      throw input_error(where, "{} bytes, which end within the .npy header",
                        size);
  };
  need(kPrefix);
  const std::string prefix = read(0, kPrefix);
  if (!prefix.starts_with(kMagic))
    throw input_error(where, "does not start with \\x93NUMPY");
  const auto major = static_cast<uint8_t>(prefix[6]);
  const auto minor = static_cast<uint8_t>(prefix[7]);
  if (major < 1 || major > 3 || minor != 0)
    throw input_error(where, "version {}.{} of .npy, known are 1.0, 2.0, 3.0",
                      major, minor);
  const uint64_t begin = kPrefix + (major == 1 ? 2 : 4);
  need(begin);
  const uint64_t length = little_endian(read(kPrefix, begin - kPrefix));
  if (length > kMostHeader)
    throw input_error(where, "a .npy header of {} bytes, at most {} are read",
                      length, kMostHeader);
  need(begin + length);
  const std::string header = read(begin, length);
  Said said = Parser(header, where).parse();
  const auto type = zarr::parse_type(*said.descr);
  if (!type) refuse(*said.descr, where);

  Array array{.dtype = type->dtype,
              .big_endian = type->big_endian,
              .shape = std::move(*said.shape),
              .strides = {},
              .begin = begin + length};
  const auto bytes = byte_size(array.dtype, array.shape);
  const auto end = bytes ? checked_add(array.begin, *bytes) : std::nullopt;
  if (!end)
    throw input_error(where, "{} of {} is more than 64 bits count",
                      to_string(array.shape), name(array.dtype));
  if (*end > size)
    throw input_error(
        where, "{} {} needs {} bytes behind its header, {} are there",
        name(array.dtype), to_string(array.shape), *bytes, size - array.begin)
        .with_hint("the file was cut short: copy or download it again");
  array.end = *end;
  if (*said.fortran)
    array.strides = column_major(array.shape, element_size(array.dtype));
  return array;
}

bool has_dtype(DType dtype) {
  return dtype != DType::bf16 && !zarr::type_name(dtype).empty();
}

std::string write_header(DType dtype, const Shape& shape) {
  constexpr size_t kAlignment = 64;
  constexpr size_t kRoomToGrow = 21;  // digits of the first size
  std::string text = "{'descr': '" + std::string(zarr::type_name(dtype)) +
                     "', 'fortran_order': False, 'shape': " + spelled(shape) +
                     ", }";
  if (!shape.empty())
    text.append(kRoomToGrow - std::to_string(shape[0]).size(), ' ');
  const bool wide = text.size() + kAlignment > 0xFFFF;
  const size_t begin = kPrefix + (wide ? 4 : 2);
  text.append(kAlignment - (begin + text.size() + 1) % kAlignment, ' ');
  text += '\n';
  std::string header(kMagic);
  header += wide ? '\2' : '\1';
  header += '\0';
  for (size_t i = 0; i < begin - kPrefix; ++i)
    header += static_cast<char>(text.size() >> (8 * i) & 0xFF);
  return header + text;
}

}  // namespace ckpt::numpy
