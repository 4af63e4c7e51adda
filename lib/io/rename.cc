// SPDX-License-Identifier: Apache-2.0
#include "lib/io/rename.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "ckpt/error.h"
#include "lib/io/remove.h"
#include "lib/io/retry.h"

namespace ckpt::io {
namespace {

bool is_there(const std::string& path) {
  struct stat facts;
  return ::lstat(path.c_str(), &facts) == 0;
}

bool is_taken(int why) {
  return why == EEXIST || why == ENOTEMPTY || why == ENOTDIR || why == EISDIR;
}

bool lacks_flags(int why) {
  return why == EINVAL || why == ENOSYS || why == EOPNOTSUPP;
}

int rename2(const std::string& from, const std::string& to, unsigned flags) {
  return retry([&] {
    return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags);
  });
}

[[noreturn]] void fail(const std::string& from, const std::string& to,
                       int why) {
  throw Error(ExitCode::kIo, {to, {}},
              "cannot rename " + from +
                  " to it: " + std::generic_category().message(why));
}

// Where link() works, it fails if the name exists; false if it can't be used.
bool link_new(const std::string& from, const std::string& to, bool& done) {
  if (retry([&] { return ::link(from.c_str(), to.c_str()); }) == 0) {
    done = true;
    retry([&] { return ::unlink(from.c_str()); });
    return true;
  }
  done = false;
  return errno == EEXIST;
}

}  // namespace

void replace_by_rename(const std::string& from, const std::string& to) {
  if (rename2(from, to, 0) != 0) fail(from, to, errno);
}

bool rename_new(const std::string& from, const std::string& to,
                RenameNew over) {
  if (rename2(from, to, RENAME_NOREPLACE) == 0) return true;
  const bool lacks = lacks_flags(errno);
  if (!lacks && !is_taken(errno)) fail(from, to, errno);
  if (over == RenameNew::kOverEmpty) {
    if (rename2(from, to, 0) == 0) return true;
    if (is_taken(errno)) return false;
    fail(from, to, errno);
  }
  if (!lacks) return false;
  bool done = false;
  if (link_new(from, to, done)) return done;
  if (is_there(to)) return false;
  replace_by_rename(from, to);
  return true;
}

std::string trade_places(const std::string& from, const std::string& to) {
  if (rename2(from, to, RENAME_EXCHANGE) == 0) return from;
  if (!lacks_flags(errno)) fail(from, to, errno);
  const std::string old = from + ".old";
  remove_tree(old);
  replace_by_rename(to, old);
  if (rename2(from, to, 0) == 0) return old;
  const int why = errno;
  rename2(old, to, 0);
  fail(from, to, why);
}

void restore_replaced(const std::string& old, const std::string& to) {
  if (!is_there(old)) return;
  if (!is_there(to))
    replace_by_rename(old, to);
  else
    remove_tree(old);
}

}  // namespace ckpt::io
