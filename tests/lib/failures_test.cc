// SPDX-License-Identifier: Apache-2.0
#include "lib/failures.h"

#include <doctest/doctest.h>

#include <cerrno>

#include "ckpt/error.h"

using namespace ckpt;

TEST_CASE("a caught I/O error is known to who asks for its source") {
  failures::forget();
  const uint64_t begin = failures::mark();
  try {
    throw io_error("/data/run/config.json", "cannot open", EIO);
  } catch (const Error&) {
  }
  REQUIRE(failures::since(begin, "/data/run"));
  CHECK(failures::since(begin, "/data/run")
            ->problem()
            .starts_with("cannot open: "));
  CHECK(failures::since(begin, "/data/run/"));
  CHECK(failures::since(begin, "/"));
  CHECK(failures::since(begin, "/data/run/config.json"));
  // Another directory, whose name begins the same.
  CHECK_FALSE(failures::since(begin, "/data/ru"));
  CHECK_FALSE(failures::since(begin, "/data/run/config"));
  CHECK_FALSE(failures::since(failures::mark(), "/data/run"));
  CHECK_FALSE(failures::any());
  failures::add_source("/data/run");
  CHECK(failures::any());
  failures::forget();
  CHECK_FALSE(failures::any());
}

TEST_CASE("a failure is known after any number of others") {
  failures::forget();
  for (int i = 0; i < 1000; ++i)
    static_cast<void>(io_error("/elsewhere/x", "cannot open", EIO));
  const uint64_t begin = failures::mark();
  static_cast<void>(io_error("/data/x", "cannot open", EIO));
  CHECK(failures::since(begin, "/data"));
  CHECK_FALSE(failures::since(failures::mark(), "/data"));
  failures::forget();
}

TEST_CASE("what is absent or unimportant is no failure") {
  failures::forget();
  failures::add_source("/data");
  static_cast<void>(io_error("/data/x", "cannot open", ENOENT));
  static_cast<void>(input_error({"/data/x", {}}, "is damaged"));
  {
    const failures::Unimportant suggestions;
    static_cast<void>(io_error("/data/lost+found", "cannot list", EACCES));
  }
  CHECK_FALSE(failures::any());
}

TEST_CASE("what a server failed with is a failure below its URL") {
  failures::forget();
  const uint64_t begin = failures::mark();
  failures::add_source("s3://bucket//run/");
  static_cast<void>(missing_error({"s3://bucket/run/x", {}}, "is absent"));
  static_cast<void>(io_error("s3://bucket/running", "cannot read", EIO));
  CHECK_FALSE(failures::any());
  CHECK_FALSE(failures::since(begin, "s3://bucket/run"));
  failures::note(unsafe_error({"s3://bucket/run/x", {}}, "is redirected"));
  REQUIRE(failures::any());
  CHECK(failures::any()->code() == ExitCode::kUnsafe);
  CHECK(failures::since(begin, "s3://bucket//run"));
  failures::forget();
}

TEST_CASE("what was read in another way is withdrawn") {
  failures::forget();
  failures::add_source("/data");
  const Error direct = io_error("/data/x", "cannot read byte 0", EINVAL);
  const Error other = io_error("/data/y", "cannot read byte 0", EINVAL);
  failures::withdraw(direct);
  REQUIRE(failures::any());
  CHECK(failures::any()->where().path == "/data/y");
  failures::withdraw(other);
  CHECK_FALSE(failures::any());
}
