// SPDX-License-Identifier: Apache-2.0
// The stack machine behind trace().
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "lib/pickle/buffer.h"
#include "lib/pickle/input.h"
#include "lib/pickle/trace.h"

namespace ckpt::pickle {

class Tracer {
 public:
  Tracer(const io::Handle& file, uint64_t offset, uint64_t end)
      : file_(file), in_(file, offset, end, UINT64_MAX) {}

  Trace run();

 private:
  // What a value is: `kind` in the upper 8 bits, a number in the others.
  enum class Kind : uint8_t {
    kOther,       // plain data
    kText,        // number: offset of the opcode that holds it
    kBytes,       // likewise
    kGlobal,      // number: index into mentions
    kMade,        // made by calling the global of that index
    kPair,        // a tuple; number: index into pairs_
    kNone,        // None
    kByte,        // number: its value, below 256
    kWords,       // a tuple of up to three; number: its first, as kText
    kState,       // a tuple as of a numpy.dtype of one element; number: flags
    kObjects,     // made by numpy.dtype of objects; number: as kMade
    kPersistent,  // what persistent_load returned
    kUnknown,     // a result that can't be known
    kUnset,       // of the memo
  };
  struct Value {
    uint64_t bits = 0;
    Kind kind() const { return static_cast<Kind>(bits >> 56); }
    uint64_t number() const { return bits & ((uint64_t{1} << 56) - 1); }
  };
  // The first elements of a tuple that may determine what is called. Globals
  // among them are not kept yet: what takes the tuple decides.
  struct Pair {
    Value first;
    Value second;
    uint64_t size;
  };
  struct Fail {
    std::string problem;
  };

  static bool is_made(Value value) {
    return value.kind() == Kind::kMade || value.kind() == Kind::kObjects;
  }
  static Value make(Kind kind, uint64_t number = 0) {
    return {static_cast<uint64_t>(kind) << 56 | number};
  }

  void steps();
  bool step(uint8_t opcode);       // false: not one of these
  bool step_rare(uint8_t opcode);  // likewise
  bool step_object(uint8_t opcode);

  [[noreturn]] static void fail(std::string problem) {
    throw Fail{std::move(problem)};
  }
  void push(Value value) { stack_.push_back(value); }
  void push(Kind kind, uint64_t number = 0) { push(make(kind, number)); }
  Value pop();
  Value top();
  size_t mark();  // pops the last mark; returns where it was
  void drop_to(size_t size) { stack_.shrink(size); }
  void skip(uint64_t count);
  // Reads the next line, up to `most` bytes of it into `text`; false if it is
  // longer.
  bool line(std::string& text, uint64_t most);
  void skip_line();
  void put(uint64_t index);
  Value get(uint64_t index) const;
  uint64_t line_number();     // an index of the memo, as int() reads it
  Value tuple(size_t first);  // of stack_[first …], which are popped
  // Values that become part of something.
  void keep(Value value);
  void keep_to(size_t size);  // those above; they are popped

  uint64_t mention(std::string module, std::string name, uint16_t use);
  uint64_t obscure(const char* what, uint16_t use);
  Value global(std::string module, std::string name);
  Value global_of_lines();
  Value stack_global();
  bool text_of(Value value, std::string& text) const;
  void use(Value callable, uint16_t use);
  Value call(Value callable, Value args, uint16_t use);
  void use_arguments(Value callable, const Pair& args);
  void use_argument(Value value, bool must);
  Value attribute(Value callable, const Pair& args);
  Value load_bytes(Value callable, const Pair& args);
  Value made(Value callable, const Pair& args) const;
  Value data_type(Value callable, const Pair& args);
  void build();
  void change();  // APPEND … on the top of the stack

  const io::Handle& file_;
  Input in_;
  Trace trace_;
  std::map<std::pair<std::string, std::string>, uint64_t> index_;
  Buffer<Value> stack_;
  Buffer<uint32_t> marks_;
  Buffer<Value> memo_;
  std::unordered_map<uint64_t, Value> far_;  // memo indices that are not dense
  std::map<std::string, uint64_t> huge_;  // what indices of 20 digits are here
  Buffer<Pair> pairs_;
  std::optional<uint64_t> objects_;  // numpy.dtype, if it was called for them
  bool compound_ = false;            // a numpy.dtype was given fields
  uint64_t memoized_ = 0;
  uint64_t at_ = 0;  // of the opcode
  uint8_t protocol_ = 0;
  bool stopped_ = false;
};

}  // namespace ckpt::pickle
