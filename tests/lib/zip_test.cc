// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "ckpt/error.h"
#include "lib/codec/stream.h"
#include "lib/hash/crc32.h"
#include "lib/zip/archive.h"
#include "tests/support/temp_file.h"

namespace ckpt::zip {
namespace {

using test::TempDir;
using test::TempFile;

std::string data(std::string_view name) {
  return std::string(CKPT_TEST_DATA "/") + std::string(name);
}

std::string whole(const io::Handle& file) {
  return file.read_string(0, file.size());
}

// The message of the error, or "accepted" after reading all records.
std::string outcome(const std::string& path, uint64_t limit) {
  try {
    const io::Handle file = io::Handle::open_read(path);
    const Archive archive = Archive::read(file);
    for (const Entry& entry : archive.entries()) {
      CHECK(archive.find(entry.name) == &entry);
      read_entry(file, entry, limit);
    }
    return "accepted";
  } catch (const Error& error) {
    CHECK((error.code() == ExitCode::kDamaged ||
           error.code() == ExitCode::kUnsafe));
    return error.what();
  }
}

}  // namespace

TEST_CASE("zip archive: malformed files, and what is said of each") {
  struct Row {
    const char* file;
    const char* outcome;
  };
  const Row rows[] = {
      {"_control_good", "accepted"},
      {"zip64_good", "accepted"},
      {"deflated", "accepted"},
      {"crc_zero", "accepted"},
      {"nested_zip_in_zip", "accepted"},
      {"empty", "no end record (looked for in the last 0 of 0 bytes)"},
      {"only_local_header_magic", "no end record"},
      {"truncated_tail", "no end record"},
      {"truncated_half", "no end record"},
      {"junk_suffix",
       "no end record (looked for in the last 65577 of 100862 bytes)"},
      {"junk_prefix", "accepted"},  // offsets are right; gaps are allowed
      {"eocd_in_comment", "two end records, at bytes 840 and 862"},
      {"zip64_locator_past_eof", "zip64 locator at byte 705 points to byte"},
      {"entry_count_too_big",
       "zip directory of 183 bytes can't hold 60000 entries"},
      {"entry_count_too_small", "121 bytes are left after its 1 entries"},
      {"duplicate_record",
       "archive/data/0: two zip records of this name, at bytes"},
      {"duplicate_data_pkl",
       "archive/data.pkl: two zip records of this name, at bytes 0 and"},
      {"encrypted_flag", "encrypted or a patch (flags 0x0809)"},
      {"method_bzip2", "archive/data.pkl: zip compression method 12"},
      {"stored_sizes_differ",
       "archive/data/0: stored zip record of two sizes, 16 and 4000 bytes"},
      {"csize_past_eof", "archive/data/0: zip record of "},
      {"local_header_offset_bad", "zip local header at byte"},
      {"local_header_not_there",
       "archive/data.pkl: zip record at byte 0 overlaps the next one"},
      {"local_name_differs", "names another record"},
      {"overlapping_records",
       "archive/data/0: zip record at byte 82666 "
       "overlaps the next one, at byte 82666"},
      {"storage_inside_pickle_record", "archive/data"},
      {"name_traversal_record",
       "archive/../../evil.txt: zip record that leaves its directory"},
      {"name_traversal_root", "../evil/data.pkl: zip record that leaves"},
      {"absolute_root", "/archive/data.pkl: zip record with an absolute path"},
      {"bomb_data_pkl", "zip record of 268435456 bytes, at most 67108864"},
      {"bomb_storage", "zip record of 268435456 bytes, at most 67108864"},
      {"bomb_lying_size",
       "archive/data/0: deflate stream goes on past the 16 inflated bytes"},
      {"crc_mismatch", "archive/data/0: zip record has CRC-32"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.file);
    const auto path = data("bad/torch_pt/") + row.file + ".pt";
    const std::string found = outcome(path, 64 << 20);
    CAPTURE(found);
    CHECK(found.find(row.outcome) != found.npos);
  }
}

TEST_CASE("zip archive: whatever byte is changed or missing, no crash") {
  const io::Handle file =
      io::Handle::open_read(data("bad/torch_pt/zip64_good.pt"));
  const std::string good = whole(file);
  const TempDir dir;
  std::mt19937_64 random(8);
  for (int round = 0; round < 3000; ++round) {
    std::string bad = good;
    if (round % 3 == 0) {
      bad.resize(random() % bad.size());
    } else {
      for (uint64_t n = 1 + random() % 3; n > 0; --n)
        bad[random() % bad.size()] =
            static_cast<char>(random() % 2 ? random() : 0xFF);
    }
    outcome(dir.write("bad", bad), 1 << 20);
  }
}

namespace {

// What a peer's archive was made from: payload comes late, the rest is content.
struct Remake {
  std::string root;
  std::vector<Record> records;
  uint64_t alignment = 64;
};

Remake records_of(const io::Handle& file, const Archive& archive) {
  Remake made;
  for (const Entry& entry : archive.entries()) {
    const size_t slash = entry.name.find('/');
    made.root = entry.name.substr(0, slash);
    Record record{.name = entry.name.substr(slash + 1), .size = entry.size};
    if (!record.name.starts_with("data/"))
      record.content = read_entry(file, entry, 1 << 20);
    if (record.name == ".storage_alignment")
      made.alignment = std::stoull(*record.content);
    made.records.push_back(std::move(record));
  }
  return made;
}

// The archive's bytes: literals, payload from where the peer has it, and the
// late checksums. Every byte except checksums is written exactly once.
std::string assemble(const PlannedArchive& plan, const io::Handle& file,
                     const Archive& archive, const Remake& made) {
  std::string bytes(plan.size, '?');
  uint64_t written = 0;
  for (const Literal& literal : plan.literals) {
    bytes.replace(literal.offset, literal.bytes.size(), literal.bytes);
    written += literal.bytes.size();
  }
  for (size_t i = 0; i < made.records.size(); ++i) {
    if (made.records[i].content) continue;
    const Entry& entry = archive.entries()[i];
    bytes.replace(plan.data_offsets[i], entry.size,
                  file.read_string(entry.data_offset, entry.size));
    written += entry.size;
  }
  CHECK(written == plan.size);
  for (const LateCrc& late : plan.crcs) {
    const std::string_view part =
        std::string_view(bytes).substr(late.begin, late.end - late.begin);
    const uint32_t crc = crc32(0, std::as_bytes(std::span(part)));
    CHECK(late.at.size() == 2);
    for (const uint64_t at : late.at) std::memcpy(bytes.data() + at, &crc, 4);
  }
  return bytes;
}

}  // namespace

TEST_CASE("plan_archive: the bytes that torch wrote, for every golden") {
  size_t checked = 0;
  for (const auto& item :
       std::filesystem::recursive_directory_iterator(data("torch_pt"))) {
    const std::string path = item.path().string();
    const std::string name = item.path().filename().string();
    CAPTURE(path);
    const bool torch_wrote_it = !name.starts_with("rezipped") &&
                                name != "minimal_records.pt" &&
                                name != "big_endian.pt" &&
                                name != "no_crc.pt" && name != "torchscript.pt";
    if (!item.is_regular_file() || !torch_wrote_it) continue;
    const io::Handle file = io::Handle::open_read(path);
    const std::string bytes = whole(file);
    if (!bytes.starts_with("PK\3\4")) continue;
    const Archive archive = Archive::read(file);
    const Remake made = records_of(file, archive);
    const PlannedArchive plan =
        plan_archive(made.root, made.records, made.alignment);
    REQUIRE(plan.size == bytes.size());
    CHECK(assemble(plan, file, archive, made) == bytes);
    ++checked;
  }
  CHECK(checked >= 25);
}

namespace {

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), 0, 16));
  return bytes;
}

// The CRC-32 of n zero bytes: half as many twice, and one more if n is odd.
uint32_t zeros_crc(uint64_t n) {
  if (n == 0) return 0;
  const uint32_t half = zeros_crc(n / 2);
  const uint32_t even = crc32_contribution(half, n / 2) ^ half;
  const std::byte zero{0};
  return n % 2 == 0 ? even : crc32(even, {&zero, 1});
}

// See tests/support/zip_skeleton.py.
struct Skeleton {
  uint64_t size = 0;
  std::vector<Record> records;
  std::vector<Literal> literals;
};

Skeleton read_skeleton(const std::string& path) {
  Skeleton skeleton;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string what, name, hex;
    uint64_t number = 0;
    words >> what;
    if (what == "size") words >> skeleton.size;
    if (what == "record") {
      words >> name >> number >> hex;
      Record record{.name = name, .size = number};
      if (!hex.empty()) record.content = from_hex(hex);
      skeleton.records.push_back(std::move(record));
    }
    if (what == "bytes") {
      words >> number >> hex;
      skeleton.literals.push_back({number, from_hex(hex)});
    }
  }
  return skeleton;
}

}  // namespace

TEST_CASE("plan_archive: the bytes that torch wrote, around 4 GiB") {
  for (const char* name : {"small", "one_byte_less", "header_below_limit",
                           "header_at_limit", "large_records"}) {
    CAPTURE(name);
    const Skeleton expected = read_skeleton(data("zip/") + name + ".txt");
    PlannedArchive plan = plan_archive("archive", expected.records);
    CHECK(plan.size == expected.size);
    for (const LateCrc& late : plan.crcs) {
      const uint32_t crc = zeros_crc(late.end - late.begin);
      for (const uint64_t at : late.at) {
        const auto after =
            std::ranges::upper_bound(plan.literals, at, {}, &Literal::offset);
        Literal& literal = *(after - 1);
        std::memcpy(literal.bytes.data() + (at - literal.offset), &crc, 4);
      }
    }
    REQUIRE(plan.literals.size() == expected.literals.size());
    for (size_t i = 0; i < plan.literals.size(); ++i) {
      CHECK(plan.literals[i].offset == expected.literals[i].offset);
      CHECK(plan.literals[i].bytes == expected.literals[i].bytes);
    }

    // And back, with the payload as a hole in the file.
    const TempDir dir;
    const std::string path = dir.write("sparse", "");
    for (const Literal& literal : plan.literals)
      io::Handle::open_write(path).write(literal.offset, literal.bytes);
    const io::Handle file = io::Handle::open_read(path);
    const Archive archive = Archive::read(file);
    REQUIRE(archive.entries().size() == expected.records.size());
    for (size_t i = 0; i < expected.records.size(); ++i) {
      const Record& record = expected.records[i];
      const Entry& entry = archive.entries()[i];
      CHECK(entry.name == "archive/" + record.name);
      CHECK(entry.size == record.size);
      CHECK(entry.data_offset == plan.data_offsets[i]);
      if (record.content)
        CHECK(read_entry(file, entry, 100) == *record.content);
    }
  }
}

TEST_CASE("zip archive: a local header that is not there") {
  const io::Handle file =
      io::Handle::open_read(data("bad/torch_pt/_control_good.pt"));
  const uint64_t at = Archive::read(file).entries()[2].header_offset;
  std::string bytes = whole(file);
  bytes[at] = 'Q';
  const TempFile bad(bytes);
  CHECK(outcome(bad.path, 1000)
            .find(fmt::format("archive/data/0: no zip local header at byte {}",
                              at)) != std::string::npos);
}

TEST_CASE("zip archive: computed headers of all files that torch wrote") {
  size_t files = 0;
  for (const auto& item :
       std::filesystem::recursive_directory_iterator(data("torch_pt"))) {
    CAPTURE(item.path().string());
    if (!item.is_regular_file()) continue;
    const io::Handle file = io::Handle::open_read(item.path().string());
    if (!whole(file).starts_with("PK\3\4")) continue;
    const Archive read = Archive::read(file);
    const Archive computed = Archive::read(file, Headers::kComputed);
    for (size_t i = 0; i < read.entries().size(); ++i)
      CHECK(read.entries()[i].data_offset == computed.entries()[i].data_offset);
    CHECK_NOTHROW(check_headers(file));
    ++files;
  }
  CHECK(files >= 25);
}

TEST_CASE("zip archive: a header that is not what was computed is found") {
  const io::Handle file =
      io::Handle::open_read(data("bad/torch_pt/_control_good.pt"));
  const Entry entry = Archive::read(file).entries()[2];
  const auto changed = [&](uint64_t at, char by) {
    std::string bytes = whole(file);
    bytes[entry.header_offset + at] =
        static_cast<char>(bytes[entry.header_offset + at] + by);
    return TempFile(bytes);
  };
  const auto refuses = [](const TempFile& bad, const char* why) {
    const io::Handle handle = io::Handle::open_read(bad.path);
    CHECK_NOTHROW(Archive::read(handle, Headers::kComputed));
    CHECK_THROWS_WITH_AS(check_headers(handle), doctest::Contains(why), Error);
  };
  refuses(changed(0, 1), "no zip local header at byte");
  refuses(changed(30, 1), "names another record");
  refuses(changed(8, 8), "says method 8, the directory 0");
  refuses(changed(28, -1), "as the directory has it at byte");
}

TEST_CASE("plan_archive: what it can't do") {
  const auto plan = [](const std::string& root, std::vector<Record> records,
                       uint64_t alignment = 64) {
    return plan_archive(root, records, alignment);
  };
  CHECK_THROWS_AS(plan("", {}), Error);
  CHECK_THROWS_AS(plan("a/b", {}), Error);
  CHECK_THROWS_AS(plan("a", {{.name = "x"}, {.name = "x"}}), Error);
  CHECK_THROWS_WITH_AS(plan("a", {{.name = std::string(65535, 'x')}}),
                       doctest::Contains("a record name of 65537 bytes"),
                       Error);
  CHECK_THROWS_WITH_AS(plan("a", {}, 1 << 16),
                       doctest::Contains("alignment 65536"), Error);
  CHECK_THROWS_WITH_AS(plan("a", {{.name = "x", .size = uint64_t{1} << 63}}),
                       doctest::Contains("goes beyond 2^62"), Error);
}

namespace {

std::string deflate_raw(std::string_view text) {
  z_stream stream = {};
  REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8,
                       Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in =
      reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));  // NOLINT
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

codec::Stream reader_of(const std::string& path, uint64_t packed,
                        uint64_t size) {
  auto file = std::make_shared<const io::Handle>(io::Handle::open_read(path));
  return codec::Stream(file, {.path = path,
                              .size = size,
                              .codec = Codec::kDeflate,
                              .packed_offset = 3,
                              .packed_size = packed});
}

}  // namespace

TEST_CASE("inflate: reads anywhere, forwards and backwards") {
  std::mt19937_64 random(9);
  for (const uint64_t range : {2, 100, 256}) {  // compresses well, less, not
    std::string text(700'000, '\0');
    for (char& c : text) c = static_cast<char>(random() % range);
    const std::string packed = deflate_raw(text);
    const TempFile file("abc" + packed + "tail");
    codec::Stream reader = reader_of(file.path, packed.size(), text.size());
    for (int round = 0; round < 60; ++round) {
      const uint64_t at = random() % text.size();
      std::string part(random() % (text.size() - at + 1), '\0');
      reader.read(at, std::as_writable_bytes(std::span(part)));
      CHECK(part == std::string_view(text).substr(at, part.size()));
    }
  }
}

TEST_CASE("inflate: streams that are not what they should be") {
  const std::string text(100'000, 'a');
  const std::string packed = deflate_raw(text);
  const auto read_all = [&](const std::string& stored, uint64_t packed_size,
                            uint64_t size) {
    const TempFile file("abc" + stored);
    codec::Stream reader = reader_of(file.path, packed_size, size);
    std::string part(size, '\0');
    reader.read(0, std::as_writable_bytes(std::span(part)));
  };
  CHECK_NOTHROW(read_all(packed, packed.size(), text.size()));
  CHECK_NOTHROW(read_all(deflate_raw(""), 2, 0));
  struct Row {
    std::string stored;
    uint64_t packed_size;
    uint64_t size;
    const char* why;
  };
  const Row rows[] = {
      {packed, packed.size(), 99'999, "goes on past the 99999"},
      {packed, packed.size(), 0, "goes on past the 0"},
      {packed, packed.size(), 100'001, "ends after 100000 of 100001"},
      {packed, packed.size() - 3, 100'000, "stops after"},
      {packed + "xy", packed.size() + 2, 100'000, "2 bytes are left after"},
      {"\xFF\xFF\xFF\xFF", 4, 10, "bad deflate stream after 0"},
      {"", 0, 10, "stops after 0 of 10"},
      {"", 5, 10, "file ends at byte 3"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    CHECK_THROWS_WITH_AS(read_all(row.stored, row.packed_size, row.size),
                         doctest::Contains(row.why), Error);
  }
}

}  // namespace ckpt::zip
