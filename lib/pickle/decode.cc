// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/decode.h"

#include <algorithm>
#include <bit>

#include "lib/heap.h"
#include "lib/pickle/count.h"
#include "lib/pickle/decoder.h"
#include "lib/pickle/trace.h"
#include "lib/tree_peak.h"

namespace ckpt::pickle {
namespace {

constexpr uint8_t kHighestProtocol = 5;

}  // namespace

void Decoder::fail(std::string_view problem) const {
  throw input_error({in_.path(), {}}, "pickle at byte {}: {}", at_, problem);
}

void Decoder::check_size(uint64_t size) const {
  if (size > in_.left()) return;  // taking it will report that
  if (size > limits_.string)
    throw unsafe_error({in_.path(), {}},
                       "pickle at byte {}: a value of {} bytes, the limit is "
                       "{}",
                       at_, size, limits_.string);
}

void Decoder::check_memory(uint64_t more) const {
  const uint64_t read = in_.position() - begin_;
  // What is on the stack will still go into a container.
  const uint64_t taken = doc_.memory() + stack_.size() * sizeof(Id) + more;
  if (taken > tree_memory::kFree && taken > tree_memory::kMostPerByte * read)
    throw Dense();
}

void Decoder::check_limits() const {
  check_memory(0);
  const uint64_t most = limits_.values;
  if (doc_.spelled() <= most && stack_.size() <= most &&
      marks_.size() <= most && doc_.children_.size() / 4 <= most)
    return;
  throw unsafe_error({in_.path(), {}}, "pickle at byte {}: more than {} values",
                     at_, most);
}

// --- stack ---

void Decoder::drop() {
  if (!marks_.empty() && marks_.back() == stack_.size()) {
    pop_mark();
    return;
  }
  pop();
}

std::span<const Id> Decoder::pop_mark() {
  if (marks_.empty()) fail("there is no mark on the stack");
  const size_t first = marks_.back();
  marks_.pop_back();
  const std::span<const Id> values(stack_.data() + first,
                                   stack_.size() - first);
  check_memory(values.size_bytes());
  stack_.shrink(first);
  floor_ = marks_.empty() ? 0 : marks_.back();
  return values;
}

void Decoder::push_tuple(size_t count) {
  if (stack_.size() - floor_ < count) fail("the stack is empty");
  const size_t first = stack_.size() - count;
  const Id tuple = doc_.add_items(Type::kTuple, {stack_.data() + first, count});
  stack_.shrink(first);
  push(tuple);
}

void Decoder::throw_memo(uint64_t index) const {
  throw unsafe_error({in_.path(), {}},
                     "pickle at byte {}: memo index {}, the limit is {}", at_,
                     index, limits_.memo);
}

void Decoder::throw_unset(uint64_t index) const {
  if (memo_.get(index) == kNotKept) throw NoRecords();
  fail("memo index {} was never stored", index);
}

// --- opcodes ---

void Decoder::start_frame() {
  const auto size = in_.number<uint64_t>();
  if (size > in_.left())
    fail("a frame of {} bytes, {} are left", size, in_.left());
}

// The opcodes of protocol 2 and later, which Python writes today. One loop
// around one switch: a large checkpoint's index has 10^8 opcodes, and a call
// for each took a quarter of the time.
void Decoder::steps() {
  for (uint32_t count = 1;; ++count) {
    // An opcode makes few values: checking now and then is enough, and saves a
    // seventh of the time.
    if (count % 64 == 0) check_limits();
    at_ = in_.position();
    const uint8_t opcode = in_.byte();
    switch (opcode) {
      case '.':  // STOP
        return;
      case '(':
        push_mark();
        break;
      case 'N':
        push(doc_.add_none());
        break;
      case 0x88:
      case 0x89:
        push(doc_.add_bool(opcode == 0x88));
        break;
      case 'J':
        push(doc_.add_int(in_.number<int32_t>()));
        break;
      case 'K':
        push(doc_.add_int(in_.byte()));
        break;
      case 'M':
        push(doc_.add_int(in_.number<uint16_t>()));
        break;
      case 0x8A:  // LONG1
        push(integer_of_bytes(in_.take(in_.byte())));
        break;
      case 'G': {  // big-endian
        const auto bits = __builtin_bswap64(in_.number<uint64_t>());
        push(doc_.add_float(std::bit_cast<double>(bits)));
        break;
      }
      case 'X':  // BINUNICODE
        push(string(in_.number<uint32_t>()));
        break;
      case 0x8C:  // SHORT_BINUNICODE
        push(string(in_.byte()));
        break;
      case ')':
      case 0x85:
      case 0x86:
      case 0x87:
        push_tuple(opcode == ')' ? 0 : opcode - 0x84u);
        break;
      case 't':
        push(doc_.add_items(Type::kTuple, pop_mark()));
        break;
      case ']':
        push(doc_.add_items(Type::kList, {}));
        break;
      case 'a': {
        const Id item = pop();
        append({&item, 1});
        break;
      }
      case 'e':
        append(pop_mark());
        break;
      case '}':
        push(doc_.add_items(Type::kDict, {}));
        break;
      case 's': {
        const Id value = pop();
        const Id pair[] = {pop(), value};
        set_items(pair);
        break;
      }
      case 'u':
        set_items(pop_mark());
        break;
      case 'c':
        push(global_of_lines());
        break;
      case 0x93:
        push(stack_global());
        break;
      case 'R':
      case 0x81: {  // REDUCE, NEWOBJ
        const Id args = pop();
        const Id callable = pop();
        push(call(opcode == 'R' ? How::kReduce : How::kNewObj, callable, args));
        break;
      }
      case 'b':
        build();
        break;
      case 'q':
        put(in_.byte());
        break;
      case 'r':
        put(in_.number<uint32_t>());
        break;
      case 0x94:  // MEMOIZE
        put(memo_.size());
        break;
      case 'h':
        push_known(get(in_.byte()));
        break;
      case 'j':
        push_known(get(in_.number<uint32_t>()));
        break;
      case 'Q':
        push(doc_.add_persistent(pop()));
        break;
      default:
        step_rare(opcode);
    }
  }
}

// Framing, bytes, sets, and what only protocols 0 and 1 use.
void Decoder::step_rare(uint8_t opcode) {
  switch (opcode) {
    case 0x80:
      protocol_ = in_.byte();
      if (protocol_ > kHighestProtocol)
        fail("protocol {}, this program knows 0 to {}", protocol_,
             kHighestProtocol);
      break;
    case 0x95:
      start_frame();
      break;
    case 0x8B:
      push(long4());
      break;
    case 0x8D:  // BINUNICODE8
      push(string(in_.number<uint64_t>()));
      break;
    case 'C':
      push(bytes(Type::kBytes, in_.byte()));
      break;
    case 'B':
      push(bytes(Type::kBytes, in_.number<uint32_t>()));
      break;
    case 0x8E:
      push(bytes(Type::kBytes, in_.number<uint64_t>()));
      break;
    case 0x96:
      push(bytes(Type::kByteArray, in_.number<uint64_t>()));
      break;
    case 0x8F:  // EMPTY_SET
      push(doc_.add_items(Type::kSet, {}));
      break;
    case 0x90:
      add_items(pop_mark());
      break;
    case 0x91: {  // FROZENSET
      const std::span<const Id> items = pop_mark();
      for (const Id item : items) check_hashable(item);
      push(doc_.add_items(Type::kFrozenSet, items));
      break;
    }
    case 0x92: {  // NEWOBJ_EX
      const Id kwargs = pop();
      const Id args = pop();
      push(call(How::kNewObjEx, pop(), args, kwargs));
      break;
    }
    case 'I':
      push(integer_of_text(in_.line(limits_.decimal), false));
      break;
    case 'L':
      push(integer_of_text(in_.line(limits_.decimal), true));
      break;
    case 'F':
      push(float_of_text(in_.line(limits_.decimal)));
      break;
    case 'S':
      push(quoted_string(in_.line(limits_.string)));
      break;
    case 'V':
      push(escaped_string(in_.line(limits_.string)));
      break;
    case 'U':
      push(python2_string(in_.take(in_.byte())));
      break;
    case 'T': {
      const auto size = in_.number<int32_t>();
      if (size < 0) fail("a string of {} bytes", size);
      check_size(static_cast<uint64_t>(size));
      push(python2_string(in_.take(static_cast<uint64_t>(size))));
      break;
    }
    case 'l':
      push(doc_.add_items(Type::kList, pop_mark()));
      break;
    case 'd':
      push(dict_of(pop_mark()));
      break;
    case 'p':
      put(memo_index(in_.line(limits_.decimal)));
      break;
    case 'g':
      push(get(memo_index(in_.line(limits_.decimal))));
      break;
    case '0':
      drop();
      break;
    case '1':
      pop_mark();
      break;
    case '2':
      push(top());
      break;
    case 'i':
      push(inst());
      break;
    case 'o':
      push(obj());
      break;
    case 'P': {
      const std::string_view id = in_.line(limits_.decimal);
      push(doc_.add_persistent(python2_string(id)));
      break;
    }
    case 0x82:
    case 0x83:
    case 0x84:
      fail(
          "opcode EXT: what it names is in the registry of the program that "
          "wrote it");
    case 0x97:
    case 0x98:
      fail("opcode for an out-of-band buffer: its bytes are in no file");
    default:
      fail("opcode 0x{:02x} does not exist", opcode);
  }
}

void Decoder::throw_full(uint64_t end, uint64_t whole) const {
  const uint64_t size = std::min(end - begin_, size_);
  uint64_t read = in_.position() - begin_;
  if (whole != 0)  // as if all bytes became as many values
    read = static_cast<uint64_t>(static_cast<double>(size) *
                                 static_cast<double>(memory()) /
                                 static_cast<double>(whole));
  tree_memory::fail(in_.path(), memory(), read, size);
}

void Decoder::throw_dense(uint64_t end) const {
  const uint64_t read = std::max<uint64_t>(1, in_.position() - begin_);
  const uint64_t size = std::min(end - begin_, size_);
  const uint64_t least = tree_memory::kFree + tree_memory::kMostPerByte * size;
  const auto parts = static_cast<double>(size) / static_cast<double>(read);
  const auto whole =
      static_cast<uint64_t>(static_cast<double>(memory()) * parts);
  tree_memory::check(in_.path(), std::max(whole, least + 1), size);
  throw resource_error({in_.path(), {}}, "too many values for its bytes");
}

Decoded Decoder::run() {
  steps();
  Decoded decoded;
  doc_.set_root(pop());
  decoded.document = document_;
  decoded.end = in_.position();
  for (const Id id : globals_)
    decoded.globals.push_back(doc_.callable_name(id));
  std::ranges::sort(decoded.globals);
  std::vector<std::string>& names = decoded.globals;
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return decoded;
}

Decoded decode(std::span<const std::byte> bytes, const std::string& path,
               const Limits& limits) {
  Input input(bytes, path, limits.bytes);
  Decoder decoder(input, limits);
  try {
    return decoder.run();
  } catch (const tree_memory::Full&) {
    decoder.throw_full(bytes.size());
  } catch (const Decoder::Dense&) {
    decoder.throw_dense(bytes.size());
  }
}

namespace {

// The end of a pickle that may be followed by tensors.
uint64_t end_of(const io::Handle& file, uint64_t offset, uint64_t end) {
  try {
    const Trace found = trace(file, offset, end);
    return found.error.empty() ? found.end : end;
  } catch (const Error&) {
    return end;
  }
}

Decoded decode(const io::Handle& file, uint64_t offset, uint64_t end,
               const Limits& limits, bool records) {
  Input input(file, offset, end, limits.bytes);
  Decoder decoder(input, limits, records);
  const auto expect = [&] {
    const Expected all =
        expect_values(file, offset, input.position(), decoder.taken(), end);
    tree_memory::foresee_pieces(all.pieces, all.bytes);
    return all.bytes;
  };
  try {
    return decoder.run();
  } catch (const tree_memory::Full&) {
    const uint64_t whole = expect();
    decoder.throw_full(end, whole);
  } catch (const heap::Full&) {
    const uint64_t beside = tree_memory::used() - decoder.taken();
    tree_memory::foresee(expect() + beside);
    throw;
  } catch (const Decoder::Dense&) {
    decoder.throw_dense(end_of(file, offset, end));
  }
}

}  // namespace

Decoded decode(const io::Handle& file, uint64_t offset, uint64_t end,
               const Limits& limits) {
  return decode(file, offset, end, limits, false);
}

Decoded decode_records(const io::Handle& file, uint64_t offset, uint64_t end) {
  const Limits limits;
  try {
    return decode(file, offset, end, limits, true);
  } catch (const Decoder::NoRecords&) {
    return decode(file, offset, end, limits);
  }
}

}  // namespace ckpt::pickle
