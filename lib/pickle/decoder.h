// SPDX-License-Identifier: Apache-2.0
// The stack machine behind decode().
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/pickle/decode.h"
#include "lib/pickle/decode_records.h"
#include "lib/pickle/input.h"
#include "lib/pickle/memo.h"
#include "lib/pickle/value.h"

namespace ckpt::pickle {

class Decoder {
 public:
  // Thrown where a pickle takes apart what is kept as a record: it must be
  // decoded without records.
  struct NoRecords {};
  // Thrown where a tree takes more memory than allowed for what was read.
  struct Dense {};

  Decoder(Input& input, const Limits& limits, bool records = false)
      : in_(input),
        limits_(limits),
        begin_(input.position()),
        size_(input.left()),
        document_(std::make_shared<Document>()),
        doc_(*document_) {
    if (records) records_ = std::make_unique<RecordReader>(doc_, memo_);
  }

  Decoded run();
  // Throws an error naming the pickle that doesn't fit memory. `end`: of the
  // pickle. `whole`: what its values would take, 0 if nobody knows.
  [[noreturn]] void throw_full(uint64_t end, uint64_t whole = 0) const;
  [[noreturn]] void throw_dense(uint64_t end) const;
  uint64_t taken() const { return memory(); }

 private:
  // decode.cc: the opcodes.
  void steps();  // until STOP
  void step_rare(uint8_t opcode);
  void start_frame();

  // decode_scalars.cc
  Id integer_of_bytes(std::string_view little_endian);
  Id integer_of_text(std::string_view text, bool is_long);
  Id long4();
  Id float_of_text(std::string_view text);
  Id string(uint64_t size);  // UTF-8
  Id python2_string(std::string_view bytes);
  Id quoted_string(std::string_view line);
  Id escaped_string(std::string_view line);
  Id bytes(Type type, uint64_t size);
  uint64_t memo_index(std::string_view line);

  // decode_objects.cc
  Id global(std::string_view module, std::string_view name);
  Id global_of_lines();
  Id stack_global();
  Id inst();
  Id obj();
  Id call(How how, Id callable, Id args, Id kwargs = kNoId);
  void build();
  void append(std::span<const Id> items);
  void set_items(std::span<const Id> pairs);
  void add_items(std::span<const Id> items);
  Id dict_of(std::span<const Id> pairs);
  void check_target(Id target, Type type, const char* opcode) const;
  void check_hashable(Id value) const;
  void check_own(Id target) const;

  // fold.cc: calls that are plain values, with their arguments checked. kNoId
  // if the call must be kept.
  Id fold(How how, Id callable, Id args);
  Id fold_codecs_encode(std::span<const Id> args);
  Id fold_bytes(Type type, std::span<const Id> args);
  Id fold_set(Type type, std::span<const Id> args);
  Id fold_newobj_ex(std::span<const Id> args);
  void check_ordered_dict(std::span<const Id> args) const;

  // stack
  void push(Id value) { stack_.push_back(value); }
  Id pop() {
    check_stack();
    const Id value = stack_.back();
    stack_.pop_back();
    return value;
  }
  Id top() {
    check_stack();
    return stack_.back();
  }
  void check_stack() const {
    if (stack_.size() <= floor_) fail("the stack is empty");
  }
  void push_mark() {
    marks_.push_back(static_cast<uint32_t>(stack_.size()));
    floor_ = stack_.size();
  }
  void drop();  // POP: a value or a mark
  // Pops the last mark and the values above it, and returns these. The span is
  // valid until the next push.
  std::span<const Id> pop_mark();
  void push_tuple(size_t count);
  void put(uint64_t index) {
    if (index > limits_.memo) throw_memo(index);
    memo_.put(index, top());
  }
  Id get(uint64_t index) const {
    const Id value = memo_.get(index);
    if (value >= kNotKept) throw_unset(index);
    return value;
  }
  // GET, and what follows it if that is a record.
  void push_known(Id value) {
    const bool may_be = records_ != nullptr && doc_.is(value, Type::kGlobal);
    if (!may_be || !take_record(value)) push(value);
  }
  bool take_record(Id callable);
  [[noreturn]] void throw_memo(uint64_t index) const;
  [[noreturn]] void throw_unset(uint64_t index) const;
  void check_limits() const;
  void check_memory(uint64_t more) const;
  uint64_t memory() const {
    return doc_.memory() + stack_.size() * sizeof(Id) +
           marks_.size() * sizeof(uint32_t) + memo_.size() * sizeof(Id);
  }

  [[noreturn]] void fail(std::string_view problem) const;
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text,
                         Args&&... args) const {
    fail(std::string_view(fmt::format(text, std::forward<Args>(args)...)));
  }
  void check_size(uint64_t size) const;  // of one string

  Input& in_;
  const Limits& limits_;
  const uint64_t begin_;
  const uint64_t size_;  // at most to the end of the input
  std::shared_ptr<Document> document_;
  Document& doc_;
  Memo memo_;
  Buffer<Id> stack_;
  Buffer<uint32_t> marks_;
  size_t floor_ = 0;  // the stack's size at the last mark
  uint64_t at_ = 0;   // of the opcode
  uint8_t protocol_ = 0;
  std::vector<Id> globals_;
  std::unique_ptr<RecordReader> records_;  // null: no records
};

}  // namespace ckpt::pickle
