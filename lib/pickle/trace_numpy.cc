// SPDX-License-Identifier: Apache-2.0
// numpy's types, and the arrays that joblib writes between opcodes.

#include "lib/pickle/tracer.h"

namespace ckpt::pickle {
namespace {

constexpr std::string_view kWrapper = "NumpyArrayWrapper";

}  // namespace

// numpy.dtype(code, …). A type that is made of anything else than a code is
// not followed, except for numpy.record, which stands for "V".
Tracer::Value Tracer::data_type(Value callable, const Pair& args) {
  type_ = callable.number();
  std::string code;
  const bool record = args.first.kind() == Kind::kGlobal &&
                      trace_.mentions[args.first.number()].module == "numpy" &&
                      trace_.mentions[args.first.number()].name == "record";
  if (!record && (!text_of(args.first, code) || code.empty())) code = "?!";
  return make(Kind::kType, types_.add(code));
}

// The tuple of stack_[first …] if all of them are numbers.
Tracer::Value Tracer::number_tuple(size_t first) const {
  constexpr uint64_t kMost = (uint64_t{1} << 56) - 1;
  uint64_t product = 1;
  for (size_t i = first; i < stack_.size(); ++i) {
    if (stack_[i].kind() != Kind::kInt) return make(Kind::kOther);
    const uint64_t factor = stack_[i].number();
    product =
        factor != 0 && product > kMost / factor ? kMost : product * factor;
  }
  return make(Kind::kNumbers, product);
}

// (type, offset), (type, offset, title), (type, shape); or
// (version, order, subarray, names, fields, size, alignment, flags, …).
Tracer::Value Tracer::type_tuple(size_t first) {
  const size_t size = stack_.size() - first;
  const auto at = [&](size_t i) { return stack_[first + i]; };
  if ((size == 2 || size == 3) && at(0).kind() == Kind::kType &&
      (at(1).kind() == Kind::kInt || at(1).kind() == Kind::kNumbers)) {
    parts_.push_back({at(0).number(), at(1).number()});
    return make(Kind::kPart, parts_.size() - 1);
  }
  if ((size != 8 && size != 9) || at(0).kind() != Kind::kInt ||
      at(7).kind() != Kind::kInt)
    return make(Kind::kOther);
  DataTypes::State state;
  state.flags = at(7).number();
  if (at(2).kind() == Kind::kPart)
    state.subarray = parts_[at(2).number()];
  else
    state.odd = at(2).kind() != Kind::kNone;
  if (at(4).kind() == Kind::kDict)
    state.fields = at(4).number();
  else
    state.odd = state.odd || at(4).kind() != Kind::kNone;
  if (at(5).kind() == Kind::kInt) state.size = at(5).number();
  states_.push_back(state);
  return make(Kind::kState, states_.size() - 1);
}

void Tracer::build_type(Value type, Value state) {
  if (state.kind() == Kind::kState)
    types_.build(type.number(), states_[state.number()]);
  else
    types_.build(type.number(), {.odd = true});
}

void Tracer::set_item(Value dict, Value key, Value value) {
  if (dict.kind() != Kind::kDict) return;
  if (value.kind() == Kind::kPart)
    types_.set(dict.number(), parts_[value.number()]);
  else if (is_made(value) || value.kind() == Kind::kPair ||
           value.kind() == Kind::kUnknown || value.kind() == Kind::kPersistent)
    types_.set(dict.number(), std::nullopt);
  std::string name;
  if (!wrapper_ || !text_of(key, name)) return;
  constexpr size_t kMost = 1'000'000;
  if (wrapped_.size() > kMost) give_up("too many arrays of joblib's");
  if (name == "shape")
    wrapped_[dict.number()].shape = value;
  else if (name == "dtype")
    wrapped_[dict.number()].type = value;
  else if (name == "numpy_array_alignment_bytes")
    wrapped_[dict.number()].aligned = value.kind() != Kind::kNone;
}

bool Tracer::is_wrapper(Value value) const {
  const Mention& mention = trace_.mentions[value.number()];
  return mention.module == "joblib.numpy_pickle" && mention.name == kWrapper;
}

// joblib.numpy_pickle.NumpyArrayWrapper: {shape, dtype, order, …}
//
//   BUILD | u8 n | n bytes of padding | elements | opcodes go on
//
// Padding is there if the state has a "numpy_array_alignment_bytes"; objects
// are a pickle of their own.
Tracer::Value Tracer::wrapped_array(Value state) {
  ++trace_.arrays;
  const Value array = make(Kind::kMade, mention("numpy", "ndarray", 0));
  if (loader_ == Loader::kPickle) return array;
  const auto found = wrapped_.find(state.number());
  if (state.kind() != Kind::kDict || found == wrapped_.end() ||
      found->second.shape.kind() != Kind::kNumbers ||
      found->second.type.kind() != Kind::kType)
    give_up("an array of joblib's that says too little");
  // joblib has read the frame to its end by now, and the array follows that.
  if (in_.position() < frame_end_)
    give_up("an array of joblib's inside of a frame");
  const Wrapped facts = found->second;
  wrapped_.erase(found);
  const uint64_t type = facts.type.number();
  if (types_.has_objects(type)) {
    objects_of_array();
    return array;
  }
  if (facts.aligned) skip(in_.byte());
  constexpr uint64_t kMost = uint64_t{1} << 56;
  const uint64_t count = facts.shape.number();
  const auto size = types_.size(type);
  if (!size || (count != 0 && *size > kMost / count))
    give_up("an array of joblib's whose size is not known");
  skip(*size * count);
  return array;
}

void Tracer::give_up(const char* why) {
  trace_.gave_up = true;
  fail(why);
}

void Tracer::objects_of_array() {
  const Trace inner = trace(file_, in_.position(), end_);
  for (const Mention& one : inner.mentions) {
    Mention& known = trace_.mentions[mention(one.module, one.name, one.uses)];
    if (known.uses == one.uses) known.offset = one.offset;
  }
  trace_.nested.insert(trace_.nested.end(), inner.nested.begin(),
                       inner.nested.end());
  trace_.acts = trace_.acts || inner.acts;
  trace_.gave_up = trace_.gave_up || inner.gave_up;
  if (!inner.error.empty()) fail(inner.error);
  skip(inner.end - in_.position());
}

// Tuples are many and mostly of no interest. Remember those with something
// callable in the first two places, and those of a single bytes value.
Tracer::Value Tracer::tuple(size_t first) {
  const auto callable = [](Value value) {
    return value.kind() == Kind::kGlobal || is_made(value) ||
           value.kind() == Kind::kUnknown;
  };
  const size_t size = stack_.size() - first;
  Value value = make(Kind::kOther);
  const Value head = size > 0 ? stack_[first] : Value();
  const Value second = size > 1 ? stack_[first + 1] : Value();
  const Value part = type_tuple(first);
  if (part.kind() == Kind::kPart) {
    keep_to(first);
    value = part;
  } else if (callable(head) || callable(second) ||
             (size == 1 &&
              (head.kind() == Kind::kBytes || head.kind() == Kind::kEncoded)) ||
             (encodes_ && size == 2 && head.kind() == Kind::kText &&
              second.kind() == Kind::kText)) {
    value = make(Kind::kPair, pairs_.size());
    pairs_.push_back({head, second, size});
    // Its globals wait for what takes the tuple; tuples in it don't.
    if (head.kind() != Kind::kGlobal) keep(head);
    if (second.kind() != Kind::kGlobal) keep(second);
    if (size > 2) keep_to(first + 2);
    drop_to(first);
  } else {
    value = number_tuple(first);
    if (value.kind() == Kind::kOther) value = type_tuple(first);
    if (value.kind() == Kind::kOther && head.kind() == Kind::kText && size <= 3)
      value = make(Kind::kWords, head.number());
    keep_to(first);
  }
  return value;
}

}  // namespace ckpt::pickle
