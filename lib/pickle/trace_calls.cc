// SPDX-License-Identifier: Apache-2.0
// Which global is meant, and what is done to it.
#include <algorithm>

#include "lib/pickle/codecs.h"
#include "lib/pickle/names.h"
#include "lib/pickle/tracer.h"

namespace ckpt::pickle {
namespace {

constexpr uint64_t kLongestName = 4096;

// The range of the content of the text opcode at the front of `bytes`.
Range content_of(std::string_view bytes) {
  const auto number = [&](size_t width) {
    uint64_t value = 0;
    for (size_t i = width; i > 0; --i)
      value = value << 8 | static_cast<uint8_t>(bytes[i]);
    return value;
  };
  switch (static_cast<uint8_t>(bytes[0])) {
    case 0x8C:
    case 'U':
    case 'C':
      return {2, number(1)};
    case 'X':
    case 'T':
    case 'B':
      return {5, number(4)};
    default:
      return {9, number(8)};
  }
}

// A text file that begins with c is not a pickle: nothing of such a name is
// imported.
bool may_be_module(std::string_view name) {
  constexpr std::string_view kNever =
      " \t\r\v\f!\"#$%&'()*+,/:;<=>?@[\\]^`{|}~";
  return !name.empty() && name.find_first_of(kNever) == name.npos &&
         name.find('\0') == name.npos;
}

}  // namespace

uint64_t Tracer::mention(std::string module, std::string name, uint16_t use) {
  const auto [at, fresh] = index_.try_emplace(
      std::pair(std::move(module), std::move(name)), trace_.mentions.size());
  if (fresh)
    trace_.mentions.push_back({at->first.first, at->first.second, 0, at_});
  trace_.mentions[at->second].uses |= use;
  return at->second;
}

// Something is imported or called, and the pickle alone doesn't say what.
uint64_t Tracer::obscure(const char* what, uint16_t use) {
  if ((use & kImport) == 0) trace_.acts = true;
  return mention("", what, use);
}

Tracer::Value Tracer::global(std::string module, std::string name) {
  if (protocol_ < 3) {
    const auto [module3, name3] = python3_name(module, name);
    // Views into the arguments or into a table.
    std::string new_module(module3), new_name(name3);
    module = std::move(new_module);
    name = std::move(new_name);
  }
  const Value value =
      make(Kind::kGlobal, mention(std::move(module), std::move(name), kImport));
  wrapper_ = wrapper_ || is_wrapper(value);
  const Mention& named = trace_.mentions[value.number()];
  encodes_ = encodes_ || (named.module == "_codecs" && named.name == "encode");
  return value;
}

Tracer::Value Tracer::global_of_lines() {
  std::string module, name;
  bool whole = line(module, kLongestName);
  if (!trace_.protocol && !may_be_module(module))
    fail("a global whose name is not text");
  whole &= line(name, kLongestName);
  if (!whole) {
    obscure("a global of a long name", kImport);
    return make(Kind::kUnknown);
  }
  if (!is_python_utf8(module) || !is_python_utf8(name))
    fail("a global's name is not UTF-8");
  return global(std::move(module), std::move(name));
}

Tracer::Value Tracer::stack_global() {
  std::string module, name;
  const Value name_value = pop();
  if (!text_of(pop(), module) || !text_of(name_value, name)) {
    obscure("a global whose name is computed", kImport);
    return make(Kind::kUnknown);
  }
  return global(std::move(module), std::move(name));
}

// False if it is not a text of the pickle, or too long for a name.
bool Tracer::text_of(Value value, std::string& text) const {
  if (value.kind() != Kind::kText) return false;
  const uint64_t at = value.number();
  const uint64_t left = file_.size() - at;
  std::string head = file_.read_string(at, std::min(left, 2 * kLongestName));
  const auto opcode = static_cast<uint8_t>(head[0]);
  if (opcode == 'S' || opcode == 'V') {
    const size_t end = head.find('\n');
    if (end == head.npos) return false;
    const std::string_view line = std::string_view(head).substr(1, end - 1);
    auto plain =
        opcode == 'S'
            ? from_quoted(line.substr(0, line.find_last_not_of(" \t\r") + 1))
            : from_raw_unicode_escape(line);
    if (!plain) return false;
    text = std::move(*plain);
    return true;
  }
  const Range content = content_of(head);
  if (content.size > kLongestName ||
      content.offset + content.size > head.size())
    return false;
  text = head.substr(content.offset, content.size);
  return true;
}

void Tracer::use(Value callable, uint16_t use) {
  trace_.acts = true;
  if (callable.kind() == Kind::kGlobal)
    trace_.mentions[callable.number()].uses |= use;
  else if (is_made(callable))
    obscure("what a call returned", use);
  else if (callable.kind() == Kind::kPersistent)
    obscure("what persistent_load returned", use);
  else if (callable.kind() == Kind::kUnknown)
    obscure("a value that is computed", use);
  else
    fail("a value that is not a callable is called");
}

// Known functions that call their arguments; others may keep theirs.
//   torch._tensor._rebuild_from_type[_v2](function, class, arguments, state)
//   copyreg._reconstructor(class, base, state), __newobj__(class, …)
//   numpy.random._pickle.__generator_ctor(generator, constructor)
void Tracer::use_arguments(Value callable, const Pair& args) {
  const Mention& global = trace_.mentions[callable.number()];
  if (global.name.starts_with("_rebuild_from_type")) {
    use_argument(args.first, true);
    keep(args.second);
  } else if (global.module == "copyreg") {
    if (args.first.kind() == Kind::kGlobal)
      use(args.first, kNewObj);
    else
      obscure("a class that is computed", kNewObj);
    if (global.name == "_reconstructor")
      use_argument(args.second, true);
    else
      keep(args.second);
  } else if (global.module == "numpy.random._pickle") {
    // A generator that the other of them made is not called.
    if (args.first.kind() != Kind::kMade ||
        trace_.mentions[args.first.number()].module != global.module)
      use_argument(args.first, false);
    use_argument(args.second, false);
  } else {
    keep(args.first);
    keep(args.second);
  }
}

// `must`: it is called, whatever it is.
void Tracer::use_argument(Value value, bool must) {
  if (value.kind() == Kind::kGlobal)
    use(value, kArgument);
  else if (must || is_made(value) || value.kind() == Kind::kUnknown)
    obscure("a function that is computed", kArgument);
}

// What calling a global returns.
Tracer::Value Tracer::made(Value callable, const Pair& args) const {
  const Mention& global = trace_.mentions[callable.number()];
  if (global.name == "_reconstructor" && global.module == "copyreg" &&
      args.first.kind() == Kind::kGlobal)
    return make(Kind::kMade, args.first.number());
  // For objects it returns its argument.
  if (global.name == "scalar" && args.second.kind() == Kind::kGlobal)
    return make(Kind::kUnknown);
  return make(Kind::kMade, callable.number());
}

Tracer::Value Tracer::call(Value callable, Value args, uint16_t how) {
  Pair pair = {};
  if (args.kind() == Kind::kPair) pair = pairs_[args.number()];
  if (args.kind() == Kind::kWords)
    pair.first = make(Kind::kText, args.number());
  if (callable.kind() == Kind::kGlobal) {
    const Mention& global = trace_.mentions[callable.number()];
    if (how == kReduce && global.module == "builtins" &&
        global.name == "getattr")
      return attribute(callable, pair);
    if (how == kReduce && global.module == "torch.storage" &&
        global.name == "_load_from_bytes")
      return load_bytes(callable, pair);
    use_arguments(callable, pair);
    use(callable, how);
    if (global.module == "numpy" && global.name == "dtype")
      return data_type(callable, pair);
    if (how == kReduce && is_latin1(global, pair))
      return make(Kind::kEncoded, pair.first.number());
    return made(callable, pair);
  }
  keep(args);
  use(callable, how);
  return make(Kind::kUnknown);
}

// getattr(Outer, "inner"), as protocols below 4 write nested classes.
Tracer::Value Tracer::attribute(Value callable, const Pair& args) {
  std::string name;
  if (args.size != 2 || args.first.kind() != Kind::kGlobal ||
      !text_of(args.second, name)) {
    keep(args.first);
    keep(args.second);
    use(callable, kReduce);
    return make(Kind::kUnknown);
  }
  const uint64_t outer = args.first.number();
  trace_.mentions[outer].uses |= kAttribute;
  return make(Kind::kGlobal,
              mention(trace_.mentions[outer].module,
                      trace_.mentions[outer].name + "." + name, kImport));
}

// _codecs.encode(text, "latin1"): bytes, as protocols below 3 write them.
bool Tracer::is_latin1(const Mention& global, const Pair& args) const {
  std::string codec;
  if (global.module != "_codecs" || global.name != "encode" || args.size != 2 ||
      args.first.kind() != Kind::kText || !text_of(args.second, codec) ||
      codec != "latin1")
    return false;
  return file_.read_string(args.first.number(), 1) != "S";
}

// Of the line at `at`, without its newline.
uint64_t Tracer::line_size(uint64_t at) const {
  constexpr uint64_t kStep = uint64_t{1} << 16;
  for (uint64_t from = at; from < file_.size(); from += kStep) {
    const std::string part =
        file_.read_string(from, std::min(kStep, file_.size() - from));
    const size_t end = part.find('\n');
    if (end != part.npos) return from + end - at;
  }
  return file_.size() - at;
}

Tracer::Value Tracer::load_bytes(Value callable, const Pair& args) {
  const bool latin1 = args.first.kind() == Kind::kEncoded;
  if (args.size != 1 || (args.first.kind() != Kind::kBytes && !latin1)) {
    keep(args.first);
    keep(args.second);
    use(callable, kReduce);
    return make(Kind::kUnknown);
  }
  const uint64_t at = args.first.number();
  const std::string head =
      file_.read_string(at, std::min<uint64_t>(9, file_.size() - at));
  if (head[0] == 'V') {
    trace_.nested.push_back({{at + 1, line_size(at + 1)}, true, true});
    return make(Kind::kMade, callable.number());
  }
  const Range content = content_of(head);
  trace_.nested.push_back({{at + content.offset, content.size}, latin1});
  return make(Kind::kMade, callable.number());
}

Tracer::Value Tracer::number(std::optional<uint64_t> value) const {
  constexpr uint64_t kMost = uint64_t{1} << 56;
  return value && *value < kMost ? make(Kind::kInt, *value)
                                 : make(Kind::kOther);
}

// LONG1's: two's complement, the lowest byte first.
Tracer::Value Tracer::long_number(std::string_view bytes) const {
  if (bytes.size() > 8 || (!bytes.empty() && (bytes.back() & '\x80') != 0))
    return make(Kind::kOther);
  uint64_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i)
    value = value << 8 | static_cast<uint8_t>(bytes[i - 1]);
  return number(value);
}

void Tracer::set_items(Value dict, size_t first) {
  if (dict.kind() == Kind::kDict)
    for (size_t i = first; i + 1 < stack_.size(); i += 2)
      set_item(dict, stack_[i], stack_[i + 1]);
  keep_to(first);
}

void Tracer::build() {
  const Value state = pop();
  keep(state);
  const Value target = top();
  switch (target.kind()) {
    case Kind::kType:
      trace_.acts = true;
      trace_.mentions[*type_].uses |= kBuild;
      return build_type(target, state);
    case Kind::kMade:
      trace_.acts = true;
      trace_.mentions[target.number()].uses |= kBuild;
      if (is_wrapper(target)) {
        pop();
        push(wrapped_array(state));
      }
      return;
    case Kind::kGlobal:
      use(target, kChange);
      return;
    case Kind::kPersistent:
    case Kind::kUnknown:
      use(target, kBuild);
      return;
    default:
      return;  // Python continues if the state is None or empty
  }
}

void Tracer::change() {
  const Value target = top();
  if (target.kind() == Kind::kGlobal || target.kind() == Kind::kUnknown ||
      target.kind() == Kind::kPersistent)
    use(target, kChange);
}

}  // namespace ckpt::pickle
