// SPDX-License-Identifier: Apache-2.0
// A strict pull scanner for JSON, for headers and indexes of 100,000 entries:
// no tree, no allocation per value.
//
// Why by hand: simdjson's on-demand parser is lazy. It does not check what
// nobody asks for (literals and numbers in ignored fields, trailing bytes), has
// no depth limit of 128 and accepts a byte order mark. Checking all that on top
// costs more code than one pass that is strict everywhere. The pass runs as
// fast as the names can be copied (see tests/bench/header_bench.cc).
//
//   scan.enter_object();
//   while (auto key = scan.next_key())
//     if (*key == "shape") read_shape(scan); else scan.skip();
//   scan.finish();
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/error.h"

namespace ckpt::text {

// The deepest nesting; the reference reader of safetensors stops there too.
inline constexpr size_t kMaxJsonDepth = 128;

class Scanner {
 public:
  enum class Kind : uint8_t {
    kObject,
    kArray,
    kString,
    kNumber,
    kTrue,
    kFalse,
    kNull
  };
  struct Options {
    // Where the text begins in its file: messages give the byte in the file.
    uint64_t offset = 0;
    // NaN, Infinity and -Infinity, as Python's json module writes them.
    bool python_numbers = false;
    // `text` is only the beginning: see Cut.
    bool more = false;
  };
  // Thrown instead of any error while more text is to come, since the cause may
  // be that the text was cut: go back to a mark, with more of it.
  struct Cut {};
  struct Mark {
    size_t at = 0;  // in the text
    size_t depth = 0;
    bool first = false;
  };

  // Throws for a byte order mark and for bad UTF-8. `text`, which ends between
  // characters, must outlive the scanner. All errors are input_errors that name
  // path and byte.
  Scanner(std::string_view text, std::string path)
      : Scanner(text, std::move(path), Options()) {}
  Scanner(std::string_view text, std::string path, Options options);

  // The kind of the next value; consumes only white space.
  Kind peek();

  void enter_object();
  // The next key, or nullopt after the closing brace. The key is valid until
  // the next string or key.
  std::optional<std::string_view> next_key();
  void enter_array();
  bool next_item();  // false after the closing bracket

  std::string_view string();  // valid until the next string or key
  uint64_t unsigned_integer();
  std::string_view number();  // as spelled
  void literal();             // true, false, null
  // Skips any value, checked just as strictly; returns its text.
  std::string_view skip();
  // The text from here on, and a way to step over bytes of it that are a whole
  // value: a caller that expects one spelling of many looks for that first.
  std::string_view rest() const { return text_.substr(at_); }
  void step_over(size_t bytes) {
    at_ += bytes;
    first_ = false;
  }
  void finish();  // nothing but white space may follow

  Mark mark() const { return {at_, depth_, first_}; }
  // Continues at `mark`. `text` begins there, with `more` or nothing after it.
  // Bytes before it are no longer needed.
  void resume(const Mark& mark, std::string_view text, bool more);

  // "PROBLEM at byte N", about `subject` if it was set.
  [[noreturn]] void fail(std::string_view problem) const;
  [[noreturn]] void fail_expected(std::string_view what);
  // Sets the tensor or key that errors are about from here on. Not copied.
  void about(std::string_view subject) { subject_ = subject; }
  uint64_t position() const { return options_.offset + at_; }

 private:
  void skip_white() {
    if (current() <= ' ') skip_white_run();  // most headers have none
  }
  void skip_white_run();
  bool at_end() const { return at_ == text_.size(); }
  void check_utf8();
  char current() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void enter(bool object);
  bool next(char closing);
  std::string_view plain_run();
  size_t digits();
  void unescape();
  char32_t hex4();
  void word(std::string_view spelling);

  std::string_view text_;
  std::string path_;
  Options options_;
  std::string_view subject_;
  size_t at_ = 0;
  bool first_ = false;  // nothing was read in the innermost container yet
  size_t depth_ = 0;
  std::bitset<kMaxJsonDepth> is_object_;
  std::string scratch_;  // the last string with escapes
};

std::string_view name(Scanner::Kind kind);  // "an object"

}  // namespace ckpt::text
