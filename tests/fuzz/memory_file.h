// SPDX-License-Identifier: Apache-2.0
// Bytes as a file with a path, and how a fuzzer reports what it found.
#pragma once

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace ckpt::fuzz {

[[noreturn]] inline void found(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// A file without a name; the path leads to it.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes)
      : fd_(memfd_create("input", 0)),
        path_("/proc/self/fd/" + std::to_string(fd_)) {
    if (fd_ < 0 || write(fd_, bytes.data(), bytes.size()) !=
                       static_cast<ssize_t>(bytes.size()))
      found("no file in memory");
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

// A directory for the whole run, in memory where the machine supports it.
class Directory {
 public:
  Directory() {
    namespace fs = std::filesystem;
    std::string pattern = fs::exists("/dev/shm") ? "/dev/shm/ckpt_fuzz_XXXXXX"
                                                 : "/tmp/ckpt_fuzz_XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) found("no directory");
    path_ = pattern;
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  void write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace ckpt::fuzz
