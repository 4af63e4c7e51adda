// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/v1/index.h"

#include <algorithm>
#include <unordered_set>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/number.h"
#include "lib/text/scan.h"

namespace ckpt::olmo_core::v1 {
namespace {

using text::printable;
using text::Scanner;

constexpr std::string_view kTensors = "tensors";
constexpr std::string_view kSpecs = "shard_spec_per_file";
constexpr std::string_view kOffsets = "flattened_offsets_per_file";
constexpr std::string_view kFirst = "rank_";
constexpr std::string_view kLast = ".safetensors";

// A thousand ranks times ten thousand tensors stay far below this.
constexpr uint64_t kMostBytes = uint64_t{4} << 30;
// The part that identifies an index: the first tensor's fields.
constexpr uint64_t kHead = 64 << 10;

class IndexReader {
 public:
  IndexReader(std::string_view text, Index& index)
      : scan_(text, index.path), index_(index) {}

  void read() {
    bool found = false;
    scan_.enter_object();
    while (const auto key = scan_.next_key()) {
      if (*key == kTensors && !found) {
        found = true;
        read_tensors();
      } else if (*key == kTensors) {
        scan_.fail("a second \"tensors\"");
      } else {
        index_.ignored.emplace_back(*key);
        scan_.skip();
      }
    }
    scan_.finish();
    if (!found)
      throw input_error({index_.path, {}}, "has no key \"tensors\"")
          .with_hint("this is not an index of OLMo-core");
    index_.spelling = spelling_;
  }

 private:
  void read_tensors() {
    std::unordered_set<std::string> names;
    scan_.enter_object();
    while (const auto key = scan_.next_key()) {
      name_ = *key;
      if (!names.insert(name_).second) fail("is in the index twice");
      shown_ = printable(name_);
      scan_.about(shown_);
      read_entry();
    }
    scan_.about({});
  }

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text,
                         Args&&... args) const {
    throw input_error({index_.path, printable(name_)}, "{}",
                      fmt::format(text, std::forward<Args>(args)...));
  }

  void read_entry() {
    Entry entry;
    entry.name = name_;
    bool shape = false;
    bool shards = false;
    scan_.enter_object();
    while (const auto key = scan_.next_key()) {
      if (*key == "shape" && !shape) {
        shape = true;
        entry.shape = Shape(numbers());
      } else if (*key == "dtype" && !entry.dtype) {
        const std::string spelled(scan_.string());
        entry.dtype = dtype_from_safetensors(spelled);
        if (!entry.dtype)
          fail("safetensors has no dtype \"{}\"", printable(spelled));
      } else if (*key == "is_sharded" && !entry.sharded) {
        entry.sharded = boolean();
      } else if ((*key == kSpecs || *key == kOffsets) && !shards) {
        shards = true;
        read_shards(entry, *key == kSpecs);
      } else if (*key == "shape" || *key == "dtype" || *key == "is_sharded" ||
                 *key == kSpecs || *key == kOffsets) {
        fail("has \"{}\" twice", printable(*key));
      } else {
        scan_.skip();
      }
    }
    if (!shape) fail("has no \"shape\"");
    if (!shards) fail("has neither \"{}\" nor \"{}\"", kSpecs, kOffsets);
    check(entry);
    index_.entries.push_back(std::move(entry));
  }

  bool boolean() {
    const Scanner::Kind kind = scan_.peek();
    if (kind != Scanner::Kind::kTrue && kind != Scanner::Kind::kFalse)
      scan_.fail_expected("true or false");
    scan_.literal();
    return kind == Scanner::Kind::kTrue;
  }

  std::vector<uint64_t> numbers() {
    std::vector<uint64_t> values;
    scan_.enter_array();
    while (scan_.next_item()) {
      values.push_back(scan_.unsigned_integer());
      if (values.size() > kMaxRank) fail("more than {} numbers", kMaxRank);
    }
    return values;
  }

  void read_shards(Entry& entry, bool specs) {
    std::unordered_set<uint32_t> ranks;
    scan_.enter_object();
    while (const auto key = scan_.next_key()) {
      const auto rank = rank_of_file(*key);
      if (!rank)
        fail("names the file \"{}\", not a rank_<r>.safetensors",
             printable(*key));
      if (!ranks.insert(*rank).second) fail("lists {} twice", rank_file(*rank));
      Shard& shard = entry.shards.emplace_back();
      shard.rank = *rank;
      spelling_ = specs ? Spelling::kSpecs : Spelling::kPairs;
      if (specs)
        read_spec(shard);
      else
        read_ranges(shard);
    }
    if (entry.shards.empty()) fail("no file is listed for it");
  }

  bool null() {
    if (scan_.peek() != Scanner::Kind::kNull) return false;
    scan_.literal();
    return true;
  }

  void read_spec(Shard& shard) {
    bool ranges = false;
    std::optional<Dims> shape, offset;
    scan_.enter_object();
    while (const auto key = scan_.next_key()) {
      if (*key == "flattened_offsets") {
        if (null()) continue;
        if (ranges) fail("has flattened_offsets twice");
        ranges = true;
        read_ranges(shard);
      } else if (*key == "local_shape") {
        if (!null()) shape = Dims(numbers());
      } else if (*key == "global_offset") {
        if (!null()) offset = Dims(numbers());
      } else {
        scan_.skip();
      }
    }
    if (shape.has_value() != offset.has_value() || ranges == shape.has_value())
      fail(
          "{} needs either flattened_offsets, or local_shape and "
          "global_offset",
          rank_file(shard.rank));
    if (shape) shard.box = Box{std::move(*offset), std::move(*shape)};
  }

  // [a, b], [[a, b], …] or []
  void read_ranges(Shard& shard) {
    bool pair = false;
    std::vector<uint64_t> single;
    scan_.enter_array();
    while (scan_.next_item()) {
      if (scan_.peek() == Scanner::Kind::kArray) {
        if (pair) fail("flattened_offsets mixes numbers and pairs");
        const std::vector<uint64_t> ends = numbers();
        if (ends.size() != 2) fail("a range of {} numbers", ends.size());
        shard.ranges.push_back({ends[0], ends[1]});
      } else {
        pair = true;
        if (!shard.ranges.empty() || single.size() == 2)
          fail("flattened_offsets is neither a pair nor a list of pairs");
        single.push_back(scan_.unsigned_integer());
      }
    }
    if (pair && single.size() != 2) fail("a range of one number");
    if (pair) shard.ranges.push_back({single[0], single[1]});
    if (spelling_ != Spelling::kSpecs)
      spelling_ = pair ? Spelling::kPair : Spelling::kPairs;
  }

  // Checks that every range and box is inside, and that what a file has of the
  // tensor does not overflow.
  void check(Entry& entry) {
    const auto count = element_count(entry.shape);
    if (!count || (entry.dtype && !byte_size_of(*entry.dtype, *count)))
      fail("shape {} has more bytes than 64 bits count",
           to_string(entry.shape));
    for (Shard& shard : entry.shards) {
      if (shard.box)
        check_box(entry, shard);
      else
        check_ranges(entry, shard, *count);
    }
  }

  static bool byte_size_of(DType dtype, uint64_t count) {
    return checked_mul(count, info(dtype).bits).has_value();
  }

  void check_box(const Entry& entry, Shard& shard) {
    if (shard.box->shape.size() != entry.shape.size() ||
        shard.box->offset.size() != entry.shape.size() ||
        !inside(*shard.box, entry.shape))
      fail("the box {} at {} of {} is not inside of {}",
           to_string(shard.box->shape), to_string(shard.box->offset),
           rank_file(shard.rank), to_string(entry.shape));
    shard.elements = volume(*shard.box);
  }

  void check_ranges(const Entry& entry, Shard& shard, uint64_t count) {
    for (const FlatRange& range : shard.ranges) {
      if (range.begin > range.end || range.end > count)
        fail("the range [{}, {}) of {} is not inside of {} ({} elements)",
             range.begin, range.end, rank_file(shard.rank),
             to_string(entry.shape), count);
      const auto sum = checked_add(shard.elements, range.end - range.begin);
      if (!sum) fail("the ranges of {} overflow", rank_file(shard.rank));
      shard.elements = *sum;
    }
  }

  Scanner scan_;
  Index& index_;
  std::string name_;
  std::string shown_;
  Spelling spelling_ = Spelling::kSpecs;  // of the last description
};

// True if the first tensor has a shape and a description by files, as far as
// the text goes.
bool begins_as_index(std::string_view text) {
  Scanner scan(text, {});
  scan.enter_object();
  const auto key = scan.next_key();
  if (!key || *key != kTensors) return false;
  scan.enter_object();
  if (!scan.next_key()) return true;  // no tensors at all
  scan.enter_object();
  while (const auto field = scan.next_key()) {
    if (*field == kSpecs || *field == kOffsets) return true;
    scan.skip();
  }
  return false;
}

}  // namespace

Index read_index(const std::string& path) {
  const std::string text = io::read_file(path, kMostBytes);
  Index index;
  index.path = path;
  IndexReader(text, index).read();
  return index;
}

bool looks_like_index(const std::string& path) {
  try {
    if (!io::is_file(path)) return false;
    const io::Handle file = io::Handle::open_read(path);
    return begins_as_index(
        file.read_string(0, std::min<uint64_t>(file.size(), kHead)));
  } catch (const Error&) {
    return false;
  }
}

std::optional<uint32_t> rank_of_file(std::string_view name) {
  if (!name.starts_with(kFirst) || !name.ends_with(kLast) ||
      name.size() <= kFirst.size() + kLast.size())
    return std::nullopt;
  name.remove_prefix(kFirst.size());
  name.remove_suffix(kLast.size());
  return text::number<uint32_t>(name, text::Zeros::kRefused);
}

std::string rank_file(uint32_t rank) {
  return fmt::format("{}{}{}", kFirst, rank, kLast);
}

}  // namespace ckpt::olmo_core::v1
