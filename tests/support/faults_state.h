// SPDX-License-Identifier: Apache-2.0
// The failing disk's settings (faults.cc): what happens to which call.
#pragma once

#include <dlfcn.h>
#include <sys/types.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace faults {

enum Call {
  kOpen,
  kRead,
  kWrite,
  kTruncate,
  kFsync,
  kFdatasync,
  kRename,
  kUnlink,
  kRmdir,
  kMkdir,
  kReaddir,
  kStat,
  kClose,
  kSyncRange,
  kCopyRange,
  kLink,
  kOpendir,
  kClone,
  kCalls
};
struct Fault {
  int call = -1;
  long first = 0;
  bool all = false;  // those after it too
  std::string what;
};

struct State {
  std::string root;
  std::vector<Fault> faults;
  std::atomic<long> counts[kCalls] = {};
  int record = -1;
  std::string count_file;
  std::mutex mutex;
  // What was written to a file since its last sync.
  std::map<std::pair<dev_t, ino_t>, std::vector<std::pair<off_t, size_t>>>
      dirty;
};

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
#define REAL(name) static auto* const real_##name = real<decltype(name)>(#name)

// Read from the environment at the first call.
State& state();

// Below FAULTS_ROOT.
bool is_ours(const std::string& path);
std::string absolute(int directory, const char* path);
std::string path_of(int fd);

// What happens to this call: "" for nothing.
std::string fate(Call call, const std::string& path);
// Returns true if the call fails now, with errno set.
bool fails(const std::string& what);

}  // namespace faults
