// SPDX-License-Identifier: Apache-2.0
#include "lib/io/remove.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "lib/io/retry.h"

namespace ckpt::io {
namespace {

using Keep = std::function<bool(const std::string&)>;

constexpr int kMostTries = 100;

class Remover {
 public:
  explicit Remover(const Keep& keep) : keep_(keep) {}

  // True if it is gone. `name` is in the directory `above`.
  bool remove(int above, const char* name, const std::string& relative) {
    if (keep_ && keep_(relative)) return false;
    if (retry([&] { return ::unlinkat(above, name, 0); }) == 0) return true;
    if (errno == ENOENT) return true;
    const int why = errno;
    struct stat facts;
    if (::fstatat(above, name, &facts, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISDIR(facts.st_mode))
      return fail(why);
    for (int tries = 0;; ++tries) {
      const bool emptied = empty(above, name, relative + "/");
      if (keep_ && keep_(relative + "/")) return false;
      if (!emptied) return false;
      if (retry([&] { return ::unlinkat(above, name, AT_REMOVEDIR); }) == 0)
        return true;
      // Meanwhile another rank of an abandoned save created its last file.
      if (errno != ENOTEMPTY || tries == kMostTries) return fail(errno);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // True if nothing is left in the directory.
  bool empty(int above, const char* name, const std::string& prefix) {
    const int fd = retry([&] {
      return ::openat(above, name,
                      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    });
    if (fd < 0) return fail(errno);
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(fd),
                                                        ::closedir);
    if (!directory) {
      const int why = errno;
      ::close(fd);
      return fail(why);
    }
    // Collect all names first: removing while reading may upset it.
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(directory.get())) {
      const std::string_view found = entry->d_name;
      if (found != "." && found != "..") names.emplace_back(found);
      errno = 0;
    }
    bool all = errno == 0 || fail(errno);
    for (const std::string& found : names)
      all = remove(fd, found.c_str(), prefix + found) && all;
    return all;
  }

  std::error_code first() const { return first_; }

 private:
  bool fail(int why) {
    if (!first_) first_ = {why, std::generic_category()};
    return false;
  }

  const Keep& keep_;
  std::error_code first_;
};

}  // namespace

std::error_code remove_tree(const std::string& path) {
  const Keep none;
  Remover remover(none);
  remover.remove(AT_FDCWD, path.c_str(), {});
  return remover.first();
}

std::error_code remove_others(const std::string& path, const Keep& keep) {
  Remover remover(keep);
  remover.empty(AT_FDCWD, path.c_str(), {});
  return remover.first();
}

}  // namespace ckpt::io
