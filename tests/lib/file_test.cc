// SPDX-License-Identifier: Apache-2.0
#include "lib/io/file.h"

#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "tests/support/temp_file.h"

namespace ckpt::io {

TEST_CASE("file: reads by position and says where it ends") {
  const test::TempFile temp("0123456789");
  const Handle file = Handle::open_read(temp.path);
  CHECK(file.size() == 10);
  CHECK(file.read_string(3, 4) == "3456");
  CHECK_THROWS_WITH_AS(file.read_string(8, 4),
                       doctest::Contains("file ends at byte 10, wanted bytes "
                                         "8-12"),
                       Error);
  CHECK_THROWS_AS(file.read_string(8, UINT64_MAX), Error);
}

TEST_CASE("file: gathers more parts than one call takes") {
  const test::TempDir dir;
  std::string expected;
  std::vector<std::string> pieces;
  for (int i = 0; i < 3000; ++i) pieces.push_back(std::to_string(i) + ",");
  std::vector<iovec> parts;
  for (std::string& piece : pieces) {
    parts.push_back({piece.data(), piece.size()});
    expected += piece;
  }
  const Handle file = Handle::create(dir.file("out"));
  file.allocate(expected.size() + 2);
  file.writev(2, parts);
  CHECK(read_file(dir.file("out"), 1 << 20).substr(2) == expected);
  CHECK_THROWS_AS(Handle::create(dir.file("out")), Error);
}

TEST_CASE("file: copies a range between files") {
  const test::TempFile from(std::string(3 << 20, 'x') + "end");
  const test::TempDir dir;
  const Handle in = Handle::open_read(from.path);
  const Handle out = Handle::create(dir.file("out"));
  copy_range(in, 5, out, 3, in.size() - 5);
  const std::string copied = read_file(dir.file("out"), 1 << 23);
  CHECK(copied.size() == in.size() - 2);
  CHECK(copied.ends_with("xend"));
}

TEST_CASE("paths: names, parents, joins") {
  CHECK(base_name("a/b/") == "b");
  CHECK(base_name("/") == "/");
  CHECK(parent("a/b/") == "a");
  CHECK(parent("b") == ".");
  CHECK(parent("/b") == "/");
  CHECK(join("a", "b") == "a/b");
  CHECK(join("a/", "b") == "a/b");
  CHECK(join("a", "/b") == "/b");
}

TEST_CASE("file: a missing one is kMissing, a directory is refused") {
  const test::TempDir dir;
  try {
    Handle::open_read(dir.file("none"));
    FAIL("opened");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kMissing);
  }
  CHECK_THROWS_WITH_AS(Handle::open_read(dir.path),
                       doctest::Contains("not a regular file"), Error);
}

}  // namespace ckpt::io
