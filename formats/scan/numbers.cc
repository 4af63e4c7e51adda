// SPDX-License-Identifier: Apache-2.0
#include "formats/scan/numbers.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "lib/tree_memory.h"

namespace ckpt::scan {
namespace {

constexpr uint64_t kMostHeader = 100'000'000;  // safetensors' own limit
constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kBlanks = " \t\r\n\v\f";

bool all_of(std::string_view text, std::string_view set) {
  return text.find_first_not_of(set) == text.npos;
}

// "<f4", "|S10", "<m8[ns]", "int64": types that hold no objects. "O" does, and
// "T", and what is composed of several.
bool is_plain_dtype(std::string_view type) {
  for (const std::string_view word : {"uint", "int", "float", "complex"})
    if (type.starts_with(word))
      return all_of(type.substr(word.size()), kDigits);
  if (type == "bool") return true;
  if (!type.empty() && std::string_view("<>=|").find(type[0]) != type.npos)
    type.remove_prefix(1);
  if (type.empty() ||
      std::string_view("?biufcSaUVmMBhHlLqQIefdg").find(type[0]) == type.npos)
    return false;
  type.remove_prefix(1);
  const size_t unit = type.find('[');
  if (unit == type.npos) return all_of(type, kDigits);
  return type.ends_with(']') && all_of(type.substr(0, unit), kDigits) &&
         all_of(type.substr(unit + 1, type.size() - unit - 2),
                "0123456789abcdefghijklmnopqrstuvwxyzMDYW");
}

// The literal's brackets and strings, in turn.
class NpyHeader {
 public:
  explicit NpyHeader(std::string_view text) : text_(text) {}

  bool is_plain() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\'' || c == '"') {
        if (!string(c)) return false;
        continue;
      }
      if (c == '#' || c == '\\') return false;
      if (c == '(' || c == '[' || c == '{')
        open_ += c;
      else if ((c == ')' || c == ']' || c == '}') && !open_.empty())
        open_.pop_back();
      ++at_;
    }
    return types_ > 0;
  }

 private:
  bool string(char quote) {
    const size_t end = text_.find(quote, at_ + 1);
    if (end == text_.npos) return false;
    const std::string_view content = text_.substr(at_ + 1, end - at_ - 1);
    // Escapes may hide any letter.
    if (content.find('\\') != content.npos) return false;
    const size_t begin = std::exchange(at_, end + 1);
    if (is_name(begin) || (open_ == "{" && next_is(':'))) return true;
    ++types_;
    return is_plain_dtype(content);
  }

  // True for a field's name: ('name', 'type') in a list.
  bool is_name(size_t begin) const {
    if (!open_.ends_with("[(")) return false;
    const size_t before = text_.substr(0, begin).find_last_not_of(kBlanks);
    return before != text_.npos && text_[before] == '(' && next_is(',');
  }

  bool next_is(char c) const {
    const size_t after = text_.find_first_not_of(kBlanks, at_);
    return after != text_.npos && text_[after] == c;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string open_;
  size_t types_ = 0;
};

}  // namespace

bool is_safetensors(const io::Handle& file) {
  if (file.size() < 9) return false;
  const std::string head = file.read_string(0, 9);
  uint64_t size = 0;
  std::memcpy(&size, head.data(), sizeof size);
  if (head[8] != '{' || size > file.size() - 8 || size > kMostHeader)
    return false;
  tree_memory::Charge charge;
  charge.add(size);
  return nlohmann::json::accept(file.read_string(8, size));
}

bool is_plain_npy(std::string_view header) {
  return NpyHeader(header).is_plain();
}

}  // namespace ckpt::scan
