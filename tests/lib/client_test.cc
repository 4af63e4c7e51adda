// SPDX-License-Identifier: Apache-2.0
// The threads that run all requests, called from many threads at once. These
// also run under the thread sanitizer.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/error.h"
#include "lib/net/curl.h"
#include "lib/net/http.h"
#include "tests/support/fault_server.h"
#include "tests/support/temp_file.h"

namespace ckpt::net {
namespace {

using test::FaultServer;

// Set before the settings are read; nothing here goes to a proxy.
const bool environment_set = [] {
  ::setenv("CKPT_NET_BACKOFF_MS", "2", 1);
  ::setenv("no_proxy", "*", 1);
  return true;
}();

constexpr uint64_t kFile = 8 << 20;

// What one request asks for, and where it has to go.
struct Wish {
  uint64_t seed, begin, size;
  std::vector<std::byte> memory;
  std::shared_ptr<const io::Handle> file;  // else into memory

  Request request(const FaultServer& server) {
    Request made;
    made.path = made.url = server.url(seed, kFile);
    made.begin = begin;
    made.version.etag = '"' + std::to_string(seed) + '"';
    made.version.size = kFile;
    memory.assign(size, std::byte{});
    if (file) {
      made.onto = file;
      made.onto_bytes = size;
    } else {
      made.into = memory;
    }
    return made;
  }

  // How many bytes are wrong.
  size_t wrong() {
    if (file) file->read(0, memory);
    size_t count = 0;
    for (size_t i = 0; i < size; ++i)
      count += memory[i] != FaultServer::byte_of(seed, begin + i);
    return count;
  }
};

// Small ones belong to the first thread, large ones to any.
Wish random_wish(std::minstd_rand& random, const std::string& path) {
  const bool large = random() % 8 == 0;
  Wish wish{.seed = random(),
            .begin = random() % (kFile / 2),
            .size = large ? (1 << 20) + random() % 5000 : 1 + random() % 3000,
            .memory = {},
            .file = {}};
  if (large && random() % 2 == 0)
    wish.file = std::make_shared<const io::Handle>(io::Handle::create(path));
  return wish;
}

struct Sums {
  size_t wrong = 0, failed = 0, ended = 0, slow = 0;
};

// One thread's requests, some at once; every ninth is abandoned at some point.
Sums ask_for_many(const FaultServer& server, uint64_t seed, size_t rounds,
                  const test::TempDir& dir) {
  using Clock = std::chrono::steady_clock;
  std::minstd_rand random(static_cast<unsigned>(seed));
  Sums sums;
  for (size_t round = 0; round < rounds; ++round) {
    std::vector<std::pair<Wish, Ticket>> all;
    const auto began = Clock::now();
    for (size_t i = 0; i < 4; ++i) {
      const std::string name = fmt::format("{}_{}_{}", seed, round, i);
      auto& [wish, ticket] =
          all.emplace_back(random_wish(random, dir.file(name)), nullptr);
      ticket = start(wish.request(server));
    }
    for (auto& [wish, ticket] : all) try {
        if (random() % 9 == 0) {
          cancel(ticket);
          continue;
        }
        sums.failed += wait(ticket).got != wish.size;
        sums.wrong += wish.wrong();
        ++sums.ended;
      } catch (const Error& error) {
        MESSAGE(error.problem());
        ++sums.failed;
      }
    sums.slow += Clock::now() - began > std::chrono::milliseconds(900);
  }
  return sums;
}

Sums ask_from_threads(const FaultServer& server, size_t threads,
                      size_t rounds) {
  const test::TempDir dir;
  std::vector<Sums> sums(threads);
  {
    std::vector<std::jthread> all;
    for (size_t i = 0; i < threads; ++i)
      all.emplace_back(
          [&, i] { sums[i] = ask_for_many(server, i + 1, rounds, dir); });
  }
  Sums sum;
  for (const Sums& one : sums) {
    sum.wrong += one.wrong;
    sum.failed += one.failed;
    sum.ended += one.ended;
    sum.slow += one.slow;
  }
  return sum;
}

// libcurl of the processor that a test runs on, which may be an emulated one.
bool has_curl() {
  try {
    curl();
    return true;
  } catch (const Error& error) {
    MESSAGE("skipped: " << error.what());
    return false;
  }
}

}  // namespace

// A lost wake-up costs a second, the longest that a loop waits. So does a busy
// machine, now and then: of several times, one is without.
TEST_CASE("client: many threads, and nothing waits for a wake-up") {
  if (!has_curl()) return;
  const FaultServer server;
  bool quick = false;
  for (int times = 0; times < 10 && !quick; ++times) {
    const Sums sums = ask_from_threads(server, 6, 12);
    CHECK(sums.wrong == 0);
    CHECK(sums.failed == 0);
    CHECK(sums.ended > 6 * 12 * 3);
    quick = sums.slow < 6 * 12 / 4;
  }
  CHECK(quick);
}

TEST_CASE("client: each fault, from many threads, never brings a wrong byte") {
  if (!has_curl()) return;
  const FaultServer server(13);
  const Sums sums = ask_from_threads(server, 6, 16);
  CHECK(sums.wrong == 0);
  CHECK(sums.failed == 0);
  CHECK(sums.ended > 6 * 16 * 3);
}

// The memory that a request fills may be freed once cancel() has returned.
TEST_CASE("client: what was cancelled writes no more") {
  if (!has_curl()) return;
  const FaultServer server(5);
  for (int i = 0; i < 10; ++i) {
    Wish wish{.seed = 1, .begin = 0, .size = 2 << 20, .memory = {}, .file = {}};
    const Ticket ticket = start(wish.request(server));
    for (int look = 0; look < 100 * i && !is_done(ticket); ++look)
      std::this_thread::yield();
    cancel(ticket);
    CHECK(is_done(ticket));
    wish.memory.assign(wish.size, std::byte{7});
    CHECK(std::ranges::count(wish.memory, std::byte{7}) == 2 << 20);
  }
}

}  // namespace ckpt::net
