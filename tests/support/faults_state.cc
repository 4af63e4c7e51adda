// SPDX-License-Identifier: Apache-2.0
#include "tests/support/faults_state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

namespace faults {
namespace {

constexpr const char* kNames[kCalls] = {
    "open",      "read",    "write",  "truncate",        "fsync",
    "fdatasync", "rename",  "unlink", "rmdir",           "mkdir",
    "readdir",   "stat",    "close",  "sync_file_range", "copy_file_range",
    "link",      "opendir", "clone"};

void read_faults(State& state, const char* text) {
  std::string rest = text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string one = rest.substr(0, comma);
    rest = comma == rest.npos ? "" : rest.substr(comma + 1);
    const size_t at = one.find('@'), equals = one.find('=');
    if (at == one.npos || equals == one.npos) abort();
    Fault fault;
    for (int c = 0; c < kCalls; ++c)
      if (one.substr(0, at) == kNames[c]) fault.call = c;
    if (fault.call < 0) abort();
    fault.first = strtol(one.c_str() + at + 1, nullptr, 10);
    fault.all = one[equals - 1] == '+';
    fault.what = one.substr(equals + 1);
    state.faults.push_back(fault);
  }
}

void write_counts() {
  if (state().count_file.empty()) return;
  FILE* const file = fopen(state().count_file.c_str(), "w");
  if (!file) return;
  for (int c = 0; c < kCalls; ++c)
    fprintf(file, "%s %ld\n", kNames[c], state().counts[c].load());
  fclose(file);
}

}  // namespace

State& state() {
  static State* const made = [] {
    auto* const state = new State;
    if (const char* root = getenv("FAULTS_ROOT")) state->root = root;
    if (const char* faults = getenv("FAULTS")) read_faults(*state, faults);
    REAL(open);
    if (const char* file = getenv("FAULTS_RECORD"))
      state->record =
          real_open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (const char* file = getenv("FAULTS_COUNT")) state->count_file = file;
    atexit(write_counts);
    return state;
  }();
  return *made;
}

bool is_ours(const std::string& path) {
  const std::string& root = state().root;
  return !root.empty() && path.compare(0, root.size(), root) == 0 &&
         path != state().count_file;
}

std::string absolute(int directory, const char* path) {
  if (path[0] == '/') return path;
  char text[PATH_MAX];
  const std::string link = directory == AT_FDCWD
                               ? "/proc/self/cwd"
                               : "/proc/self/fd/" + std::to_string(directory);
  const ssize_t n = readlink(link.c_str(), text, sizeof text);
  if (n <= 0) return path;
  const std::string above(text, static_cast<size_t>(n));
  return path[0] == '\0' ? above : above + "/" + path;
}

std::string path_of(int fd) { return absolute(fd, ""); }

std::string fate(Call call, const std::string& path) {
  if (!is_ours(path)) return {};
  const long number = ++state().counts[call];
  for (const Fault& fault : state().faults)
    if (fault.call == call &&
        (number == fault.first || (fault.all && number > fault.first)))
      return fault.what;
  return {};
}

bool fails(const std::string& what) {
  if (what.empty() || what == "short" || what == "lost") return false;
  if (what == "delay") {
    usleep(200'000);
    return false;
  }
  if (what == "stop") {
    raise(SIGSTOP);
    return false;
  }
  if (what == "kill") kill(getpid(), SIGKILL);
  errno = static_cast<int>(strtol(what.c_str(), nullptr, 10));
  return true;
}

}  // namespace faults
