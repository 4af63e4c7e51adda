// SPDX-License-Identifier: Apache-2.0
#include "lib/io/staging.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "ckpt/error.h"
#include "tests/support/temp_file.h"

namespace ckpt::io {
namespace {

void put(const Staging& staging, const std::string& file,
         std::string_view text) {
  Handle::open_write(join(staging.root(), file)).write(0, text);
}

ExitCode code_of(const std::string& target, const StagingOptions& options) {
  try {
    Staging staging(target, options);
    return ExitCode::kDone;
  } catch (const Error& error) {
    CHECK(!error.problem().empty());
    return error.code();
  }
}

}  // namespace

TEST_CASE("staging: a directory appears whole, and nothing is left beside it") {
  const test::TempDir dir;
  {
    Staging staging(dir.file("out/"), {});
    staging.create("a/b/x", 3);
    staging.create("a/y", 0);
    put(staging, "a/b/x", "abc");
    CHECK(!is_directory(dir.file("out")));
    staging.publish();
  }
  CHECK(read_file(dir.file("out/a/b/x"), 10) == "abc");
  CHECK(list_directory(dir.path) == std::vector<std::string>{"out"});
  CHECK(list_directory(dir.file("out")) == std::vector<std::string>{"a"});
}

TEST_CASE("staging: what is not published vanishes") {
  const test::TempDir dir;
  {
    Staging staging(dir.file("out"), {});
    staging.create("x", 3);
  }
  CHECK(list_directory(dir.path).empty());
}

TEST_CASE("staging: a single file and what stands beside it") {
  const test::TempDir dir;
  {
    Staging staging(dir.file("m.pt"), {.single_file = true});
    staging.create("m.pt", 2);
    staging.create("m.pt.note", 1);
    put(staging, "m.pt", "hi");
    staging.publish();
  }
  CHECK(read_file(dir.file("m.pt"), 10) == "hi");
  CHECK(list_directory(dir.path) ==
        std::vector<std::string>{"m.pt", "m.pt.note"});
}

// Whatever the length, it is written whole, twice, or refused before a byte is.
TEST_CASE("staging: a name that leaves no room for those beside it") {
  const StagingOptions folder{.overwrite = true};
  const StagingOptions file{.single_file = true,
                            .overwrite = true,
                            .companions = {".ckpt-manifest.json"}};
  size_t longest = 0;
  for (const StagingOptions& options : {folder, file})
    for (size_t size = 230; size <= 258; ++size) {
      const test::TempDir dir;
      const std::string name(size, 'n');
      CAPTURE(size);
      const auto write = [&] {
        Staging staging(dir.file(name), options);
        if (options.single_file) {
          staging.create(name, 1);
          staging.create(name + options.companions[0], 1);
        } else {
          staging.create("x", 1);
        }
        staging.publish();
      };
      if (code_of(dir.file(name), options) == ExitCode::kUsage) {
        CHECK_THROWS_AS(Staging::check(dir.file(name), options), Error);
        CHECK(list_directory(dir.path).empty());
        continue;
      }
      longest = size;
      write();
      write();
      CHECK(list_directory(dir.path).size() == options.companions.size() + 1);
    }
  CHECK(longest >= 236);
}

TEST_CASE("staging: an existing target is replaced only if asked, at the end") {
  const test::TempDir dir;
  dir.write("out/old", "old");
  dir.write("file.pt", "old");
  CHECK(code_of(dir.file("out"), {}) == ExitCode::kUnfaithful);
  CHECK(code_of(dir.file("file.pt"), {.single_file = true}) ==
        ExitCode::kUnfaithful);
  CHECK(code_of(dir.file("file.pt"), {}) == ExitCode::kUsage);
  CHECK(code_of(dir.file("out"), {.single_file = true}) == ExitCode::kUsage);
  {
    Staging staging(dir.file("out"), {.overwrite = true});
    staging.create("new", 3);
    put(staging, "new", "new");
    CHECK(read_file(dir.file("out/old"), 10) == "old");
    staging.publish();
  }
  CHECK(list_directory(dir.file("out")) == std::vector<std::string>{"new"});
  CHECK(list_directory(dir.path) == std::vector<std::string>{"file.pt", "out"});
}

TEST_CASE("staging: an empty directory may be the target") {
  const test::TempDir dir;
  mkdir(dir.file("out").c_str(), 0777);
  {
    Staging staging(dir.file("out"), {});
    staging.create("x", 0);
    staging.publish();
  }
  CHECK(is_file(dir.file("out/x")));
}

TEST_CASE("staging: one writer at a time; a dead one's leavings go") {
  const test::TempDir dir;
  dir.write(".out.ckpt-staging/rest", "of a killed run");
  {
    Staging first(dir.file("out"), {});
    CHECK(!is_file(dir.file(".out.ckpt-staging/rest")));
    CHECK(code_of(dir.file("out"), {}) == ExitCode::kIo);
  }
  CHECK(code_of(dir.file("out"), {}) == ExitCode::kDone);
  CHECK(code_of(dir.file("none/out"), {}) == ExitCode::kMissing);
}

// Files that are open keep their inodes' numbers from being used again.
struct Old {
  explicit Old(const std::string& path) : file(Handle::open_read(path)) {
    REQUIRE(::fstat(file.fd(), &facts) == 0);
  }
  bool is(const std::string& path) const {
    struct stat now = {};
    REQUIRE(::lstat(path.c_str(), &now) == 0);
    return now.st_ino == facts.st_ino;
  }
  Handle file;
  struct stat facts = {};
};

TEST_CASE("staging: what a failed flush left is copied to new inodes") {
  const test::TempDir dir;
  const std::string root = dir.file(".out.ckpt-staging");
  const auto create = [](Staging& staging) {
    staging.create("a/kept", 4, true);
    staging.create("a/cut", 4, true);
    staging.create("a/side", 4);
  };
  {
    Staging staging(dir.file("out"), {});
    create(staging);
    put(staging, "a/kept", "kept");
    put(staging, "a/cut", "gone");
    put(staging, "a/side", "side");
    staging.keep();
  }
  REQUIRE(::truncate((root + "/a/cut").c_str(), 3) == 0);
  struct stat folder = {};
  REQUIRE(::stat(root.c_str(), &folder) == 0);
  const Old kept(root + "/a/kept"), cut(root + "/a/cut"),
      side(root + "/a/side");
  Staging staging(dir.file("out"), {.resume = true});
  create(staging);
  CHECK(kept.is(root + "/a/kept"));
  CHECK_FALSE(side.is(root + "/a/side"));
  CHECK(read_file(root + "/a/side", 9) == std::string(4, '\0'));
  SUBCASE("after a failed flush") {
    staging.renew([&] { create(staging); });
    CHECK_FALSE(kept.is(root + "/a/kept"));
    CHECK_FALSE(cut.is(root + "/a/cut"));
    struct stat now = {};
    REQUIRE(::stat(root.c_str(), &now) == 0);
    CHECK(now.st_ino != folder.st_ino);
  }
  CHECK(read_file(root + "/a/kept", 9) == "kept");
  CHECK(read_file(root + "/a/cut", 9) == std::string(4, '\0'));
  staging.publish();
  CHECK(read_file(dir.file("out/a/kept"), 9) == "kept");
  CHECK_FALSE(is_directory(root));
  CHECK_FALSE(is_directory(root + ".bad"));
}

TEST_CASE("staging: a run that was killed as it copied goes on with the rest") {
  const test::TempDir dir;
  dir.write(".out.ckpt-staging.bad/a/kept", "kept");
  dir.write(".out.ckpt-staging/a/kept", "ke");
  const std::string root = dir.file(".out.ckpt-staging");
  SUBCASE("with its journal") {
    dir.write(".out.ckpt-staging.bad/journal", "");
    Staging staging(dir.file("out"), {.resume = true});
    CHECK(read_file(root + "/a/kept", 9) == "kept");
    CHECK_FALSE(is_directory(root + ".bad"));
  }
  SUBCASE("or without it") {
    Staging staging(dir.file("out"), {.resume = true});
    CHECK_FALSE(is_directory(root + ".bad"));
  }
  CHECK(list_directory(dir.path).empty());
}

TEST_CASE("staging: too little space is said before anything is written") {
  const test::TempDir dir;
  const Staging staging(dir.file("out"), {});
  CHECK_THROWS_WITH_AS(staging.check_space(uint64_t{1} << 60),
                       doctest::Contains("the target needs"), Error);
}

}  // namespace ckpt::io
