// SPDX-License-Identifier: Apache-2.0
// Records give the same answers as the instances that they stand for, whatever
// the bytes are.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "ckpt/error.h"
#include "lib/pickle/decode.h"
#include "tests/support/pickles.h"

namespace ckpt::pickle {
namespace {

using namespace std::string_literals;

// A value in a few words, without what is deeply nested.
class Words {
 public:
  explicit Words(const Document& document) : document_(document) {}

  std::string of(Id id, int depth = 0) {
    if (id == kNoId) return "-";
    if (depth > 8) return "...";
    switch (document_.type(id)) {
      case Type::kInt:
      case Type::kBool:
        return std::to_string(*document_.as_int(id));
      case Type::kString:
        return "'" + std::string(document_.text(id)) + "'";
      case Type::kGlobal:
        return document_.callable_name(id);
      case Type::kCall:
        return call(id, depth);
      case Type::kList:
      case Type::kTuple:
      case Type::kDict:
        return std::string(name(document_.type(id))) +
               all(document_.items(id), depth);
      default:
        return std::string(name(document_.type(id)));
    }
  }

 private:
  std::string all(std::span<const Id> ids, int depth) {
    std::string words = "(";
    for (const Id id : ids) words += of(id, depth + 1) + " ";
    return words + ")";
  }

  std::string call(Id id, int depth) {
    const Call call = document_.call(id);
    std::string state = of(call.state, depth + 1);
    if (document_.is_record(id)) {
      const Record record = document_.record(id);
      state = "dict(";
      for (size_t i = 0; i < record.names.size(); ++i)
        state += of(record.names[i], depth + 2) + " " +
                 of(record.values[i], depth + 2) + " ";
      state += ")";
    }
    return std::to_string(static_cast<int>(call.how)) + " " +
           document_.callable_name(id) + of(call.args, depth + 1) + state +
           all(call.items, depth) + all(call.pairs, depth);
  }

  const Document& document_;
};

// Returns what was decoded, or the error message.
template <class Decode>
std::string outcome(Decode decode) {
  try {
    const Decoded decoded = decode();
    std::string words = Words(*decoded.document).of(decoded.document->root());
    for (const std::string& global : decoded.globals) words += "|" + global;
    return words + "|" + std::to_string(decoded.end);
  } catch (const Error& error) {
    return error.what();
  }
}

std::string plain(const std::string& pickle) {
  const auto file = io::Handle::of_memory(pickle, "test.pkl");
  return outcome([&] { return decode(file, 0, file.size()); });
}

std::string with_records(const std::string& pickle) {
  const auto file = io::Handle::of_memory(pickle, "test.pkl");
  return outcome([&] { return decode_records(file, 0, file.size()); });
}

size_t count_records(const std::string& pickle) {
  const auto file = io::Handle::of_memory(pickle, "test.pkl");
  const Decoded decoded = decode_records(file, 0, file.size());
  size_t count = 0;
  for (Id id = 0; id < decoded.document->size(); ++id)
    count += decoded.document->is_record(id);
  return count;
}

// In the memo: 2: the class m.C, 5: torch.Size, 6: 'a', 7: 'b'; 8 is next.
const std::string kBegin =
    "\x80\x04\x8c\x01m\x94\x8c\x01"
    "C\x94\x93\x94"
    "\x8c\x05torch\x94\x8c\x04Size\x94\x93\x94"
    "\x8c\x01"
    "a\x94\x8c\x01"
    "b\x94("s;

std::string pickle(const std::string& values) { return kBegin + values + "t."; }
std::string record(const std::string& fields) {
  return "h\x02)\x81\x94}\x94(" + fields + "ub";
}
const std::string kSize23 = "h\x05K\x02K\x03\x86\x94\x85\x94R\x94";

struct Row {
  std::string values;
  size_t records;
};

const Row kRows[] = {
    {record("h\x06K\x01h\x07M\x01\x02"), 1},
    {record("h\x06J\xff\xff\xff\xffh\x07\x8a\x05\x01\x02\x03\x04\xf5"), 1},
    {record("h\x06Nh\x07\x88") + record("h\x06\x89h\x07\x8c\x03xyz\x94"), 2},
    {record("h\x06h\x02j\x07\0\0\0h\x06"s), 1},
    {record("h\x06h\x05"), 0},
    {record(""), 1},
    // Sizes: equal ones, none and many dimensions.
    {record("h\x06" + kSize23 + "h\x07" + kSize23), 1},
    {record("h\x06h\x05)\x85\x94R\x94") +
         record("h\x06h\x05(K\x01K\x02K\x03K\x04t\x94\x85\x94R\x94"),
     2},
    {record("h\x06h\x05"
            "M\0\1\x85\x94\x85\x94R\x94"s),
     1},
    // What the memo holds of them: the instance, the text after it, the parts
    // of a size.
    {record("h\x06\x8c\x01x\x94") + "h\x08h\x0a", 1},
    {record("h\x06" + kSize23) + "h\x0ah\x0bh\x0c", 1},
    {record("h\x06" + kSize23) + record("h\x06h\x0c"), 2},
    {kSize23 + record("h\x06h\x0a"), 1},
    // The dict is used, or a size gets a state or an element: everything is
    // decoded again.
    {record("h\x06K\x01") + "h\x09", 0},
    {record("h\x06" + kSize23) + "h\x0c}b", 0},
    {record("h\x06" + kSize23) + "h\x0cK\x01"
                                 "a",
     0},
    {record("h\x06" + kSize23) + "h\x0cNNs", 0},
    // A record used like any instance.
    {record("h\x06K\x01") + "K\x01"
                            "aNNs",
     1},
    {record("h\x06K\x01") + "h\x08)R", 1},
    // Not records: a repeated name, names that are not texts, nine fields,
    // values that are not simple, a frame in between, arguments.
    {record("h\x06K\x01h\x06K\x02"), 0},
    {record("h\x02K\x01"), 0},
    {record("h\x06Nh\x07NK\x00NK\x01NK\x02NK\x03NK\x04NK\x05NK\x06N"s), 0},
    {record("h\x06]"), 0},
    {record("h\x06K\x01\x95\x02\0\0\0\0\0\0\0h\x07N"s), 0},
    {"h\x02K\x01\x85\x81\x94}\x94(h\x06Nub", 0},
    {"h\x02)\x81\x94}\x94h\x06K\x01sb", 0},
    // Sizes that torch would not write.
    {record("h\x06h\x05(t\x94\x85\x94R\x94"), 0},
    {record("h\x06h\x05K\x01\x86\x94\x85\x94R\x94"), 0},
    {record("h\x06h\x05K\x01\x85\x94\x85\x94R"), 0},
};

}  // namespace

TEST_CASE("pickle records: as the instances they stand for") {
  for (const Row& row : kRows) {
    CAPTURE(&row - kRows);
    const std::string bytes = pickle(row.values);
    CHECK(with_records(bytes) == plain(bytes));
    size_t records = 0;
    try {
      records = count_records(bytes);
    } catch (const Error&) {
    }
    CHECK(records == row.records);
  }
}

TEST_CASE("pickle records: no more kinds of them than a few") {
  std::string names, values;
  for (int i = 0; i < 20; ++i) {
    names += "\x8c\x02n" + std::string(1, static_cast<char>('A' + i)) + "\x94";
    values += record("h" + std::string(1, static_cast<char>(8 + i)) + "N");
  }
  const std::string bytes = pickle(names + values + values);
  CHECK(with_records(bytes) == plain(bytes));
  CHECK(count_records(bytes) == 32);
}

// Cut short, and with changed bytes.
TEST_CASE("pickle records: broken bytes give the same errors") {
  std::string values;
  for (const size_t row : {0, 1, 2, 3, 5, 6, 7, 8, 9})
    values += kRows[row].values;
  const std::string bytes = pickle(values + record("h\x06" + kSize23));
  for (size_t size = 0; size < bytes.size(); ++size) {
    CAPTURE(size);
    const std::string cut = bytes.substr(0, size);
    REQUIRE(with_records(cut) == plain(cut));
  }
  std::mt19937 random(7);  // NOLINT: the same in each run
  constexpr std::string_view kOpcodes =
      "hjKMJN()tabseu.\x81\x85\x86\x87\x88\x8a\x8c\x94R\x02\x05\x06\x09\x0c";
  for (int i = 0; i < 20'000; ++i) {
    std::string broken = bytes;
    for (auto k = random() % 3 + 1; k > 0; --k) {
      const char other = kOpcodes[random() % kOpcodes.size()];
      const size_t at =
          kBegin.size() + random() % (bytes.size() - kBegin.size());
      if (random() % 2 == 0)
        broken[std::min(at, broken.size() - 1)] = other;
      else if (random() % 2 == 0)
        broken.insert(std::min(at, broken.size()), 1, other);
      else
        broken.erase(std::min(at, broken.size() - 1), 1);
    }
    CAPTURE(i);
    REQUIRE(with_records(broken) == plain(broken));
  }
}

}  // namespace ckpt::pickle
