// SPDX-License-Identifier: Apache-2.0
#include "lib/session.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "lib/in_order.h"
#include "lib/io/file.h"
#include "lib/io/writeback.h"
#include "lib/parallel.h"
#include "lib/tensor_part.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

using Sessions = std::vector<std::shared_ptr<Session>>;

bool all_are(const Sessions& seen, const std::shared_ptr<Session>& session) {
  return std::ranges::all_of(seen,
                             [&](const auto& one) { return one == session; });
}

}  // namespace

TEST_CASE("session: nested ones give way to the outer one again") {
  CHECK_FALSE(Session::current());
  {
    const Session::Own outer;
    const auto first = Session::current();
    {
      const Session::Joined same;
      CHECK(Session::current() == first);
      const Session::Own inner;
      CHECK(Session::current() != first);
    }
    CHECK(Session::current() == first);
    std::function<bool()> told = [] { return !Session::current(); };
    CHECK_FALSE(told());
    CHECK(outside(told)());
    CHECK(Session::current() == first);
    CHECK_FALSE(outside(std::function<void()>()));
    CHECK_THROWS(outside(std::function<void()>([] { throw 1; }))());
    CHECK(Session::current() == first);
  }
  CHECK_FALSE(Session::current());
  const Session::Joined own;
  CHECK(Session::current());
}

TEST_CASE("session: threads have that of the work they do") {
  constexpr size_t kCount = 100;
  const auto works = [] {
    const Session::Own own;
    const auto session = Session::current();
    Sessions seen(kCount);
    parallel_for(
        kCount, [&](size_t i) { seen[i] = Session::current(); }, 8);
    bool good = all_are(seen, session);
    in_order<std::shared_ptr<Session>>(
        kCount, [](size_t) { return Session::current(); },
        [&](size_t i, std::shared_ptr<Session> made) { seen[i] = made; });
    good &= all_are(seen, session);
    auto other = std::async(std::launch::async,
                            in_session([] { return Session::current(); }));
    return good && other.get() == session && Session::current() == session;
  };
  std::vector<std::future<bool>> many;
  for (int i = 0; i < 4; ++i)
    many.push_back(std::async(std::launch::async, works));
  for (std::future<bool>& one : many) CHECK(one.get());
}

TEST_CASE("session: each watches its own files") {
  const test::TempDir dir;
  const std::string file = dir.write("file", "1234");
  const Session::Own outer;
  const auto watching = Session::current();
  watching->watch.begin();
  const auto rewrite = [&](const std::string& text) {
    dir.write("file", text);
  };
  SUBCASE("what others read is not this one's") {
    outside(std::function<void()>([&] { io::Handle::open_read(file); }))();
    {
      const Session::Own inner;
      Session::current()->watch.begin();
      io::Handle::open_read(file);
      rewrite("12345");
      CHECK(Session::current()->watch.find_change().has_value());
    }
    CHECK_FALSE(watching->watch.find_change().has_value());
  }
  SUBCASE("what it read is, whatever others end") {
    io::Handle::open_read(file);
    {
      const Session::Own inner;
      Session::current()->watch.begin();
      rewrite("12345");
      io::Handle::open_read(file);
      CHECK_FALSE(Session::current()->watch.find_change().has_value());
      Session::current()->watch.end();
    }
    CHECK(watching->watch.find_change().has_value());
  }
}

TEST_CASE("session: a write that another one lost is not this one's") {
  const Session::Own outer;
  const auto loser = Session::current();
  std::async(std::launch::async, [&] {
    const Session::Own inner;
    io::note_lost_write(loser, 5);
    CHECK_NOTHROW(io::throw_lost_writes());
  }).get();
  CHECK(loser->flush_failed);
  CHECK_THROWS_WITH_AS(io::throw_lost_writes(),
                       doctest::Contains("what was written is lost"), Error);
  CHECK_NOTHROW(io::throw_lost_writes());
}

TEST_CASE("session: a part of the tensors is read by one of them") {
  CHECK_THROWS_AS(TensorPart(TensorPart::By::kLayer, 0, 2), Error);
  const Session::Own outer;
  const TensorPart part(TensorPart::By::kLayer, 0, 2);
  CHECK_FALSE(TensorPart::wanted("layers.1.w"));
  {
    const Session::Own inner;
    CHECK(TensorPart::wanted("layers.1.w"));
  }
  std::atomic<size_t> wanted = 0;
  parallel_for(10, [&](size_t i) {
    wanted += TensorPart::wanted("layers." + std::to_string(i) + ".w");
  });
  CHECK(wanted == 5);
}

}  // namespace ckpt
