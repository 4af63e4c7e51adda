// SPDX-License-Identifier: Apache-2.0
#include "lib/io/staging_target.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <filesystem>

#include "lib/hash/sha256.h"
#include "lib/io/file.h"
#include "lib/io/upload.h"

namespace ckpt::io {
namespace {

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// A directory for this user alone: others could predict its names.
std::string open_spool() {
  std::string above = environment("CKPT_SPOOL");
  if (above.empty()) above = environment("TMPDIR");
  if (above.empty()) above = "/var/tmp";
  const std::string spool = join(above, fmt::format("ckpt-{}", ::geteuid()));
  if (::mkdir(spool.c_str(), 0700) != 0 && errno != EEXIST)
    throw io_error(spool, "cannot create the directory", errno)
        .with_hint(
            "what is uploaded lies on this machine until it is sent: set "
            "CKPT_SPOOL to a directory that can be written to");
  struct stat facts;
  if (::lstat(spool.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode) ||
      facts.st_uid != ::geteuid() || (facts.st_mode & 022) != 0)
    throw unsafe_error({spool, {}}, "is not a directory of this user alone")
        .with_hint("set CKPT_SPOOL to a directory of your own");
  return spool;
}

Error bad_target(const std::string& target) {
  return usage_error({target, {}}, "names no object in a bucket")
      .with_hint("s3://BUCKET/NAME, gs://BUCKET/NAME");
}

}  // namespace

bool exists(const std::string& path) {
  struct stat facts;
  if (::lstat(path.c_str(), &facts) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  throw io_error(path, "cannot stat", errno);
}

Error exists_already(const std::string& target) {
  return unfaithful_error({target, {}}, "already exists")
      .with_hint(
          "choose another target, or replace this one with --overwrite (it is "
          "removed after the new one is complete)");
}

std::string beside(const std::string& target, std::string_view suffix) {
  return join(parent(target), "." + base_name(target) + std::string(suffix));
}

std::string stripped(std::string target) {
  while (target.size() > 1 && target.ends_with('/')) target.pop_back();
  return target;
}

void check_target(const std::string& target, const StagingOptions& options) {
  if (!exists(target)) return;
  if (is_link(target)) {
    std::error_code failed;
    const std::string to =
        std::filesystem::read_symlink(target, failed).string();
    throw unfaithful_error({target, {}}, "is a link to {}", to)
        .with_hint(
            "a link is neither followed nor replaced: give the name that it "
            "leads to, or remove it");
  }
  struct stat facts;
  if (::lstat(target.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode) &&
      !S_ISDIR(facts.st_mode))
    throw usage_error({target, {}}, "is {}: a target is a file or a directory",
                      kind_of(facts.st_mode))
        .with_hint("choose another name for the target");
  const bool directory = is_directory(target);
  if (directory && options.single_file)
    throw usage_error({target, {}}, "is a directory, the target is one file");
  if (!directory && !options.single_file)
    throw usage_error({target, {}}, "is a file, the target is a directory")
        .with_hint("choose another name for the target, or move the file away");
  if (options.overwrite) return;
  if (directory && list_directory(target).empty()) return;
  throw exists_already(target);
}

void check_name(const std::string& target, const std::string& place,
                const StagingOptions& options) {
  size_t more = std::string_view("..ckpt-staging.old").size();
  for (const std::string& companion : options.companions)
    more = std::max(more, companion.size());
  const long most = ::pathconf(parent(place).c_str(), _PC_NAME_MAX);
  const size_t room = most > 0 ? static_cast<size_t>(most) : NAME_MAX;
  const size_t has = base_name(place).size();
  if (has + more <= room) return;
  throw usage_error({target, {}},
                    "its name has {} bytes, and files beside it get {} more "
                    "than that; the file system takes {}",
                    has, more, room)
      .with_hint("choose a shorter name for the target");
}

// The same for every run with one target.
std::string staging_place(const std::string& target) {
  if (!is_target_url(target)) return target;
  Sha256 sum;
  sum.update(std::as_bytes(std::span(target)));
  return join(open_spool(), sum.hex().substr(0, 16) + "-" + base_name(target));
}

std::string salvage_name(const std::string& place) {
  return base_name(place) + ".ckpt-salvage";
}

bool is_half_published(const std::string& target) {
  const std::string place = staging_place(stripped(target));
  return is_publishing(join(beside(place, ".ckpt-staging"), kUpload), target);
}

void check_remote(const std::string& target, const StagingOptions& options) {
  const size_t slash = target.find('/', 5);
  if (slash == target.npos || slash == 5 || slash + 1 == target.size())
    throw bad_target(target);
  const Standing there = look_at_target(target);
  if (there == Standing::kDirectory && options.single_file)
    throw usage_error({target, {}}, "is a directory, the target is one file");
  if (there == Standing::kFile && !options.single_file)
    throw usage_error({target, {}}, "is a file, the target is a directory")
        .with_hint("choose another name for the target");
  if (there == Standing::kNothing || options.overwrite) return;
  // An earlier run's objects, some of which may be there.
  if (options.resume && is_half_published(target)) return;
  throw exists_already(target);
}

}  // namespace ckpt::io
