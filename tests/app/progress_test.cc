// SPDX-License-Identifier: Apache-2.0
#include "app/print/progress.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/support/temp_file.h"

namespace ckpt::app {
namespace {

// Returns what `body` writes to stderr, which is not a terminal meanwhile.
template <class Body>
std::string stderr_of(Body body) {
  const test::TempDir dir;
  const std::string path = dir.file("stderr");
  const int saved = dup(STDERR_FILENO);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  dup2(file, STDERR_FILENO);
  body();
  dup2(saved, STDERR_FILENO);
  close(file);
  close(saved);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void work(const OutputOptions& options, int steps) {
  const Progress progress = make_progress(options);
  progress.begin("copying", 4096);
  progress.file("a\x1b[31m.pt");
  for (int i = 0; i < steps; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(4096 / 8 / steps));
    progress.advance(static_cast<uint64_t>(4096 / steps));
  }
  progress.end();
}

}  // namespace

TEST_CASE("progress: silent where nobody looks") {
  CHECK(stderr_of([] { work({}, 4); }).empty());
  CHECK(stderr_of([] { work({.progress = When::kNever}, 4); }).empty());
}

TEST_CASE("progress: plain lines if they are asked for") {
  const std::string text =
      stderr_of([] { work({.progress = When::kAlways}, 8); });
  CAPTURE(text);
  CHECK(text.find(" KiB / 4.0 KiB  ") != text.npos);
  CHECK(text.find("copying done: 4.0 KiB in 0.") != text.npos);
  CHECK(text.find('\r') == text.npos);
  CHECK(text.find('\x1b') == text.npos);
}

TEST_CASE("progress: nothing to do is not a division by zero") {
  const std::string text = stderr_of([] {
    const Progress progress = make_progress({.progress = When::kAlways});
    progress.begin("verifying", 0);
    progress.advance(0);
    progress.end();
  });
  CHECK(text == "verifying done: 0 B in 0.0 s\n");
}

}  // namespace ckpt::app
