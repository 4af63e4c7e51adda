// SPDX-License-Identifier: Apache-2.0
// Protocol 2 has no opcodes for bytes, sets and so on: Python writes them as
// calls of well-known functions.
//
//   bytes      _codecs.encode(text, "latin1"); b"": bytes()
//   bytearray  bytearray(bytes)
//   sets       set([items]), frozenset([items])
//
// Calls that would allocate by a number (bytes(2**33)) or run an unknown codec
// are kept as calls.
#include "lib/pickle/codecs.h"
#include "lib/pickle/decoder.h"

namespace ckpt::pickle {
namespace {

bool is_number_or_none(Type type) { return type <= Type::kFloat; }

bool is_sequence(Type type) {
  return type >= Type::kList && type <= Type::kFrozenSet;
}

}  // namespace

Id Decoder::fold(How how, Id callable, Id args) {
  if (doc_.type(callable) != Type::kGlobal) return kNoId;
  const Known known = doc_.known(callable);
  const std::span<const Id> values = doc_.items(args);
  if (known == Known::kOrderedDict || known == Known::kCounter)
    check_ordered_dict(values);
  if (how != How::kReduce) return kNoId;
  switch (known) {
    case Known::kCodecsEncode:
      return fold_codecs_encode(values);
    case Known::kBytes:
      return fold_bytes(Type::kBytes, values);
    case Known::kByteArray:
      return fold_bytes(Type::kByteArray, values);
    case Known::kSet:
      return fold_set(Type::kSet, values);
    case Known::kFrozenSet:
      return fold_set(Type::kFrozenSet, values);
    case Known::kNewObjEx:
      return fold_newobj_ex(values);
    default:
      return kNoId;
  }
}

Id Decoder::fold_codecs_encode(std::span<const Id> args) {
  if (args.empty() || args.size() > 2 || doc_.type(args[0]) != Type::kString ||
      (args.size() == 2 && doc_.type(args[1]) != Type::kString))
    fail("_codecs.encode wants a str and the name of a codec");
  const std::string_view codec =
      args.size() == 2 ? doc_.text(args[1]) : "utf-8";
  if (!is_plain_codec(codec)) return kNoId;
  const auto bytes = encode_text(doc_.text(args[0]), codec);
  if (!bytes) fail("_codecs.encode: a character does not exist in {}", codec);
  return doc_.add_text(Type::kBytes, *bytes);
}

Id Decoder::fold_bytes(Type type, std::span<const Id> args) {
  if (args.empty()) return doc_.add_text(type, "");
  const Type first = doc_.type(args[0]);
  if (first == Type::kString && args.size() == 2) {
    const Id encoded = fold_codecs_encode(args);
    if (encoded == kNoId || type == Type::kBytes) return encoded;
    return doc_.add_text(type, doc_.text(encoded));
  }
  if (args.size() != 1 || first == Type::kNone || first == Type::kFloat ||
      first == Type::kString)
    fail("{} of a {}", name(type), name(first));
  if (first != Type::kBytes && first != Type::kByteArray) return kNoId;
  return doc_.add_text(type, doc_.text(args[0]));
}

Id Decoder::fold_set(Type type, std::span<const Id> args) {
  if (args.empty()) return doc_.add_items(type, {});
  const Type first = doc_.type(args[0]);
  if (args.size() > 1 || is_number_or_none(first))
    fail("{} of {} arguments, a {}", name(type), args.size(), name(first));
  if (!is_sequence(first)) return kNoId;
  const std::span<const Id> items = doc_.items(args[0]);
  for (const Id item : items) check_hashable(item);
  return doc_.add_container(type, {items.begin(), items.end()});
}

// Our own encoding of NEWOBJ_EX in protocol 2.
Id Decoder::fold_newobj_ex(std::span<const Id> args) {
  if (args.size() != 3 || doc_.type(args[0]) != Type::kGlobal ||
      doc_.type(args[1]) != Type::kTuple || doc_.type(args[2]) != Type::kDict)
    return kNoId;
  return call(How::kNewObjEx, args[0], args[1], args[2]);
}

// OrderedDict() and Counter() take nothing, a mapping or pairs.
void Decoder::check_ordered_dict(std::span<const Id> args) const {
  if (args.empty()) return;
  const Type first = doc_.type(args[0]);
  if (args.size() > 1 || (first < Type::kList && first != Type::kNone))
    fail("a dict of {} arguments, a {}", args.size(), name(first));
  if (first != Type::kList && first != Type::kTuple) return;
  for (const Id item : doc_.items(args[0])) {
    const Type type = doc_.type(item);
    if (type != Type::kList && type != Type::kTuple)
      fail("a dict of pairs holds a {}", name(type));
    if (doc_.items(item).size() != 2)
      fail("a dict of pairs holds a {} of {}", name(type),
           doc_.items(item).size());
  }
}

}  // namespace ckpt::pickle
