// SPDX-License-Identifier: Apache-2.0
#include "lib/text/json.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/tree_memory.h"

namespace ckpt::text {
namespace {

using Json = nlohmann::json;
using Kind = Scanner::Kind;

template <class Number>
bool parse_whole(std::string_view spelled, Number& value) {
  const char* end = spelled.data() + spelled.size();
  const auto result = std::from_chars(spelled.data(), end, value);
  return result.ec == std::errc() && result.ptr == end;
}

// The memory of a text's values, as malloc rounds it: counted in a pass of its
// own, since a value of two bytes may take 80. An array item takes its room
// three times: nlohmann's destructor moves the items of all arrays to a stack
// of its own, which grows by moving them once more.
struct Size {
  uint64_t bytes = 0;
  std::vector<uint32_t> arrays;  // items of each, in order of their beginnings
};

// Texts whose values take less than tree_memory::kFree anyway.
constexpr size_t kSmall = size_t{512} << 10;

void add_text(Size& size, std::string_view text) {
  constexpr size_t kInside = 15;  // std::string holds these itself
  if (text.size() > kInside) size.bytes += (text.size() + 24) / 16 * 16;
}

void measure(Scanner& scan, Size& size) {
  constexpr uint64_t kMap = 64, kMember = 96, kArray = 32, kItem = 3 * 16,
                     kText = 48;
  switch (scan.peek()) {
    case Kind::kObject:
      scan.enter_object();
      size.bytes += kMap;
      while (const auto key = scan.next_key()) {
        size.bytes += kMember;
        add_text(size, *key);
        measure(scan, size);
      }
      break;
    case Kind::kArray: {
      scan.enter_array();
      const size_t index = size.arrays.size();
      size.arrays.push_back(0);
      while (scan.next_item()) {
        ++size.arrays[index];
        measure(scan, size);
      }
      size.bytes += kArray + uint64_t{size.arrays[index]} * kItem;
      break;
    }
    case Kind::kString:
      size.bytes += kText;
      add_text(size, scan.string());
      break;
    default:
      scan.skip();
  }
}

Size checked_size(std::string_view text, const std::string& path,
                  const Scanner::Options& options) {
  Size size;
  if (text.size() <= kSmall) return size;
  Scanner scan(text, path, options);
  measure(scan, size);
  // The array sizes are in memory while the tree grows.
  tree_memory::check(path,
                     size.bytes + size.arrays.capacity() * sizeof(uint32_t),
                     text.size());
  return size;
}

// The array sizes of a large text, one after the other.
class Arrays {
 public:
  explicit Arrays(const Size& size) : counts_(size.arrays) {}
  size_t next() { return at_ < counts_.size() ? counts_[at_++] : 0; }

 private:
  const std::vector<uint32_t>& counts_;
  size_t at_ = 0;
};

Json value(Scanner& scan, Arrays& arrays);

Json object(Scanner& scan, Arrays& arrays) {
  Json::object_t members;
  scan.enter_object();
  while (const auto key = scan.next_key()) {
    const auto [member, is_new] = members.try_emplace(std::string(*key));
    if (!is_new)
      scan.fail(fmt::format("key \"{}\" given twice", printable(*key)));
    member->second = value(scan, arrays);
  }
  return members;
}

Json array(Scanner& scan, Arrays& arrays) {
  Json::array_t items;
  items.reserve(arrays.next());
  scan.enter_array();
  while (scan.next_item()) items.push_back(value(scan, arrays));
  return items;
}

// Recurses no deeper than the scanner lets it: kMaxJsonDepth.
Json value(Scanner& scan, Arrays& arrays) {
  const Kind kind = scan.peek();
  switch (kind) {
    case Kind::kObject:
      return object(scan, arrays);
    case Kind::kArray:
      return array(scan, arrays);
    case Kind::kString:
      return std::string(scan.string());
    case Kind::kNumber:
      return number_of(scan);
    default:
      break;
  }
  scan.literal();
  if (kind == Kind::kNull) return nullptr;
  return kind == Kind::kTrue;
}

Json whole(std::string_view text, const std::string& path,
           const Scanner::Options& options) {
  const Size size = checked_size(text, path, options);
  Arrays arrays(size);
  Scanner scan(text, path, options);
  Json root = value(scan, arrays);
  scan.finish();
  return root;
}

std::string_view kind_name(const Json& value) {
  using Type = Json::value_t;
  switch (value.type()) {
    case Type::object:
      return "an object";
    case Type::array:
      return "an array";
    case Type::string:
      return "a string";
    case Type::boolean:
      return "a boolean";
    case Type::null:
      return "null";
    case Type::number_integer:
      return "a negative number";
    case Type::number_float:
      return "a number that is not an integer";
    default:
      return "a number";
  }
}

}  // namespace

nlohmann::json number_of(Scanner& scan) {
  const std::string spelled(scan.number());
  if (uint64_t value; parse_whole(spelled, value)) return value;
  if (int64_t value; parse_whole(spelled, value)) return value;
  const size_t sign = spelled[0] == '-' ? 1 : 0;
  if (spelled[sign] == 'N') return std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  if (spelled[sign] == 'I') return sign ? -infinity : infinity;
  const double value = std::strtod(spelled.c_str(), nullptr);
  if (std::isinf(value)) scan.fail("number too large in JSON");
  return value;
}

Json parse_json(std::string_view text, const std::string& path) {
  return whole(text, path, {});
}

Json parse_python_json(std::string_view text, const std::string& path) {
  return whole(text, path, {.offset = 0, .python_numbers = true});
}

const Json& member(const Json& object, const std::string& key,
                   const std::string& path) {
  if (!object.is_object())
    throw input_error({path, key},
                      "expected an object around this key, found {}",
                      kind_name(object));
  const auto found = object.find(key);
  if (found == object.end())
    throw input_error({path, {}}, "key \"{}\" is missing", printable(key));
  return *found;
}

std::string string_member(const Json& object, const std::string& key,
                          const std::string& path) {
  const Json& value = member(object, key, path);
  if (!value.is_string())
    throw input_error({path, key}, "expected a string, found {}",
                      kind_name(value));
  return value.get<std::string>();
}

uint64_t uint_member(const Json& object, const std::string& key,
                     const std::string& path) {
  const Json& value = member(object, key, path);
  if (!value.is_number_unsigned())
    throw input_error({path, key},
                      "expected an integer from 0 to 2^64-1, found {}",
                      kind_name(value));
  return value.get<uint64_t>();
}

}  // namespace ckpt::text
