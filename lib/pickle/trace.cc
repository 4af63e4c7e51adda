// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/trace.h"

#include <algorithm>
#include <optional>

#include "lib/pickle/codecs.h"
#include "lib/pickle/names.h"
#include "lib/pickle/tracer.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::pickle {
namespace {

constexpr uint64_t kLongestNumber = uint64_t{1} << 16;
constexpr uint64_t kBlock = uint64_t{1} << 20;
constexpr std::string_view kBlanks = " \t\r\v\f";

// The digits of what int() reads: blanks around them, a sign, single
// underscores in between. The unpickler written in C stops at a NUL.
std::optional<std::string> digits_of(std::string_view line) {
  line = line.substr(0, line.find('\0'));
  line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
  line = line.substr(0, line.find_last_not_of(kBlanks) + 1);
  const bool minus = line.starts_with('-');
  if (minus || line.starts_with('+')) line.remove_prefix(1);
  if (line.empty() || line.front() == '_' || line.back() == '_')
    return std::nullopt;
  std::string digits;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '_' && line[i - 1] != '_') continue;
    if (line[i] < '0' || line[i] > '9') return std::nullopt;
    if (!digits.empty() || line[i] != '0') digits += line[i];
  }
  // Nothing is stored at a negative index.
  if (minus && !digits.empty()) return std::nullopt;
  return digits.empty() ? "0" : digits;
}

}  // namespace

// --- stack, memo, input ---

Tracer::Value Tracer::pop() {
  const size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() <= floor) fail("the stack is empty");
  const Value value = stack_.back();
  stack_.pop_back();
  return value;
}

Tracer::Value Tracer::top() {
  const Value value = pop();
  push(value);
  return value;
}

size_t Tracer::mark() {
  if (marks_.empty()) fail("there is no mark on the stack");
  const size_t size = marks_.back();
  marks_.pop_back();
  return size;
}

void Tracer::skip(uint64_t count) {
  for (; count > kBlock; count -= kBlock) in_.take(kBlock);
  in_.take(count);
}

// Python also takes the rest of the file for a line, and drops its last byte as
// it would a newline.
bool Tracer::line(std::string& text, uint64_t most) {
  text.clear();
  bool ends = false;
  uint64_t size = 0;
  while (!ends && in_.left() > 0) {
    std::string_view part = in_.take(1);
    ends = part[0] == '\n';
    size += part.size();
    if (text.size() <= most) text += part;
    if (ends) break;
    part = in_.ahead();
    part = part.substr(0, part.find('\n'));
    size += part.size();
    if (text.size() <= most)
      text += part.substr(0, most + 1 - std::min(most + 1, text.size()));
    in_.take(part.size());
  }
  if (size > most + 1) return false;
  if (size > 0) text.pop_back();
  return true;
}

void Tracer::skip_line() {
  std::string text;
  line(text, 0);
}

uint64_t Tracer::line_number() {
  std::string text;
  const bool whole = line(text, kLongestNumber);
  if (!whole && text.find_first_not_of("0123456789_+- \t\r\v\f") == text.npos) {
    trace_.gave_up = true;
    fail("a memo index of too many characters");
  }
  const auto digits = digits_of(text);
  if (!whole || !digits) fail("a memo index that is not a number");
  if (digits->size() < 20) return text::number(*digits).value();
  return UINT64_MAX - huge_.try_emplace(*digits, huge_.size()).first->second;
}

void Tracer::put(uint64_t index) {
  if (stack_.empty()) fail("the stack is empty");
  const Value value = stack_.back();
  if (get(index).kind() == Kind::kUnset) ++memoized_;
  if (index < memo_.size()) {
    memo_[index] = value;
  } else if (index < memo_.size() + 1024) {
    while (memo_.size() < index) memo_.push_back(get(memo_.size()));
    memo_.push_back(value);
  } else {
    far_[index] = value;
  }
}

Tracer::Value Tracer::get(uint64_t index) const {
  if (index < memo_.size()) return memo_[index];
  const auto found = far_.find(index);
  return found == far_.end() ? make(Kind::kUnset) : found->second;
}

void Tracer::keep(Value value) {
  const auto keep_global = [&](Value one) {
    if (one.kind() == Kind::kGlobal)
      trace_.mentions[one.number()].uses |= kKept;
  };
  keep_global(value);
  if (value.kind() != Kind::kPair) return;
  keep_global(pairs_[value.number()].first);
  keep_global(pairs_[value.number()].second);
}

void Tracer::keep_to(size_t size) {
  for (size_t i = size; i < stack_.size(); ++i) keep(stack_[i]);
  drop_to(size);
}

// --- opcodes ---

bool Tracer::step(uint8_t opcode) {
  switch (opcode) {
    case '.':
      keep(pop());
      stopped_ = true;
      return true;
    case '(':
      marks_.push_back(static_cast<uint32_t>(stack_.size()));
      return true;
    case 'N':
      push(Kind::kNone);
      return true;
    case 0x88:
    case 0x89:
    case ']':
    case 0x8F:
      push(Kind::kOther);
      return true;
    case '}':
      push(Kind::kDict, dicts_++);
      return true;
    case ')':
      push(Kind::kNumbers, 1);
      return true;
    case 'K':
      push(Kind::kInt, in_.byte());
      return true;
    case 'M':
      push(Kind::kInt, in_.number<uint16_t>());
      return true;
    case 'J': {
      const auto value = in_.number<int32_t>();
      if (value < 0)
        push(Kind::kOther);
      else
        push(Kind::kInt, static_cast<uint64_t>(value));
      return true;
    }
    case 'G':
      in_.take(8);
      push(Kind::kOther);
      return true;
    case 0x8A:
      push(long_number(in_.take(in_.byte())));
      return true;
    case 'X':
    case 'T':
      skip(in_.number<uint32_t>());
      push(Kind::kText, at_);
      return true;
    case 0x8C:
    case 'U':
      in_.take(in_.byte());
      push(Kind::kText, at_);
      return true;
    case 0x85:
    case 0x86:
    case 0x87: {
      const size_t size = opcode - 0x84u;
      const size_t floor = marks_.empty() ? 0 : marks_.back();
      if (stack_.size() - floor < size) fail("the stack is empty");
      push(tuple(stack_.size() - size));
      return true;
    }
    case 't':
      push(tuple(mark()));
      return true;
    case 'q':
      put(in_.byte());
      return true;
    case 'r':
      put(in_.number<uint32_t>());
      return true;
    case 0x94:
      put(memoized_);
      return true;
    case 'h':
      push(get(in_.byte()));
      break;
    case 'j':
      push(get(in_.number<uint32_t>()));
      break;
    default:
      return false;
  }
  if (stack_.back().kind() == Kind::kUnset)
    fail("a memo index that was never stored");
  return true;
}

bool Tracer::step_rare(uint8_t opcode) {
  switch (opcode) {
    case 0x80:
      protocol_ = in_.byte();
      if (protocol_ > 5) fail(fmt::format("protocol {}", protocol_));
      trace_.number = protocol_;
      return true;
    case 0x95: {  // bytes follow one another, framed or not
      const auto size = in_.number<uint64_t>();
      frame_end_ = in_.position() + std::min(size, in_.left());
      return true;
    }
    case 0x8B: {
      const auto size = in_.number<int32_t>();
      if (size < 0) fail("an integer of negative size");
      skip(static_cast<uint64_t>(size));
      push(Kind::kOther);
      return true;
    }
    case 0x8D:
      skip(in_.number<uint64_t>());
      push(Kind::kText, at_);
      return true;
    case 'C':
      skip(in_.byte());
      push(Kind::kBytes, at_);
      return true;
    case 'B':
      skip(in_.number<uint32_t>());
      push(Kind::kBytes, at_);
      return true;
    case 0x8E:
    case 0x96:
      skip(in_.number<uint64_t>());
      push(Kind::kBytes, at_);
      return true;
    case 'I':
    case 'L': {
      std::string text;
      constexpr uint64_t kDigits = 20;
      const bool whole = line(text, kDigits);
      if (text.ends_with('L')) text.pop_back();
      push(number(whole ? text::number(text) : std::nullopt));
      return true;
    }
    case 'F':
      skip_line();
      push(Kind::kOther);
      return true;
    case 'S':
    case 'V':
      skip_line();
      push(Kind::kText, at_);
      return true;
    case 'l':
    case 0x91:
      keep_to(mark());
      push(Kind::kOther);
      return true;
    case 'd': {
      const size_t first = mark();
      const Value dict = make(Kind::kDict, dicts_++);
      set_items(dict, first);
      push(dict);
      return true;
    }
    case 'p':
      put(line_number());
      return true;
    case 'g': {
      const Value value = get(line_number());
      if (value.kind() == Kind::kUnset)
        fail("a memo index that was never stored");
      push(value);
      return true;
    }
    case '0':  // a mark, if one is on top
      if (!marks_.empty() && marks_.back() == stack_.size())
        marks_.pop_back();
      else
        pop();
      return true;
    case '1':
      drop_to(mark());
      return true;
    case '2':
      push(top());
      return true;
    default:
      return false;
  }
}

// The opcodes that import, call or change something.
bool Tracer::step_object(uint8_t opcode) {
  switch (opcode) {
    case 'c':
      push(global_of_lines());
      return true;
    case 0x93:
      push(stack_global());
      return true;
    case 'R':
    case 0x81: {
      const Value args = pop();
      push(call(pop(), args, opcode == 'R' ? kReduce : kNewObj));
      return true;
    }
    case 0x92: {
      keep(pop());
      const Value args = pop();
      push(call(pop(), args, kNewObj));
      return true;
    }
    case 'i': {
      const Value callable = global_of_lines();
      const Value args = tuple(mark());
      push(call(callable, args, kInst));
      return true;
    }
    case 'o': {
      const size_t first = mark();
      if (first == stack_.size()) fail("an object without a class");
      const Value callable = stack_[first];
      const Value args = tuple(first + 1);
      drop_to(first);
      push(call(callable, args, kInst));
      return true;
    }
    case 'b':
      build();
      return true;
    case 'a':
      keep(pop());
      change();
      return true;
    case 's': {
      const Value value = pop();
      const Value key = pop();
      keep(value);
      keep(key);
      set_item(top(), key, value);
      change();
      return true;
    }
    case 'u': {
      const size_t first = mark();
      set_items(stack_.size() > 0 && first > 0 ? stack_[first - 1] : Value(),
                first);
      change();
      return true;
    }
    case 'e':
    case 0x90:
      keep_to(mark());
      change();
      return true;
    case 'Q':
      keep(pop());
      push(Kind::kPersistent);
      return true;
    case 'P':
      skip_line();
      push(Kind::kPersistent);
      return true;
    case 0x82:
    case 0x83:
    case 0x84: {
      const uint64_t code = opcode == 0x82   ? in_.byte()
                            : opcode == 0x83 ? in_.number<uint16_t>()
                                             : in_.number<uint32_t>();
      push(Kind::kGlobal,
           mention("", fmt::format("number {} of the extension registry", code),
                   kExtension));
      return true;
    }
    case 0x97:
      push(Kind::kUnknown);
      return true;
    case 0x98:
      top();
      return true;
    default:
      return false;
  }
}

// Of the records of a small tensor most end here at once: nothing is thrown for
// that.
void Tracer::steps() {
  while (!stopped_) {
    at_ = in_.position();
    const uint8_t opcode = in_.byte();
    if (trace_.opcodes++ == 0) trace_.protocol = opcode == 0x80;
    if (step(opcode) || step_rare(opcode) || step_object(opcode)) continue;
    trace_.error = fmt::format("opcode 0x{:02x} does not exist", opcode);
    return;
  }
  at_ = in_.position();
}

Trace Tracer::run() {
  try {
    steps();
  } catch (const Fail& failure) {
    trace_.error = failure.problem;
  } catch (const tree_memory::Full& error) {
    trace_.error = error.problem();
    trace_.gave_up = true;
  } catch (const Error& error) {
    // Truncated, or a line without an end; read errors are rethrown.
    if (error.code() != ExitCode::kDamaged && error.code() != ExitCode::kUnsafe)
      throw;
    trace_.error = error.problem();
    trace_.gave_up = error.code() == ExitCode::kUnsafe;
  }
  trace_.end = at_;
  if (type_ && types_.hide()) trace_.mentions[*type_].uses |= kHides;
  return std::move(trace_);
}

Trace trace(const io::Handle& file, uint64_t offset, uint64_t end,
            Loader loader) {
  return Tracer(file, offset, end, loader).run();
}

std::vector<std::string_view> use_names(uint16_t uses) {
  constexpr std::pair<uint16_t, std::string_view> kNames[] = {
      {kImport, "GLOBAL"},       {kReduce, "REDUCE"},     {kNewObj, "NEWOBJ"},
      {kInst, "INST"},           {kBuild, "BUILD"},       {kChange, "CHANGE"},
      {kAttribute, "ATTRIBUTE"}, {kArgument, "ARGUMENT"}, {kExtension, "EXT"},
      {kKept, "KEPT"},           {kHides, "HIDES"},
  };
  std::vector<std::string_view> names;
  for (const auto& [bit, name] : kNames)
    if ((uses & bit) != 0) names.push_back(name);
  return names;
}

}  // namespace ckpt::pickle
