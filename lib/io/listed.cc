// SPDX-License-Identifier: Apache-2.0
#include "lib/io/listed.h"

#include <sys/stat.h>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"

namespace ckpt::io {

bool is_listed_directory(const std::string& path) {
  try {
    return is_directory(path);
  } catch (const Error&) {
    if (is_link(path)) return false;
    throw;
  }
}

bool is_listed_file(const std::string& path) {
  struct stat facts;
  if (stat_any(path, facts)) return S_ISREG(facts.st_mode);
  return !is_link(path) && is_file(path);
}

bool leads_nowhere(const std::string& path) {
  struct stat facts;
  return is_link(path) && !stat_any(path, facts);
}

std::string why_unreadable(const std::string& path) {
  if (leads_nowhere(path)) return "a link that leads nowhere";
  struct stat facts;
  if (!stat_any(path, facts) || S_ISREG(facts.st_mode) ||
      S_ISDIR(facts.st_mode))
    return "";
  return std::string(kind_of(facts.st_mode));
}

}  // namespace ckpt::io
