// SPDX-License-Identifier: Apache-2.0
// Many opens and runs in one process: each is held to its own files, and to no
// other one's.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <latch>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/ckpt.h"
#include "tests/support/temp_file.h"
#include "tests/support/tensor_data.h"

namespace ckpt {
namespace {

constexpr size_t kBytes = size_t{4} << 20;

// A .safetensors file with one tensor, all of whose bytes are `value`.
std::string write_source(const test::TempDir& dir, std::string_view name,
                         char value) {
  std::string header = fmt::format(
      R"({{"w":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}})",
      kBytes);
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string size(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    size[i] = static_cast<char>(header.size() >> 8 * i);
  return dir.write(name, size + header + std::string(kBytes, value));
}

// Overwrites the last bytes where they are: the size stays.
void change(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1000, std::ios::end);
  file << std::string(1000, '!');
}

// Another file of that size under the name.
void replace(const std::string& path) {
  std::filesystem::copy_file(path, path + ".new");
  change(path + ".new");
  std::filesystem::rename(path + ".new", path);
}

const Layout kOneFile{.format = "safetensors", .single_file = true};

// A run of one thread that calls `act` once, when it has read something.
void run_and(const std::string& from, const std::string& to,
             const std::function<void()>& act) {
  std::once_flag once;
  run(open(from).catalog(), kOneFile, to,
      {.threads = 1, .sync = false, .progress = [&](uint64_t, uint64_t) {
         std::call_once(once, act);
       }});
}

void check_refused(const std::function<void()>& work,
                   const std::string& target) {
  CHECK_THROWS_WITH_AS(
      work(), doctest::Contains("the source changed during the run"), Error);
  CHECK_FALSE(std::filesystem::exists(target));
}

void check_whole(const std::string& path, char value) {
  const TensorData data = open(path).read("w");
  CHECK(test::values(data) == std::vector<uint8_t>(kBytes, value));
}

}  // namespace

TEST_CASE("sessions: a run inside another leaves it its guard") {
  const test::TempDir dir;
  const std::string outer = write_source(dir, "outer.safetensors", 'a');
  const std::string inner = write_source(dir, "inner.safetensors", 'b');
  const std::string to = dir.file("to.safetensors");
  const auto nested = [&] {
    run_and(inner, dir.file("inner_to.safetensors"), [] {});
    check_whole(dir.file("inner_to.safetensors"), 'b');
  };
  SUBCASE("written to, after the inner run") {
    check_refused(
        [&] {
          run_and(outer, to, [&] {
            nested();
            change(outer);
          });
        },
        to);
  }
  SUBCASE("written to, before it") {
    check_refused(
        [&] {
          run_and(outer, to, [&] {
            change(outer);
            nested();
          });
        },
        to);
  }
  SUBCASE("replaced") {
    check_refused(
        [&] {
          run_and(outer, to, [&] {
            nested();
            replace(outer);
          });
        },
        to);
  }
  SUBCASE("the inner run fails for its own source") {
    run_and(outer, to, [&] {
      const std::string to_inner = dir.file("failed.safetensors");
      check_refused([&] { run_and(inner, to_inner, [&] { change(inner); }); },
                    to_inner);
    });
    check_whole(to, 'a');
  }
}

TEST_CASE("sessions: a file that the process merely opened is not the run's") {
  const test::TempDir dir;
  const std::string source = write_source(dir, "source.safetensors", 'a');
  const std::string other = write_source(dir, "other.safetensors", 'b');
  run_and(source, dir.file("to.safetensors"), [&] {
    open(other).read("w");
    replace(other);
    CHECK(open(other).catalog().tensors.size() == 1);
  });
  check_whole(dir.file("to.safetensors"), 'a');
}

// Runs, and says why it failed; "" if it did not. `act` is called in any case.
std::string outcome_of(const std::string& from, const std::string& to,
                       const std::function<void()>& act) {
  bool acted = false;
  std::string why;
  try {
    run_and(from, to, [&] {
      acted = true;
      act();
    });
  } catch (const Error& error) {
    why = error.what();
  }
  if (!acted) act();
  return why;
}

// Sound runs end after the sources of the others changed, and those end after
// them.
TEST_CASE("sessions: runs in many threads, of which some sources change") {
  constexpr ptrdiff_t kPairs = 4;
  const test::TempDir dir;
  std::vector<std::future<std::string>> bad, good;
  std::latch changed(kPairs), ended(kPairs);
  const auto name = [&](std::string_view kind, ptrdiff_t i) {
    return dir.file(fmt::format("{}{}.safetensors", kind, i));
  };
  for (ptrdiff_t i = 0; i < kPairs; ++i) {
    write_source(dir, fmt::format("bad{}.safetensors", i), 'x');
    write_source(dir, fmt::format("good{}.safetensors", i), 'y');
    bad.push_back(std::async(std::launch::async, [&, i] {
      return outcome_of(name("bad", i), name("to_bad", i), [&, i] {
        change(name("bad", i));
        changed.count_down();
        ended.wait();
      });
    }));
    good.push_back(std::async(std::launch::async, [&, i] {
      const std::string why = outcome_of(name("good", i), name("to_good", i),
                                         [&] { changed.wait(); });
      ended.count_down();
      return why;
    }));
  }
  for (ptrdiff_t i = 0; i < kPairs; ++i) {
    CHECK(good.at(static_cast<size_t>(i)).get() == "");
    check_whole(name("to_good", i), 'y');
    CHECK(bad.at(static_cast<size_t>(i))
              .get()
              .find("the source changed during the run") != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(name("to_bad", i)));
  }
}

}  // namespace ckpt
