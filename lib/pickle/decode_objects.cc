// SPDX-License-Identifier: Apache-2.0
// Names, calls and what is done to their results.
#include <tuple>

#include "lib/pickle/codecs.h"
#include "lib/pickle/decoder.h"
#include "lib/pickle/names.h"
#include "lib/text/format.h"

namespace ckpt::pickle {
namespace {

constexpr uint64_t kLongestName = 4096;

}  // namespace

Id Decoder::global(std::string_view module, std::string_view name) {
  if (protocol_ < 3) std::tie(module, name) = python3_name(module, name);
  const size_t before = doc_.size();
  const Id id = doc_.add_global(module, name);
  if (id == before) globals_.push_back(id);
  return id;
}

Id Decoder::global_of_lines() {
  const std::string module(in_.line(kLongestName));
  const std::string_view name = in_.line(kLongestName);
  if (!is_python_utf8(module) || !is_python_utf8(name))
    fail("a global's name is not UTF-8");
  return global(module, name);
}

Id Decoder::stack_global() {
  const Id name = pop();
  const Id module = pop();
  if (doc_.type(name) != Type::kString || doc_.type(module) != Type::kString)
    fail("a global is named by a {} and a {}", pickle::name(doc_.type(module)),
         pickle::name(doc_.type(name)));
  if (doc_.text(module).size() > kLongestName ||
      doc_.text(name).size() > kLongestName)
    fail("a global's name has more than {} bytes", kLongestName);
  return global(doc_.text(module), doc_.text(name));
}

Id Decoder::inst() {
  const Id callable = global_of_lines();
  return call(How::kInst, callable, doc_.add_items(Type::kTuple, pop_mark()));
}

Id Decoder::obj() {
  const std::span<const Id> values = pop_mark();
  if (values.empty()) fail("an object without a class");
  const Id callable = values.front();
  const Id args = doc_.add_items(Type::kTuple, values.subspan(1));
  return call(How::kInst, callable, args);
}

// A call is never made. Well-known ones that produce plain values are folded
// into these; the others are kept.
Id Decoder::call(How how, Id callable, Id args, Id kwargs) {
  const Type type = doc_.type(callable);
  if (type != Type::kGlobal && type != Type::kCall && type != Type::kPersistent)
    fail("a {} is called", pickle::name(type));
  if (doc_.type(args) != Type::kTuple)
    fail("the arguments of a call are a {}, not a tuple",
         pickle::name(doc_.type(args)));
  if (kwargs != kNoId && doc_.type(kwargs) != Type::kDict)
    fail("the keyword arguments of a call are a {}, not a dict",
         pickle::name(doc_.type(kwargs)));
  const Id folded = fold(how, callable, args);
  if (folded != kNoId) return folded;
  if (how == How::kReduce) return doc_.add_call(callable, args);
  Call call;
  call.how = how;
  call.callable = callable;
  call.args = args;
  call.kwargs = kwargs;
  return doc_.add_call(call);
}

void Decoder::build() {
  const Id state = pop();
  const Id target = top();
  if (doc_.type(target) != Type::kCall)
    fail("BUILD sets the state of a {}", pickle::name(doc_.type(target)));
  check_own(target);
  if (doc_.is_record(target) || doc_.call(target).state != kNoId)
    fail("BUILD sets the state of {} a second time",
         text::printable(doc_.callable_name(target)));
  doc_.set_state(target, state);
}

// Python would run an unknown class's append or __setitem__, so these are kept;
// tensors have neither in a pickle.
void Decoder::check_target(Id target, Type type, const char* opcode) const {
  if (doc_.type(target) == type) return;
  if (doc_.type(target) != Type::kCall)
    fail("{} on a {}", opcode, pickle::name(doc_.type(target)));
  check_own(target);
  if (is_rebuild(doc_.known(target)))
    fail("{} on a tensor ({})", opcode, doc_.callable_name(target));
}

// Equal sizes may be one value: changing one would change the others.
void Decoder::check_own(Id target) const {
  if (records_ != nullptr && doc_.known(target) == Known::kSize)
    throw NoRecords();
}

void Decoder::check_hashable(Id value) const {
  const Type type = doc_.type(value);
  if (type == Type::kList || type == Type::kDict || type == Type::kSet ||
      type == Type::kByteArray)
    fail("a {} is used as a key", pickle::name(type));
}

void Decoder::append(std::span<const Id> items) {
  const Id target = top();
  check_target(target, Type::kList, "APPEND");
  doc_.append_items(doc_.items_of(target), items);
}

void Decoder::set_items(std::span<const Id> pairs) {
  const Id target = top();
  check_target(target, Type::kDict, "SETITEM");
  if (pairs.size() % 2 != 0)
    fail("SETITEMS with {} keys and values", pairs.size());
  if (doc_.type(target) == Type::kDict) {
    for (size_t i = 0; i < pairs.size(); i += 2) check_hashable(pairs[i]);
  }
  doc_.set_pairs(doc_.pairs_of(target), pairs);
}

void Decoder::add_items(std::span<const Id> items) {
  const Id target = top();
  if (doc_.type(target) != Type::kSet)
    fail("ADDITEMS on a {}", pickle::name(doc_.type(target)));
  for (const Id item : items) check_hashable(item);
  doc_.append_items(target, items);
}

Id Decoder::dict_of(std::span<const Id> pairs) {
  if (pairs.size() % 2 != 0) fail("a dict of {} keys and values", pairs.size());
  for (size_t i = 0; i < pairs.size(); i += 2) check_hashable(pairs[i]);
  const Id dict = doc_.add_items(Type::kDict, {});
  doc_.set_pairs(dict, pairs);
  return dict;
}

}  // namespace ckpt::pickle
