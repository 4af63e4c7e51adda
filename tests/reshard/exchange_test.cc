// SPDX-License-Identifier: Apache-2.0
// Payload between ranks: messages, and what happens when they stop.
#include <doctest/doctest.h>

#include <array>
#include <filesystem>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "reshard/plan/plan.h"
#include "reshard/ranks/chunk.h"
#include "reshard/ranks/run.h"
#include "reshard/run/journal.h"
#include "tests/support/columns.h"
#include "tests/support/thread_link.h"

namespace ckpt::ranks {
namespace {

using test::Columns;
using test::kWork;
using test::SendMode;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

TEST_CASE("exchange: pieces that follow each other travel as one") {
  std::array<std::byte, 256> memory;
  Chunk chunk(memory);
  const auto add = [&](uint32_t file, uint64_t offset, std::string_view text) {
    while (!text.empty()) {
      const auto room = chunk.add(file, offset, text.size());
      if (room.empty()) return text.size();
      std::ranges::copy(bytes_of(text.substr(0, room.size())), room.begin());
      text.remove_prefix(room.size());
      offset += room.size();
    }
    return size_t{0};
  };
  CHECK(add(3, 100, "abc") == 0);
  CHECK(add(3, 103, "def") == 0);
  CHECK(add(3, 107, "g") == 0);
  CHECK(add(4, 108, "h") == 0);
  CHECK(add(4, 109, std::string(400, 'x')) == 400 - (256 - 3 * 24 - 8));
  CHECK(chunk.payload() == 256 - 3 * 24);
  std::vector<std::string> seen;
  for_each_piece(chunk.bytes(), [&](uint32_t file, uint64_t offset, auto part) {
    seen.push_back(
        fmt::format("{}@{} {}", file, offset,
                    std::string(reinterpret_cast<const char*>(part.data()),
                                std::min<size_t>(part.size(), 6))));
  });
  CHECK(seen ==
        std::vector<std::string>{"3@100 abcdef", "3@107 g", "4@108 hxxxxx"});
  const auto ignore = [](uint32_t, uint64_t, auto) {};
  for (size_t size = 1; size < chunk.bytes().size(); ++size) {
    const bool at_piece = size == 24 + 6 || size == 2 * 24 + 7;
    if (at_piece)
      CHECK_NOTHROW(for_each_piece(chunk.bytes().first(size), ignore));
    else
      CHECK_THROWS_AS(for_each_piece(chunk.bytes().first(size), ignore), Error);
  }
}

TEST_CASE("exchange: buffers are a part of the memory, or refused") {
  constexpr uint64_t kMiB = 1 << 20;
  CHECK(exchange_buffer(0, 1024 * kMiB) == 4 * kMiB);
  CHECK(exchange_buffer(0, 16 * kMiB) * kExchangeSlots <= 8 * kMiB);
  CHECK(exchange_buffer(kMiB, 24 * kMiB) == kMiB);
  CHECK_THROWS_WITH_AS(exchange_buffer(kMiB, 23 * kMiB),
                       doctest::Contains("more than half of --max-mem"), Error);
  CHECK_THROWS_WITH_AS(exchange_buffer(1000, 1024 * kMiB),
                       doctest::Contains("at least 65536"), Error);
}

TEST_CASE("exchange: every rank sends to every other, in small buffers") {
  const Columns c(40);
  const std::string alone = c.make_root("alone");
  c.write(alone);
  const SendMode send;
  for (const uint32_t ranks : {1U, 2U, 3U, 8U, 20U, 60U}) {
    CAPTURE(ranks);
    const std::string root = c.make_root("many" + std::to_string(ranks));
    test::with_ranks(ranks, 0, [&] {
      c.write(root);
      uint64_t sent = 0, received = 0, written = 0, read = 0;
      for (const Account& account : current()->accounts()) {
        sent += account.bytes_sent;
        received += account.bytes_received;
        written += account.bytes_written;
        read += account.bytes_read;
      }
      CHECK(sent == received);
      CHECK((sent != 0) == (ranks > 1));
      CHECK(read == c.plan.bytes_read);
      CHECK(written == c.plan.bytes_read);
    });
    CHECK(c.read(root) == c.read(alone));
  }
}

TEST_CASE("exchange: who can't write for others fails the job, which goes on") {
  const Columns c(6);
  const SendMode send;
  for (const uint32_t victim : {0U, 2U, 5U}) {
    CAPTURE(victim);
    const std::string root = c.make_root("many" + std::to_string(victim));
    const std::string file = io::join(root, c.target.files[victim].path);
    std::filesystem::remove(file);
    const auto statuses = test::with_ranks(6, 3, [&] {
      try {
        c.write(root);
        FAIL("it was written");
      } catch (const Error& error) {
        CHECK(error.code() == ExitCode::kMissing);
        CHECK(error.where().path == file);
      }
      // The first exchange leaves nothing for the next.
      io::Handle::create(file).allocate(c.target.files[victim].size);
      c.write(root);
    });
    CHECK(statuses == std::vector<int>(5, 3));
    const std::string alone = c.make_root("alone" + std::to_string(victim));
    c.write(alone);
    CHECK(c.read(root) == c.read(alone));
  }
}

// What is on another machine is flushed before a journal here lists it; with
// --no-fsync nothing is.
TEST_CASE("exchange: a journal has what is safe from other machines") {
  const Columns c(4, 1 << 15, 1024);  // 128 MiB: items of 16 MiB
  const SendMode send(uint64_t{1} << 20);
  struct Row {
    bool two_machines, sync, kept;
  };
  for (const Row& row : {Row{false, false, true}, Row{true, true, true},
                         Row{true, false, false}}) {
    CAPTURE(row.two_machines);
    CAPTURE(row.sync);
    const std::string root =
        c.make_root(fmt::format("{}{}", row.two_machines, row.sync));
    test::with_ranks(
        4, 0, [&] { c.write(root, row.sync); }, row.two_machines);
    for (uint32_t rank = 1; rank < 4; ++rank) {
      const auto journal = reshard::Journal::open(
          fmt::format("{}/journal.{}", root, rank), kWork);
      REQUIRE(journal.has_value());
      CHECK((journal->done().size() > 0) == row.kept);
    }
  }
}

}  // namespace ckpt::ranks
