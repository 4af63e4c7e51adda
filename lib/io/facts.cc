// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/mount.h"
#include "lib/io/remote.h"

namespace ckpt::io {
namespace {

// The facts of an archive member.
std::optional<struct stat> facts_of_mounted(const Mounted& in) {
  if (in.absent) return std::nullopt;
  struct stat facts = {};
  facts.st_mode = in.entry.directory ? S_IFDIR : S_IFREG;
  facts.st_size = static_cast<off_t>(in.entry.size);
  return facts;
}

// st_mode and size of what is there; nullopt if it is absent.
std::optional<struct stat> look(const std::string& path) {
  if (const auto in = find_mounted(path)) return facts_of_mounted(*in);
  if (is_url(path)) return stat_remote(path);
  struct stat facts;
  int result = ::stat(path.c_str(), &facts);
  while (result != 0 && errno == EINTR) result = ::stat(path.c_str(), &facts);
  if (result == 0) return facts;
  const int errnum = errno;
  // No file has a name that the file system can't hold.
  if (errnum == ENAMETOOLONG) return std::nullopt;
  if (errnum == ELOOP) {
    if (!is_link(path)) return std::nullopt;  // one above it is in a circle
    throw missing_error({path, {}}, "a symlink that leads in a circle");
  }
  if (errnum != ENOENT && errnum != ENOTDIR)
    throw io_error(path, "cannot look at it", errnum);
  if (is_link(path)) {
    std::error_code failed;
    const std::string to = std::filesystem::read_symlink(path, failed).string();
    const bool blob = to.find("blobs/") != to.npos;
    throw missing_error({path, {}}, "broken symlink")
        .with_hint(
            blob ? "in a Hugging Face cache this means that the download did "
                   "not finish, or that blobs were deleted since"
                 : "what it points to is missing: restore that, or remove the "
                   "link");
  }
  return std::nullopt;
}

[[noreturn]] void refuse(const std::string& path, uint32_t mode) {
  throw input_error({path, {}}, "is {}, not a regular file", kind_of(mode));
}

}  // namespace

std::string_view kind_of(uint32_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return "a regular file";
    case S_IFDIR:
      return "a directory";
    case S_IFIFO:
      return "a FIFO";
    case S_IFSOCK:
      return "a socket";
    case S_IFCHR:
    case S_IFBLK:
      return "a device";
    case S_IFLNK:
      return "a link";
    default:
      return "of an unknown kind";
  }
}

bool is_file(const std::string& path) {
  const auto facts = look(path);
  if (!facts || S_ISDIR(facts->st_mode)) return false;
  if (!S_ISREG(facts->st_mode)) refuse(path, facts->st_mode);
  return true;
}

bool is_link(const std::string& path) {
  if (is_url(path) || find_mounted(path)) return false;
  struct stat facts;
  int result = ::lstat(path.c_str(), &facts);
  while (result != 0 && errno == EINTR) result = ::lstat(path.c_str(), &facts);
  if (result == 0) return S_ISLNK(facts.st_mode);
  const int errnum = errno;
  if (errnum != ENOENT && errnum != ENOTDIR && errnum != ENAMETOOLONG &&
      errnum != ELOOP)
    throw io_error(path, "cannot look at it", errnum);
  return false;
}

bool is_directory(const std::string& path) {
  const auto facts = look(path);
  return facts && S_ISDIR(facts->st_mode);
}

std::optional<uint64_t> file_size(const std::string& path) {
  const auto facts = look(path);
  if (!facts) return std::nullopt;
  if (!S_ISREG(facts->st_mode)) refuse(path, facts->st_mode);
  return static_cast<uint64_t>(facts->st_size);
}

}  // namespace ckpt::io
