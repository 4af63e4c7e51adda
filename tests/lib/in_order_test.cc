// SPDX-License-Identifier: Apache-2.0
#include "lib/in_order.h"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ckpt {
namespace {

// What is taken until something throws, and its message.
struct Taken {
  std::vector<size_t> numbers;
  std::string error;
};

template <class Make>
Taken run(size_t count, Make make, size_t stop = SIZE_MAX) {
  Taken taken;
  try {
    in_order<std::unique_ptr<size_t>>(
        count,
        [&](size_t i) {
          make(i);
          return std::make_unique<size_t>(i);
        },
        [&](size_t i, std::unique_ptr<size_t> made) {
          CHECK(*made == i);
          if (i == stop) throw std::runtime_error("taken enough");
          taken.numbers.push_back(i);
        });
  } catch (const std::runtime_error& error) {
    taken.error = error.what();
  }
  return taken;
}

TEST_CASE("in_order: everything once, in order") {
  for (const size_t count : {0, 1, 15, 16, 17, 100, 5000}) {
    std::atomic<size_t> made = 0;
    const Taken taken = run(count, [&](size_t) { ++made; });
    CHECK(made == count);
    REQUIRE(taken.numbers.size() == count);
    for (size_t i = 0; i < count; ++i) CHECK(taken.numbers[i] == i);
  }
}

TEST_CASE("in_order: the first error in order, whatever is made first") {
  for (int round = 0; round < 20; ++round) {
    const Taken taken = run(3000, [](size_t i) {
      if (i % 1000 == 777) throw std::runtime_error(std::to_string(i));
    });
    CHECK(taken.error == "777");
    CHECK(taken.numbers.size() == 777);
  }
}

TEST_CASE("in_order: an error of the taker ends it, and not much is made") {
  std::atomic<size_t> made = 0;
  const Taken taken = run(
      100'000, [&](size_t) { ++made; }, 10);
  CHECK(taken.error == "taken enough");
  CHECK(taken.numbers.size() == 10);
  CHECK(made < 2000);  // a window ahead
}

}  // namespace
}  // namespace ckpt
