// SPDX-License-Identifier: Apache-2.0
#include "lib/net/window.h"

#include <doctest/doctest.h>

#include <algorithm>

using ckpt::net::Window;
using namespace std::chrono_literals;

namespace {

// A host and a wire, with as many requests in flight as the window allows: each
// of 4 MiB takes `least`, and all together no more than the wire's rate.
struct Model {
  double rate;  // of the wire, bytes per second
  std::chrono::milliseconds least;
  size_t too_many = 1000;  // more than these are refused
  Window::Clock::time_point now{1h};
  size_t largest = 0;
  size_t refused = 0;

  void run(Window& window, int rounds) {
    constexpr double kBytes = 4 << 20;
    for (int i = 0; i < rounds; ++i) {
      const size_t count = window.size();
      largest = std::max(largest, count);
      const auto began = now;
      for (size_t r = 1; r <= count; ++r) window.began(now, r);
      const auto wire = std::chrono::duration<double>(
          kBytes * static_cast<double>(count) / rate);
      now += std::max<Window::Clock::duration>(
          least, std::chrono::duration_cast<Window::Clock::duration>(wire));
      for (size_t r = 0; r < count; ++r) {
        if (r < too_many) {
          window.moved(static_cast<uint64_t>(kBytes));
          window.ended(now);
        } else {
          ++refused;
          window.refused(now, began);
        }
      }
    }
  }
};

}  // namespace

TEST_CASE("a window grows while that moves more bytes, and no further") {
  struct Row {
    double requests;  // that fill the wire
    size_t least, most;
  };
  // 50 ms per 4 MiB request: one fills 80 MiB/s.
  for (const Row& row : {Row{1, 1, 16}, Row{8, 8, 18}, Row{12, 11, 20},
                         Row{24, 22, 34}, Row{1000, 64, 64}}) {
    CAPTURE(row.requests);
    Window window(64, 8);
    Model model{.rate = row.requests * (4 << 20) / 0.05, .least = 50ms};
    model.run(window, 400);
    CHECK(window.size() >= row.least);
    CHECK(window.size() <= row.most);
  }
}

TEST_CASE("a window is never larger than it may be, nor empty") {
  for (const size_t most : {0, 1, 2, 7, 8, 9}) {
    Window window(most, 8);
    Model model{.rate = 1e12, .least = 30ms};
    model.run(window, 100);
    CHECK(model.largest == std::max<size_t>(1, most));
    for (int i = 0; i < 20; ++i) {
      model.now += 1s;
      window.refused(model.now, model.now);
    }
    CHECK(window.size() == 1);
  }
}

TEST_CASE("requests that were refused together halve a window once") {
  Window window(32, 8);
  Model model{.rate = 1e12, .least = 30ms};
  model.run(window, 50);
  REQUIRE(window.size() == 32);
  const auto began = model.now;
  for (int i = 0; i < 16; ++i) window.refused(model.now + 10ms, began);
  CHECK(window.size() == 16);
  window.refused(model.now + 20ms, model.now + 15ms);
  CHECK(window.size() == 8);
}

TEST_CASE("a host that refuses more than it can take is asked for less") {
  for (const size_t first : {8, 32}) {
    CAPTURE(first);
    Window window(64, first);
    Model model{.rate = 1e12, .least = 20ms, .too_many = 12};
    model.run(window, 1000);
    CHECK(window.size() <= 14);
    CHECK(window.size() >= 4);
    // It keeps probing for more, but rarely.
    CHECK(model.refused < 100);
  }
}

TEST_CASE("a window that is not used is not judged") {
  Window window(64, 8);
  Window::Clock::time_point now{1h};
  for (int i = 0; i < 1000; ++i) {
    window.began(now, 1);
    now += 10ms;
    window.moved(1000);
    window.ended(now);
  }
  CHECK(window.size() == 8);
}
