// SPDX-License-Identifier: Apache-2.0
// What looks after a run, called from a program.
#include "ckpt/keep.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

struct Steps {
  Steps() {
    fs::create_directory(root);
    for (const char* number : {"10", "20", "30"})
      fs::copy(std::string(CKPT_TEST_DATA) +
                   "/runs/hf_trainer_qwen2/ckpt/checkpoint-10",
               root + "/checkpoint-" + number, fs::copy_options::recursive);
  }
  test::TempDir dir;
  std::string root = dir.file("run");
};

std::vector<std::string> fates(const Synced& done) {
  std::vector<std::string> found;
  for (const SyncedFile& file : done.files)
    if (file.path.ends_with("config.json") &&
        !file.path.ends_with("_config.json"))
      found.emplace_back(name(file.fate));
  return found;
}

}  // namespace

TEST_CASE("prune: says what goes, and deletes it when asked") {
  const Steps run;
  PruneOptions options{.keep_last = 2};
  Pruned found = prune(run.root, options);
  REQUIRE(found.steps.size() == 3);
  CHECK(found.steps[0].name == "checkpoint-10");
  CHECK(found.steps[0].goes);
  CHECK_FALSE(found.steps[0].gone);
  CHECK(found.steps[1].why == std::vector<std::string>{"one of the last 2"});
  CHECK(found.bytes == found.steps[0].bytes);
  CHECK(fs::exists(found.steps[0].path));
  std::vector<std::string> removed;
  options.remove = true;
  options.removed = [&](const std::string& step) { removed.push_back(step); };
  found = prune(run.root, options);
  CHECK(found.steps[0].gone);
  CHECK(removed == std::vector<std::string>{"checkpoint-10"});
  CHECK_FALSE(fs::exists(found.steps[0].path));
  CHECK_THROWS_WITH_AS(prune(run.root, {}), doctest::Contains("which steps"),
                       Error);
}

TEST_CASE("watch: each step once, and what is no command is refused") {
  const Steps run;
  std::vector<std::string> told;
  WatchOptions options{.command = {"test", "-d", "{step}", "-a", "{name}"},
                       .state = run.dir.file("state"),
                       .once = true,
                       .settle = 0};
  options.done = [&](const WatchedStep& step) { told.push_back(step.name); };
  const std::vector<WatchedStep> done = watch(run.root, options);
  REQUIRE(done.size() == 3);
  for (const WatchedStep& step : done) CHECK(step.result == Watched::kDone);
  CHECK(done[2].command[2] == run.root + "/checkpoint-30");
  CHECK(told.size() == 3);
  CHECK(watch(run.root, options).empty());
  options.command = {"test", "{stp}"};
  CHECK_THROWS_WITH_AS(watch(run.root, options), doctest::Contains("{stp}"),
                       Error);
  options.command = {"true"};
  options.state = run.dir.file("other");
  CHECK_THROWS_WITH_AS(watch(run.root + "/checkpoint-10", options),
                       doctest::Contains("not a root"), Error);
}

TEST_CASE("sync: copies what differs, and says what it leaves out") {
  const Steps run;
  const std::string copy = run.dir.file("copy");
  SyncOptions options{.include = {"*config.json"}, .exclude = {"*-30/*"}};
  CHECK(fates(sync(run.root, copy, options)) ==
        std::vector<std::string>{"new", "new"});
  options = {};
  uint64_t most = 0;
  options.progress = [&](uint64_t at, uint64_t) { most = std::max(most, at); };
  Synced done = sync(run.root, copy, options);
  CHECK(fates(done) == std::vector<std::string>{"same", "same", "new"});
  CHECK(done.complete);
  CHECK(done.bytes_differ < done.bytes);
  CHECK(most > 0);
  run.dir.write("run/checkpoint-20/config.json", "{}");
  fs::create_symlink("nowhere", run.root + "/broken");
  options.dry_run = true;
  done = sync(run.root, copy, options);
  CHECK(fates(done) == std::vector<std::string>{"same", "replaced", "same"});
  CHECK_FALSE(done.complete);
  CHECK_THROWS_WITH_AS(sync(run.root, "host:/x", options),
                       doctest::Contains("another machine"), Error);
}

TEST_CASE("edit: the newest step of a root, and says so") {
  const Steps run;
  std::vector<std::string> notes;
  EditOptions options{.set = {"license=mit"}};
  options.note = [&](const std::string& line) { notes.push_back(line); };
  const Edited done = edit(run.root, options);
  CHECK(done.step == "checkpoint-30");
  REQUIRE(done.files.size() == 1);
  CHECK(done.files[0].written);
  CHECK(done.files[0].changes[0].after == "mit");
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].ends_with("holds 3 steps; this is checkpoint-30"));
  options.set = {"license"};
  CHECK_THROWS_WITH_AS(edit(run.root, options), doctest::Contains("KEY=VALUE"),
                       Error);
}

}  // namespace ckpt
