// SPDX-License-Identifier: Apache-2.0
#include "lib/module.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "ckpt/error.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

// Sets CKPT_MODULE_PATH while it lives.
struct ModulePath {
  explicit ModulePath(const std::string& value) {
    if (const char* now = std::getenv("CKPT_MODULE_PATH")) before_ = now;
    setenv("CKPT_MODULE_PATH", value.c_str(), 1);
  }
  ~ModulePath() { setenv("CKPT_MODULE_PATH", before_.c_str(), 1); }
  std::string before_;
};

}  // namespace

TEST_CASE("module: looked for in CKPT_MODULE_PATH, then beside the program") {
  const std::string own =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const ModulePath path(":/a::/b/c:");
  const auto found = module_directories();
  REQUIRE(found.size() >= 4);
  CHECK(found[0] == "/a");
  CHECK(found[1] == "/b/c");
  CHECK(found[2] == own);
  CHECK(std::filesystem::path(found[3]).filename() == "lib");
}

TEST_CASE("module: one that is not a shared library") {
  const test::TempDir dir;
  const std::string file = dir.write("libckpt_torch.so", "nothing");
  const ModulePath path(dir.path);
  CHECK(find_module("torch") == file);
  try {
    Module::open("torch");
    FAIL("opened");
  } catch (const Error& error) {
    const std::string what = error.what();
    CAPTURE(what);
    CHECK(error.code() == ExitCode::kResource);
    CHECK(what.find("can't be opened: ") != what.npos);
    CHECK(error.where().path == file);
    CHECK(error.hint().find("scripts/build.sh") != std::string::npos);
  }
}

TEST_CASE("module: one that is missing") {
  if (!find_module("mpi").empty()) return;
  try {
    Module::open("mpi");
    FAIL("opened");
  } catch (const Error& error) {
    const std::string what = error.what();
    CAPTURE(what);
    CHECK(error.code() == ExitCode::kResource);
    CHECK(what.find("needs the module libckpt_mpi.so, which is not in /") !=
          what.npos);
    CHECK(error.hint().find("CKPT_MODULE_PATH") != std::string::npos);
  }
}

TEST_CASE("module: none of that name") {
  CHECK_THROWS_WITH_AS(Module::open("tensorflow"),
                       "no module is called 'tensorflow'", Error);
}

}  // namespace ckpt
