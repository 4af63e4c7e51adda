// SPDX-License-Identifier: Apache-2.0
// Files and directories that vanish at the end of a test.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace ckpt::test {

struct TempDir {
  TempDir() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "ckpt_test_XXXXXX").string();
    path = mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string file(std::string_view name) const {
    return path + "/" + std::string(name);
  }
  // Writes a file (and its parent directories); returns its path.
  std::string write(std::string_view name, std::string_view content) const {
    const std::string target = file(name);
    std::filesystem::create_directories(
        std::filesystem::path(target).parent_path());
    std::ofstream(target, std::ios::binary) << content;
    return target;
  }
  std::string path;
};

struct TempFile {
  explicit TempFile(std::string_view content, std::string_view name = "file")
      : path(dir.write(name, content)) {}
  TempDir dir;
  std::string path;
};

}  // namespace ckpt::test
