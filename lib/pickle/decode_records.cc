// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/decode_records.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "lib/pickle/codecs.h"
#include "lib/pickle/decoder.h"

namespace ckpt::pickle {
namespace {

constexpr size_t kMostFields = 8;
constexpr size_t kLongestSize = 16;
constexpr char kMemoize = '\x94';

}  // namespace

// The bytes ahead. Nothing is read beyond them.
class RecordReader::Ahead {
 public:
  explicit Ahead(std::string_view bytes)
      : begin_(bytes.data()), at_(begin_), end_(begin_ + bytes.size()) {}

  const char* at() const { return at_; }
  size_t used() const { return static_cast<size_t>(at_ - begin_); }
  size_t left() const { return static_cast<size_t>(end_ - at_); }
  // At the end 0, which is not an opcode.
  char peek() const { return at_ < end_ ? *at_ : '\0'; }

  bool skip(char opcode) {
    if (peek() != opcode) return false;
    ++at_;
    return true;
  }
  bool skip(std::string_view opcodes) {
    if (left() < opcodes.size() ||
        std::memcmp(at_, opcodes.data(), opcodes.size()) != 0)
      return false;
    at_ += opcodes.size();
    return true;
  }

  // An opcode and the little-endian number of type T after it.
  template <class T>
  std::optional<T> number() {
    if (left() < 1 + sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, at_ + 1, sizeof value);
    at_ += 1 + sizeof value;
    return value;
  }

  std::optional<std::string_view> take(size_t count) {
    if (left() < count) return std::nullopt;
    at_ += count;
    return std::string_view(at_ - count, count);
  }

  // BININT1, BININT2, BININT, LONG1 of 64 bits.
  std::optional<int64_t> integer() {
    switch (peek()) {
      case 'K':
        return number<uint8_t>();
      case 'M':
        return number<uint16_t>();
      case 'J':
        return number<int32_t>();
      case '\x8a':
        return long_integer();
      default:
        return std::nullopt;
    }
  }

  // A tuple of integers; returns how many.
  std::optional<size_t> skip_dims(uint64_t& hash) {
    constexpr std::string_view kTuples[] = {")", "\x85\x94", "\x86\x94",
                                            "\x87\x94"};
    const bool marked = skip('(');
    size_t count = 0;
    for (; count < kLongestSize; ++count) {
      const auto dim = integer();
      if (!dim) break;
      hash = (hash + static_cast<uint64_t>(*dim)) * 0x9E3779B97F4A7C15u;
    }
    const bool closed = marked ? count > 0 && skip("t\x94")
                               : count <= 3 && skip(kTuples[count]);
    return closed ? std::optional(count) : std::nullopt;
  }

 private:
  std::optional<int64_t> long_integer() {
    if (left() < 2 || at_[1] < 1 || at_[1] > 8) return std::nullopt;
    const auto count = static_cast<size_t>(at_[1]);
    if (left() < 2 + count) return std::nullopt;
    int64_t value = at_[1 + count] < 0 ? -1 : 0;  // the sign
    std::memcpy(&value, at_ + 2, count);
    at_ += 2 + count;
    return value;
  }

  const char* begin_;
  const char* at_;
  const char* end_;
};

bool Decoder::take_record(Id callable) {
  const Id value = records_->take(callable, in_.ahead());
  if (value == kNoId) return false;
  const std::span<const Id> memoized = records_->memoized();
  if (memo_.size() + memoized.size() > limits_.memo) return false;
  in_.take(records_->size());
  for (const Id id : memoized) memo_.put(memo_.size(), id);
  push(value);
  return true;
}

Id RecordReader::take(Id callable, std::string_view bytes) {
  Ahead ahead(bytes);
  memoized_.clear();
  const Known known = doc_.known(callable);
  Id value = kNoId;
  if (known == Known::kSize)
    value = take_size(callable, ahead);
  else if (known == Known::kOther)
    value = take_record(callable, ahead);
  size_ = ahead.used();
  return value;
}

Id RecordReader::take_record(Id callable, Ahead& ahead) {
  if (!ahead.skip(")\x81\x94}\x94(")) return kNoId;
  names_.clear();
  values_.clear();
  memoized_.assign({kNoId, kNotKept});
  while (!ahead.skip("ub")) {
    const Id name = take_get(ahead);
    const Id value = name == kNoId ? kNoId : take_value(ahead);
    if (value == kNoId || names_.size() == kMostFields) return kNoId;
    names_.push_back(name);
    values_.push_back(value);
  }
  return memoized_[0] = doc_.add_record(callable, names_, values_);
}

// kNoId also if nothing is kept there.
Id RecordReader::take_get(Ahead& ahead) const {
  std::optional<uint32_t> index;
  if (ahead.peek() == 'h')
    index = ahead.number<uint8_t>();
  else if (ahead.peek() == 'j')
    index = ahead.number<uint32_t>();
  if (!index) return kNoId;
  const Id value = memo_.get(*index);
  return value == kNotKept ? kNoId : value;
}

Id RecordReader::take_value(Ahead& ahead) {
  switch (ahead.peek()) {
    case 'h':
    case 'j': {
      const Id value = take_get(ahead);
      if (value == kNoId || doc_.known(value) != Known::kSize) return value;
      // A finished size is memoized, too: that is not a class.
      if (doc_.is(value, Type::kCall)) return value;
      return take_size(value, ahead);
    }
    case 'N':
      ahead.skip('N');
      return doc_.add_none();
    case '\x88':
      ahead.skip('\x88');
      return doc_.add_bool(true);
    case '\x89':
      ahead.skip('\x89');
      return doc_.add_bool(false);
    case '\x8c':
      return take_text(ahead);
    default:
      break;
  }
  const auto integer = ahead.integer();
  return integer ? doc_.add_int(*integer) : kNoId;
}

Id RecordReader::take_text(Ahead& ahead) {
  const auto length = ahead.number<uint8_t>();
  const auto text = length ? ahead.take(*length) : std::nullopt;
  if (!text || !ahead.skip(kMemoize) || !is_python_utf8(*text)) return kNoId;
  const Id id = doc_.add_text(Type::kString, *text);
  memoized_.push_back(id);
  return id;
}

Id RecordReader::take_size(Id callable, Ahead& ahead) {
  const char* const begin = ahead.at();
  uint64_t hash = 0;
  const auto count = ahead.skip_dims(hash);
  if (!count || !ahead.skip("\x85\x94R\x94")) return kNoId;
  const Id id = size_of(callable, {begin, ahead.at()}, hash);
  // make_size adds a tuple, the arguments and the call, one after the other.
  if (*count > 0) memoized_.push_back(id - 2);
  memoized_.push_back(id - 1);
  memoized_.push_back(id);
  return id;
}

Id RecordReader::size_of(Id callable, std::string_view opcodes, uint64_t hash) {
  KnownSize& known = known_size(hash);
  if (known.id != kNoId &&
      std::string_view(known.opcodes, known.length) == opcodes) {
    doc_.spared_ += 3;
    return known.id;
  }
  const Id id = make_size(callable, opcodes);
  if (opcodes.size() > sizeof known.opcodes) return id;
  ++made_;
  known.id = id;
  known.length = static_cast<uint8_t>(opcodes.size());
  std::ranges::copy(opcodes, known.opcodes);
  return id;
}

Id RecordReader::make_size(Id callable, std::string_view opcodes) {
  Ahead ahead(opcodes);
  ahead.skip('(');
  Id dims[kLongestSize];
  size_t count = 0;
  while (const auto integer = ahead.integer())
    dims[count++] = doc_.add_int(*integer);
  const Id tuple = doc_.add_items(Type::kTuple, {dims, count});
  const Id args = doc_.add_items(Type::kTuple, {&tuple, 1});
  return doc_.add_call(callable, args);
}

// Sizes and offsets recur, once from each rank.
RecordReader::KnownSize& RecordReader::known_size(uint64_t hash) {
  constexpr size_t kFirst = 64, kLast = size_t{1} << 14;
  if (sizes_.empty() || (made_ > sizes_.size() && sizes_.size() < kLast)) {
    sizes_.assign(sizes_.empty() ? kFirst : 16 * sizes_.size(), {});
    made_ = 0;
  }
  return sizes_[(hash >> 32) & (sizes_.size() - 1)];
}

}  // namespace ckpt::pickle
