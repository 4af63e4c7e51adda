// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/encode.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "ckpt/error.h"
#include "lib/pickle/opcodes.h"

namespace ckpt::pickle {
namespace {

// What encode() must know about every value before it writes the first one.

// One number per value: an array if most values will get one, else a map.
class PerValue {
 public:
  PerValue(const Document& document, Id root, uint32_t initial)
      : initial_(initial) {
    constexpr size_t kSmall = size_t{1} << 12;
    if (root == document.root() || document.size() <= kSmall)
      array_.assign(document.size(), initial);
  }
  uint32_t& operator[](Id id) {
    return array_.empty() ? map_.try_emplace(id, initial_).first->second
                          : array_[id];
  }

 private:
  uint32_t initial_;
  std::vector<uint32_t> array_;
  std::unordered_map<Id, uint32_t> map_;
};

// The bits of a value's mark.
inline constexpr uint32_t kCount = 3;    // how often it is referenced, up to 2
inline constexpr uint32_t kOnPath = 4;   // its parts are being visited
inline constexpr uint32_t kReached = 8;  // it reaches itself

template <class F>
void for_each_part(const Document& document, Id id, F f) {
  const Type type = document.type(id);
  if (type != Type::kCall) {
    if (type >= Type::kList && type != Type::kGlobal)
      std::ranges::for_each(document.items(id), f);
    return;
  }
  const Call call = document.call(id);
  for (const Id part : {call.callable, call.args, call.kwargs, call.state}) {
    if (part != kNoId) f(part);
  }
  std::ranges::for_each(call.items, f);
  std::ranges::for_each(call.pairs, f);
}

PerValue survey(const Document& document, Id root) {
  struct Step {
    Id id;
    bool leave;
  };
  PerValue marks(document, root, 0);
  std::vector<Step> pending{{root, false}};
  while (!pending.empty()) {
    const auto [id, leave] = pending.back();
    pending.pop_back();
    uint32_t& mark = marks[id];
    if (leave) {
      mark &= ~kOnPath;
      continue;
    }
    if ((mark & kOnPath) != 0) mark |= kReached;
    if ((mark & kCount) < 2) ++mark;
    if ((mark & kCount) == 2 || document.type(id) < Type::kList) continue;
    mark |= kOnPath;
    pending.push_back({id, true});
    for_each_part(document, id, [&](Id part) {
      pending.push_back({part, false});
    });
  }
  return marks;
}

constexpr uint32_t kBatch = 1000;  // elements per APPENDS, pairs per SETITEMS
constexpr uint32_t kNotPut = UINT32_MAX;

class Encoder {
 public:
  Encoder(const Document& document, Id root)
      : doc_(document),
        marks_(survey(document, root)),
        memo_(document, root, kNotPut) {
    out_ += "\x80\x02";
    save(root);
    while (!frames_.empty()) step();
    out_ += '.';
  }

  std::string take() { return out_.take(); }

 private:
  // A value whose parts are being written.
  struct Frame {
    Id id;
    uint32_t at = 0;          // parts that were begun
    uint8_t phase = 0;        // of a call
    bool batch_open = false;  // of a list or dict
  };

  // Writes a value, or begins to; then a frame writes the rest.
  void save(Id id) {
    if (memo_[id] != kNotPut) return get(id);
    switch (doc_.type(id)) {
      case Type::kNone:
        out_ += 'N';
        return;
      case Type::kBool:
        out_ += doc_.boolean(id) ? '\x88' : '\x89';
        return;
      case Type::kInt:
        return out_.integer(doc_.integer(id));
      case Type::kBigInt:
        return out_.big_integer(doc_.text(id));
      case Type::kFloat:
        return out_.real(doc_.real(id));
      case Type::kString:
        out_.string(doc_.text(id));
        return put(id);
      case Type::kBytes:
        out_.bytes(doc_.text(id));
        return put(id);
      case Type::kByteArray:
        out_.byte_array(doc_.text(id));
        return put(id);
      case Type::kGlobal:
        out_.dotted_global(doc_.module(id), doc_.text(id));
        return put(id);
      case Type::kList:
        out_ += ']';
        put(id);
        break;
      case Type::kDict:
        out_ += '}';
        put(id);
        break;
      case Type::kSet:
      case Type::kFrozenSet:
        out_.global("builtins",
                    doc_.type(id) == Type::kSet ? "set" : "frozenset");
        out_ += ']';
        break;
      case Type::kTuple:
        if (doc_.items(id).empty()) {
          out_ += ')';
          return;
        }
        if (doc_.items(id).size() > 3) out_ += '(';
        break;
      case Type::kCall:
        begin_call(id);
        break;
      case Type::kPersistent:
        break;
    }
    enter(id);
  }

  void step() {
    Frame& frame = frames_.back();
    switch (doc_.type(frame.id)) {
      case Type::kList:
        if (!step_items(frame, doc_.items(frame.id))) frames_.pop_back();
        return;
      case Type::kDict:
        if (!step_pairs(frame, doc_.items(frame.id))) frames_.pop_back();
        return;
      case Type::kSet:
      case Type::kFrozenSet:
        if (step_items(frame, doc_.items(frame.id))) return;
        finish("\x85R", 2);
        return;
      case Type::kTuple:
        return step_tuple(frame);
      case Type::kPersistent:
        if (frame.at++ == 0) return save(doc_.items(frame.id)[0]);
        finish("Q", 1);
        return;
      default:
        return step_call(frame);
    }
  }

  // A value that reaches itself is written once more inside itself, where the
  // container that closes the cycle is already known. A third time means that
  // nothing closes it.
  void enter(Id id) {
    const Type type = doc_.type(id);
    const bool put = type == Type::kList || type == Type::kDict;
    if (!put && (marks_[id] & kReached) != 0) ++cycles_;
    if (!put && ++open_[id] > 2)
      throw unfaithful_error({}, "a {} that contains itself has no pickle",
                             name(type));
    frames_.push_back({.id = id});
  }

  // Ends the value of the last frame, whose `parts` are on the stack, with
  // `opcodes`. A value that contains itself has been written by then: uses that
  // and returns false.
  bool finish(std::string_view opcodes, size_t parts) {
    const Id id = frames_.back().id;
    const auto open = open_.find(id);
    if (--open->second == 0) open_.erase(open);
    if ((marks_[id] & kReached) != 0) --cycles_;
    const bool written = memo_[id] != kNotPut;
    if (written) {
      out_.repeat('0', parts);
      get(id);
    } else {
      out_ += opcodes;
      put(id);
    }
    if (written || doc_.type(id) != Type::kCall) frames_.pop_back();
    return !written;
  }

  void step_tuple(Frame& frame) {
    const std::span<const Id> items = doc_.items(frame.id);
    if (frame.at < items.size()) return save(items[frame.at++]);
    if (items.size() <= 3) {
      const char opcode = static_cast<char>(0x84 + items.size());
      finish({&opcode, 1}, items.size());
    } else if (memo_[frame.id] == kNotPut) {
      finish("t", 0);
    } else {
      out_ += '1';  // POP_MARK
      finish({}, 0);
    }
  }

  // One step in filling a list; false at the end.
  bool step_items(Frame& frame, std::span<const Id> items) {
    return step_batch(frame, items, 1, "ae");
  }
  bool step_pairs(Frame& frame, std::span<const Id> pairs) {
    return step_batch(frame, pairs, 2, "su");
  }

  // Elements come in batches, `unit` values each; a batch of one has an
  // opcode of its own.
  bool step_batch(Frame& frame, std::span<const Id> values, uint32_t unit,
                  const char* opcodes) {
    const uint32_t batch = kBatch * unit;
    const bool full = frame.at % batch == 0 || frame.at == values.size();
    if (frame.batch_open && full) {
      const bool one = (frame.at - 1) % batch + 1 == unit;
      out_ += opcodes[one ? 0 : 1];
      frame.batch_open = false;
    }
    if (frame.at == values.size()) return false;
    if (!frame.batch_open) {
      frame.batch_open = true;
      if (values.size() - frame.at > unit) out_ += '(';
    }
    save(values[frame.at++]);
    return true;
  }

  // --- calls: callable, arguments, opcode, items, pairs, state ---

  void begin_call(Id id) {
    const How how = doc_.call(id).how;
    if (how == How::kInst) out_ += '(';
    if (how == How::kNewObjEx) out_.global("copyreg", "__newobj_ex__");
  }

  void step_call(Frame& frame) {
    const Call call = doc_.call(frame.id);
    switch (frame.phase) {
      case 0:
        ++frame.phase;
        return save(call.callable);
      case 1:
        return step_arguments(frame, call);
      case 2:
        if (step_items(frame, call.items)) return;
        ++frame.phase;
        frame.at = 0;
        return;
      case 3:
        if (step_pairs(frame, call.pairs)) return;
        ++frame.phase;
        if (call.state != kNoId) save(call.state);
        return;
      default:
        if (call.state != kNoId) out_ += 'b';
        frames_.pop_back();
    }
  }

  void step_arguments(Frame& frame, const Call& call) {
    if (call.how == How::kInst) {  // OBJ takes them from the stack
      const std::span<const Id> args = doc_.items(call.args);
      if (frame.at < args.size()) return save(args[frame.at++]);
      if (memo_[frame.id] == kNotPut) return end_arguments("o", 0);
      out_ += '1';
      return end_arguments({}, 0);
    }
    const bool extended = call.how == How::kNewObjEx;
    if (frame.at == 0) {
      ++frame.at;
      return save(call.args);
    }
    if (frame.at == 1 && extended) {
      ++frame.at;
      return save(call.kwargs);
    }
    if (extended) return end_arguments("\x87R", 4);
    end_arguments(call.how == How::kNewObj ? "\x81" : "R", 2);
  }

  void end_arguments(std::string_view opcodes, size_t parts) {
    if (!finish(opcodes, parts)) return;
    frames_.back().phase = 2;
    frames_.back().at = 0;
  }

  // --- memo: what is referenced more than once, or may be written again
  // because a value that reaches itself is ---

  void put(Id id) {
    if ((marks_[id] & kCount) < 2 && cycles_ == 0) return;
    memo_[id] = next_memo_;
    out_.put(next_memo_++);
  }

  void get(Id id) { out_.get(memo_[id]); }

  const Document& doc_;
  Opcodes out_;
  PerValue marks_;
  PerValue memo_;
  uint32_t next_memo_ = 0;
  uint32_t cycles_ = 0;  // open values that reach themselves
  std::vector<Frame> frames_;
  std::unordered_map<Id, uint32_t> open_;  // frames of a value, if any
};

}  // namespace

std::string encode(const Document& document, Id root) {
  return Encoder(document, root).take();
}

}  // namespace ckpt::pickle
