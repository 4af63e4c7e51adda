// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/work.h"

#include <doctest/doctest.h>

#include <set>

namespace ckpt::reshard {
namespace {

// A plain copy of 10 bytes from one file to another.
void add_copy(Plan& plan, uint32_t source, uint32_t target) {
  const auto lane = static_cast<uint32_t>(plan.lanes.size());
  plan.jobs.push_back({.first_source = lane,
                       .sources = 1,
                       .first_target = lane + 1,
                       .targets = target == kNone ? 0u : 1u});
  plan.lanes.push_back({.width = 10, .file = source});
  plan.lanes.push_back({.width = 10, .file = target});
}

uint32_t target_of(const Plan& plan, const Item& item) {
  return plan.lanes[plan.jobs[item.index].first_target].file;
}

}  // namespace

TEST_CASE("work: each item is handed out once, whoever asks") {
  Plan plan;
  for (uint32_t i = 0; i < 300; ++i) add_copy(plan, i / 7, i % 5);
  for (const uint32_t threads : {1u, 2u, 7u, 64u}) {
    WorkQueue queue(plan, cut_items(plan, 4096), threads);
    std::set<uint32_t> seen;
    for (uint32_t turn = 0;; turn = turn * 5 + 3) {
      const auto item = queue.next(turn % threads);
      if (!item) break;
      CHECK(seen.insert(item->number).second);
    }
    CHECK(seen.size() == 300);
  }
}

TEST_CASE("work: two threads write to two files while there are two") {
  // Four source files, joined into two.
  Plan plan;
  for (uint32_t source = 0; source < 4; ++source)
    for (int i = 0; i < 5; ++i) add_copy(plan, source, source / 2);
  WorkQueue queue(plan, cut_items(plan, 4096), 2);
  for (int i = 0; i < 10; ++i) {
    const auto a = queue.next(0), b = queue.next(1);
    REQUIRE((a && b));
    CHECK(target_of(plan, *a) == 0);
    CHECK(target_of(plan, *b) == 1);
  }
  CHECK(!queue.next(0));
}

TEST_CASE("work: what peek says comes next") {
  Plan plan;
  for (uint32_t i = 0; i < 20; ++i) add_copy(plan, i / 10, kNone);
  WorkQueue queue(plan, cut_items(plan, 4096), 3);
  CHECK(queue.peek(1, 1).size() == 1);
  while (const auto item = queue.next(1)) {
    const auto next = queue.peek(1, 4);
    CHECK(next.size() == std::min<size_t>(4, 19 - item->number));
    for (size_t i = 0; i < next.size(); ++i)
      CHECK(next[i].number == item->number + 1 + i);
  }
  queue.stop();
  CHECK(!queue.next(2));
}

TEST_CASE("work: what has arrived goes first, what waits keeps its order") {
  Plan plan;
  for (uint32_t i = 0; i < 100; ++i) add_copy(plan, i / 50, kNone);
  WorkQueue queue(plan, cut_items(plan, 4096), 2);
  const auto odd = [](const Item& item) { return item.number % 2 == 1; };
  std::vector<uint32_t> order;
  for (int i = 0; i < 20; ++i) order.push_back(queue.next(0, odd)->number);
  for (uint32_t i = 0; i < 16; ++i) CHECK(order[i] == 2 * i + 1);
  // Of those in sight.
  CHECK(order[16] == 33);
  std::set<uint32_t> seen(order.begin(), order.end());
  CHECK(queue.next(0, [](const Item&) { return false; })->number == 0);
  CHECK(queue.next(0)->number == 2);
  seen.insert({0, 2});
  while (const auto item = queue.next(seen.size() % 2, odd))
    CHECK(seen.insert(item->number).second);
  CHECK(seen.size() == 100);
}

}  // namespace ckpt::reshard
