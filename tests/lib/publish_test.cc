// SPDX-License-Identifier: Apache-2.0
// The steps of publishing: locks, renames, removal, and a second look at what
// was read.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/lock.h"
#include "lib/io/remove.h"
#include "lib/io/rename.h"
#include "lib/session.h"
#include "tests/support/temp_file.h"

namespace ckpt::io {
namespace {

bool is_there(const std::string& path) {
  struct stat facts;
  return ::lstat(path.c_str(), &facts) == 0;
}

}  // namespace

TEST_CASE("lock: one at a time, and its file goes with it") {
  const test::TempDir dir;
  const std::string target = dir.file("out");
  {
    const TargetLock lock(target);
    CHECK(is_there(dir.file(".out.ckpt-lock")));
    CHECK_THROWS_WITH_AS(TargetLock{target},
                         doctest::Contains("another process"), Error);
    const TargetLock other(dir.file("out2"));
  }
  CHECK(list_directory(dir.path).empty());
  const TargetLock again(target);
}

TEST_CASE("lock: a link under its name is refused, not followed") {
  const test::TempDir dir;
  dir.write("precious", "mine");
  REQUIRE(::symlink("precious", dir.file(".out.ckpt-lock").c_str()) == 0);
  CHECK_THROWS_WITH_AS(TargetLock{dir.file("out")},
                       doctest::Contains("symbolic link"), Error);
  CHECK(read_file(dir.file("precious"), 10) == "mine");
}

TEST_CASE("rename: never over what is there") {
  const test::TempDir dir;
  dir.write("from/x", "x");
  dir.write("to/mine", "mine");
  dir.write("a", "a");
  dir.write("b", "b");
  CHECK_FALSE(
      rename_new(dir.file("from"), dir.file("to"), RenameNew::kOverEmpty));
  CHECK_FALSE(
      rename_new(dir.file("from"), dir.file("a"), RenameNew::kOverEmpty));
  CHECK_FALSE(rename_new(dir.file("a"), dir.file("b"), RenameNew::kNothing));
  CHECK(read_file(dir.file("b"), 10) == "b");
  ::mkdir(dir.file("empty").c_str(), 0777);
  CHECK(rename_new(dir.file("from"), dir.file("empty"), RenameNew::kOverEmpty));
  CHECK(read_file(dir.file("empty/x"), 10) == "x");
  CHECK(rename_new(dir.file("a"), dir.file("c"), RenameNew::kNothing));
}

TEST_CASE("rename: two directories trade places") {
  const test::TempDir dir;
  dir.write("from/x", "new");
  dir.write("to/x", "old");
  const std::string old = trade_places(dir.file("from"), dir.file("to"));
  CHECK(read_file(dir.file("to/x"), 10) == "new");
  CHECK(read_file(join(old, "x"), 10) == "old");
}

TEST_CASE("remove: links are removed, what they lead to stays") {
  const test::TempDir dir;
  dir.write("precious/mine", "mine");
  dir.write("tree/a/b/file", "x");
  dir.write("tree/keep/this", "x");
  REQUIRE(::symlink("../precious", dir.file("tree/link").c_str()) == 0);
  CHECK_FALSE(remove_others(dir.file("tree"), [](const std::string& path) {
    return path == "keep/this" || path == "keep/";
  }));
  CHECK(list_directory(dir.file("tree")) == std::vector<std::string>{"keep"});
  CHECK(is_file(dir.file("tree/keep/this")));
  REQUIRE(::symlink("precious", dir.file("link").c_str()) == 0);
  CHECK_FALSE(remove_tree(dir.file("link")));
  CHECK_FALSE(remove_tree(dir.file("tree")));
  CHECK_FALSE(remove_tree(dir.file("nothing")));
  CHECK(list_directory(dir.path) == std::vector<std::string>{"precious"});
  CHECK(read_file(dir.file("precious/mine"), 10) == "mine");
}

TEST_CASE("watch: what was read and is another one now is found") {
  const test::TempDir dir;
  dir.write("read", "1234");
  dir.write("added", "1234");
  dir.write("staging/own", "1");
  const Session::Own session;
  Watch& watch = Session::current()->watch;
  watch.begin();
  watch.ignore_below(dir.file("staging"));
  Handle::open_read(dir.file("read"));
  Handle::open_read(dir.file("staging/own"));
  watch.add({dir.file("added"), dir.file("read")});
  ::usleep(20'000);  // change times are as fine as the kernel's clock tick
  dir.write("staging/own", "12");
  CHECK_FALSE(watch.find_change().has_value());
  SUBCASE("of the same size") {
    dir.write("read", "1235");
    CHECK_THROWS_AS(Handle::open_read(dir.file("read")), Error);
  }
  SUBCASE("another size") { dir.write("added", "12345"); }
  SUBCASE("gone") { ::unlink(dir.file("added").c_str()); }
  const auto change = watch.find_change();
  REQUIRE(change.has_value());
  CHECK(change->code() == ExitCode::kIo);
  watch.end();
  CHECK_FALSE(watch.find_change().has_value());
}

}  // namespace ckpt::io
