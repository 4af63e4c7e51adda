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
#include "lib/pickle/data_types.h"
#include "lib/pickle/input.h"
#include "lib/pickle/trace.h"

namespace ckpt::pickle {

class Tracer {
 public:
  Tracer(const io::Handle& file, uint64_t offset, uint64_t end, Loader loader)
      : file_(file),
        end_(end),
        loader_(loader),
        in_(file, offset, end, UINT64_MAX) {}

  Trace run();

 private:
  // What a value is: `kind` in the upper 8 bits, a number in the others.
  enum class Kind : uint8_t {
    kOther,       // plain data
    kText,        // number: offset of the opcode that holds it
    kBytes,       // likewise
    kEncoded,     // likewise: a text as bytes of latin1
    kGlobal,      // number: index into mentions
    kMade,        // made by calling the global of that index
    kPair,        // a tuple; number: index into pairs_
    kNone,        // None
    kInt,         // number: its value
    kNumbers,     // a tuple of numbers; number: their product
    kWords,       // a tuple of up to three; number: its first, as kText
    kDict,        // number: which of them
    kType,        // a numpy.dtype; number: index into types_
    kPart,        // a tuple of a kType and a number; index into parts_
    kState,       // a tuple as of a numpy.dtype; number: index into states_
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
  // What joblib's wrapper says of an array.
  struct Wrapped {
    Value shape;
    Value type;
    bool aligned = false;
  };
  struct Fail {
    std::string problem;
  };

  static bool is_made(Value value) {
    return value.kind() == Kind::kMade || value.kind() == Kind::kType;
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
  [[noreturn]] void give_up(const char* why);
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
  uint64_t line_size(uint64_t at) const;
  bool is_latin1(const Mention& global, const Pair& args) const;
  Value made(Value callable, const Pair& args) const;
  void build();
  void change();  // APPEND … on the top of the stack
  // The values above `first` are keys and values of a dict.
  void set_items(Value dict, size_t first);
  void set_item(Value dict, Value key, Value value);
  Value number(std::optional<uint64_t> value) const;
  Value long_number(std::string_view bytes) const;

  // numpy: trace_numpy.cc.
  Value data_type(Value callable, const Pair& args);
  Value type_tuple(size_t first);  // kOther if it isn't one
  Value number_tuple(size_t first) const;
  void build_type(Value type, Value state);
  // What joblib reads in place of its wrapper, after BUILD.
  bool is_wrapper(Value value) const;
  Value wrapped_array(Value state);
  void objects_of_array();

  const io::Handle& file_;
  const uint64_t end_;
  const Loader loader_;
  Input in_;
  Trace trace_;
  std::map<std::pair<std::string, std::string>, uint64_t> index_;
  Buffer<Value> stack_;
  Buffer<uint32_t> marks_;
  Buffer<Value> memo_;
  std::unordered_map<uint64_t, Value> far_;  // memo indices that are not dense
  std::map<std::string, uint64_t> huge_;  // what indices of 20 digits are here
  Buffer<Pair> pairs_;
  DataTypes types_;
  std::optional<uint64_t> type_;  // mention of numpy.dtype, once called
  Buffer<DataTypes::Part> parts_;
  Buffer<DataTypes::State> states_;
  uint64_t dicts_ = 0;                             // so far
  bool encodes_ = false;                           // _codecs.encode was named
  bool wrapper_ = false;                           // joblib's wrapper was named
  std::unordered_map<uint64_t, Wrapped> wrapped_;  // by their wrappers' dicts
  uint64_t frame_end_ = 0;                         // of the last one
  uint64_t memoized_ = 0;
  uint64_t at_ = 0;  // of the opcode
  uint8_t protocol_ = 0;
  bool stopped_ = false;
};

}  // namespace ckpt::pickle
