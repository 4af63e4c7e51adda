// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <filesystem>

#include "ckpt/error.h"
#include "lib/hash/crc32.h"
#include "lib/io/file.h"
#include "lib/io/staging.h"
#include "reshard/plan/planner.h"
#include "reshard/ranks/pulse.h"
#include "reshard/ranks/run.h"
#include "reshard/ranks/share.h"
#include "reshard/ranks/split.h"
#include "reshard/run/journal.h"
#include "tests/support/recut.h"
#include "tests/support/thread_link.h"

namespace ckpt::ranks {
namespace {

using reshard::Item;
using reshard::kNone;
using reshard::Plan;
using reshard::RunResult;
using test::Random;

struct Case : test::Recut {
  Plan plan;
  test::TempDir dir;
};

// Each source file has a checksum over all of it, like a zip record; some
// target files have one to be filled in.
void make_case(Random& random, Case& c) {
  static_cast<test::Recut&>(c) = test::random_recut(random);
  test::write_source(c.source, c.dir);
  const auto files = test::files_of(c.source);
  for (uint32_t f = 0; f < files.size(); ++f)
    if (!files[f].empty())
      c.source.crcs.push_back(
          {f, 0, files[f].size(), crc32(0, files[f]), "record"});
  for (TargetFile& file : c.target.files)
    if (random() % 2) file.crcs = {{0, file.size, {}}};
  c.plan = reshard::make_plan(c.source, c.target);
}

struct Written {
  RunResult result;
  std::vector<std::string> files;
  std::vector<reshard::CrcPart> crcs;
};

Written write(const Case& c, const std::string& name) {
  const std::string root = c.dir.file(name);
  std::filesystem::create_directories(root);
  io::Handle::create(io::join(root, "lock"));
  for (const TargetFile& file : c.target.files)
    io::Handle::create(io::join(root, file.path)).allocate(file.size);
  reshard::RunOptions options;
  options.threads = 2;
  options.check_crcs = true;
  reshard::Output output(c.target, root);
  Written written;
  written.result = ranks::run(
      c.plan, c.source, output, options,
      {.target = &c.target, .root = root, .journal = root + "/journal"});
  for (const TargetFile& file : c.target.files)
    written.files.push_back(
        io::read_file(io::join(root, file.path), uint64_t{1} << 30));
  written.crcs = output.crc_parts();
  return written;
}

uint64_t sum(const Plan& plan, const std::vector<Item>& items) {
  uint64_t bytes = 0;
  for (const Item& item : items) bytes += bytes_of(plan, item);
  return bytes;
}

// A row-split of one big tensor per file, as many ranks hold it.
Plan wide_plan(uint64_t files, uint64_t rows, uint64_t width) {
  Plan plan;
  plan.tensors.resize(1);
  for (uint32_t f = 0; f < files; ++f) {
    plan.lanes.push_back({.width = width, .file = f});
    plan.lanes.push_back({.width = width, .file = 0});
    plan.jobs.push_back({.rows = rows,
                         .first_source = 2 * f,
                         .sources = 1,
                         .first_target = 2 * f + 1,
                         .targets = 1});
  }
  return plan;
}

}  // namespace

TEST_CASE("ranks: shares differ by less than 5 % and lose nothing") {
  struct Row {
    uint64_t files, rows, width;
  };
  const Row rows[] = {
      {1, 1, uint64_t{64} << 20},      // one run of bytes
      {1, 4096, 16384},                // one matrix
      {7, 1000, 12345},                // odd rows
      {512, 1, uint64_t{1} << 20},     // as many files as ranks
      {3, 1, (uint64_t{9} << 20) + 5}  // not a multiple of a page
  };
  for (const Row& row : rows) {
    const Plan plan = wide_plan(row.files, row.rows, row.width);
    const Catalog source{.files = std::vector<File>(row.files)};
    const auto items = reshard::cut_items(plan, reshard::kItemBytes);
    const uint64_t total = sum(plan, items);
    for (const uint32_t ranks : {1U, 2U, 3U, 8U, 64U, 512U}) {
      CAPTURE(row.rows);
      CAPTURE(ranks);
      uint64_t all = 0;
      for (const auto& share : split(plan, source, items, ranks)) {
        const uint64_t bytes = sum(plan, share);
        all += bytes;
        if (total / ranks > uint64_t{100} << 10) {
          CHECK(bytes * ranks > total * 95 / 100);
          CHECK(bytes * ranks < total * 105 / 100);
        }
      }
      CHECK(all == total);
    }
  }
}

TEST_CASE("ranks: items that are cut have no number, the others keep it") {
  const Plan plan = wide_plan(1, 1, uint64_t{64} << 20);
  const Catalog source{.files = std::vector<File>(1)};
  const auto items = reshard::cut_items(plan, reshard::kItemBytes);
  REQUIRE(items.size() == 4);
  const auto parts = split(plan, source, items, 3);
  uint64_t at = 0;
  for (const auto& part : parts)
    for (const Item& item : part) {
      CHECK(item.begin == at);
      at = item.end;
      const bool whole = item.end - item.begin == reshard::kItemBytes;
      CHECK((item.number == kNone) == !whole);
    }
  CHECK(at == uint64_t{64} << 20);
}

TEST_CASE("ranks: a compressed file is read by one rank") {
  const Plan plan = wide_plan(5, 1, uint64_t{40} << 20);
  Catalog source{.files = std::vector<File>(5)};
  for (File& file : source.files) file.codec = Codec::kZstd;
  const auto items = reshard::cut_items(plan, reshard::kItemBytes);
  std::vector<uint32_t> reader(5, kNone);
  const auto parts = split(plan, source, items, 3);
  for (uint32_t rank = 0; rank < parts.size(); ++rank) {
    CHECK(!parts[rank].empty());
    for (const Item& item : parts[rank]) {
      CHECK((reader[item.index] == kNone || reader[item.index] == rank));
      reader[item.index] = rank;
    }
  }
}

TEST_CASE("ranks: any plan, the bytes and sums of one process") {
  Random random(20261122);
  for (int round = 0; round < 120; ++round) {
    CAPTURE(round);
    Case c;
    make_case(random, c);
    const Written alone = write(c, "alone");
    constexpr Mode kModes[] = {Mode::kAuto, Mode::kRead, Mode::kSend};
    set_sharing({kModes[round % 3], uint64_t{64} << 10});
    const auto count = static_cast<uint32_t>(1 + random() % 8);
    const std::vector<int> statuses = test::with_ranks(count, 5, [&] {
      const Written many = write(c, "many");
      CHECK(many.files == alone.files);
      CHECK(many.result.source == alone.result.source);
      CHECK(many.result.target == alone.result.target);
      CHECK(many.result.wrong_crcs.empty());
      REQUIRE(many.crcs.size() == alone.crcs.size());
      for (size_t i = 0; i < many.crcs.size(); ++i)
        CHECK(many.crcs[i].value == alone.crcs[i].value);
    });
    CHECK(statuses == std::vector<int>(count - 1, 5));
    set_sharing({});
  }
}

TEST_CASE("ranks: a wrong checksum is found, whoever read its parts") {
  Random random(7);
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    Case c;
    make_case(random, c);
    if (c.source.crcs.empty()) continue;
    for (StoredCrc& crc : c.source.crcs) crc.crc32 ^= 1;
    const Written alone = write(c, "alone");
    test::with_ranks(4, 0, [&] {
      auto found = write(c, "many").result.wrong_crcs;
      auto wanted = alone.result.wrong_crcs;
      std::ranges::sort(found);
      std::ranges::sort(wanted);
      CHECK(found == wanted);
      const auto problems = ranks::check_crcs(c.source, {});
      REQUIRE(problems.size() == c.source.crcs.size());
    });
  }
}

TEST_CASE("ranks: what fails on one fails the job, with its own error") {
  Random random(3);
  Case c;
  make_case(random, c);
  uint32_t used = kNone;
  for (uint32_t f = 0; f < c.source.files.size(); ++f)
    if (c.source.files[f].size != 0) used = f;
  REQUIRE(used != kNone);
  std::filesystem::remove(c.source.files[used].path);
  const std::vector<int> statuses = test::with_ranks(5, 3, [&] {
    try {
      write(c, "many");
      CHECK(false);
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kMissing);
      CHECK(error.where().path == c.source.files[used].path);
    }
    // The job continues: a failed task is over.
    c.source.crcs.clear();
    CHECK(ranks::check_crcs(c.source, {}).empty());
  });
  CHECK(statuses == std::vector<int>(4, 3));
}

TEST_CASE("ranks: journals of many become one, each item once") {
  const test::TempDir dir;
  const std::string path = dir.file("journal");
  const auto outcome = [](uint32_t item) {
    reshard::Outcome made;
    made.item = item;
    made.source.emplace_back(0, Digest{item, item});
    return made;
  };
  const auto make = [&](const std::string& name,
                        const std::vector<uint32_t>& items) {
    auto journal = reshard::Journal::create(name, 42);
    for (const uint32_t item : items) journal.append(outcome(item));
  };
  make(path, {3, 1});
  make(path + ".1", {1, 7});
  make(path + ".12", {9});
  make(path + ".old", {11});
  CHECK(has_journals(path));
  collect_journals(path, 42);
  CHECK_FALSE(has_journals(path));
  const auto journal = reshard::Journal::open(path, 42);
  REQUIRE(journal.has_value());
  std::vector<uint32_t> items;
  for (const auto& done : journal->done()) {
    items.push_back(done.item);
    CHECK(done.source.at(0).second == Digest{done.item, done.item});
  }
  std::ranges::sort(items);
  CHECK(items == std::vector<uint32_t>{1, 3, 7, 9});
}

TEST_CASE("ranks: a staging directory is nobody else's while a rank lives") {
  const test::TempDir dir;
  const std::string target = dir.file("out");
  std::string root;
  auto first = std::make_unique<io::Staging>(target, io::StagingOptions{});
  root = first->root();
  CHECK_THROWS_AS(io::join_staging(root), Error);  // not shared
  first->share_lock();
  auto orphan = std::make_unique<io::Handle>(io::join_staging(root));
  first->keep();
  first.reset();
  CHECK_THROWS_WITH_AS(io::Staging(target, {}),
                       doctest::Contains("another process"), Error);
  orphan.reset();
  io::Staging(target, {});
}

TEST_CASE("ranks: a message that is cut short is refused") {
  Random random(5);
  Case c;
  make_case(random, c);
  const auto items = reshard::cut_items(c.plan, reshard::kItemBytes);
  const std::string bytes =
      pack(make_share(c.plan, c.source, &c.target, items));
  const Share share = unpack_share(bytes);
  CHECK(share.plan.jobs.size() == c.plan.jobs.size());
  CHECK(pack(share) == bytes);
  for (size_t size = 0; size < bytes.size(); size += 1 + bytes.size() / 97)
    CHECK_THROWS_AS(unpack_share(std::string_view(bytes).substr(0, size)),
                    Error);
}

TEST_CASE("ranks: who is silent is missed, if this process itself ran") {
  using std::chrono::seconds;
  const Pulse::Clock::time_point start{};
  Pulse pulse(3, start);
  pulse.heard(1, start);
  pulse.heard(2, start);
  std::vector<std::pair<int, uint32_t>> missed;
  // The second at which it checks, and the rank heard just before.
  struct Look {
    int second;
    std::optional<uint32_t> heard;
  };
  std::vector<Look> looks;
  for (int second = 1; second <= 10; ++second) looks.push_back({second, 2});
  looks.push_back({60, {}});  // all were suspended
  for (int second = 61; second <= 90; ++second)
    looks.push_back({second, second < 70 ? std::optional(2U) : std::nullopt});
  for (const Look& look : looks) {
    const auto now = start + seconds(look.second);
    if (look.heard) pulse.heard(*look.heard, now);
    while (const auto rank = pulse.silent(now)) {
      missed.emplace_back(look.second, *rank);
      pulse.forget(*rank);
    }
  }
  CHECK(missed == std::vector<std::pair<int, uint32_t>>{{76, 1}, {85, 2}});
  CHECK(pulse.is_due(start + seconds(2)));
  CHECK_FALSE(pulse.is_due(start + seconds(3)));
}

}  // namespace ckpt::ranks
