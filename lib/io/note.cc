// SPDX-License-Identifier: Apache-2.0
#include "lib/io/note.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/rename.h"
#include "lib/io/retry.h"
#include "lib/text/shell.h"

namespace ckpt::io {
namespace {

namespace fs = std::filesystem;

enum class NotePlace : uint8_t { kNothing, kWriteInto, kReplace };

bool is_below(const std::string& above, const std::string& path) {
  std::error_code failed;
  const fs::path directory = fs::weakly_canonical(above, failed);
  if (failed) return false;
  const fs::path inner = fs::weakly_canonical(path, failed);
  return !failed &&
         std::ranges::mismatch(directory, inner).in1 == directory.end();
}

// By another name, too: a hard link is the same file.
bool is_source(const std::string& path, const NoteRules& rules) {
  return std::ranges::any_of(rules.sources, [&](const std::string& source) {
    return is_same_file(source, path) || is_below(source, path);
  });
}

void check_above(const std::string& path, const NoteRules& rules) {
  const std::string above = parent(path);
  if (above.empty() || is_directory(above)) return;
  throw missing_error({above, {}}, "the directory of the {} is missing",
                      rules.kind)
      .with_hint("mkdir -p " + text::shell_path(above));
}

Error in_the_way(const std::string& path, const NoteRules& rules) {
  return unfaithful_error({path, {}},
                          "{}: the file exists and is not a {} made by ckpt",
                          rules.option, rules.kind);
}

NotePlace place_of(const std::string& path, const NoteRules& rules) {
  struct stat facts;
  struct stat named;
  if (::lstat(path.c_str(), &named) != 0) {
    check_above(path, rules);
    return NotePlace::kNothing;
  }
  const bool leads = ::stat(path.c_str(), &facts) == 0;
  if (leads && S_ISDIR(facts.st_mode))
    throw usage_error({path, {}}, "{}: is a directory", rules.option)
        .with_hint("name a file in it: " + rules.option + " " +
                   text::shell_path(join(path, rules.kind)) +
                   (rules.kind == "page" ? ".html" : ".json"));
  if (leads && !S_ISREG(facts.st_mode)) return NotePlace::kWriteInto;
  const bool own = leads && has_mark(path, rules.mark);
  if (leads && !own && is_source(path, rules))
    throw in_the_way(path, rules)
        .with_hint("it is part of what is read, and stays as it is: give " +
                   rules.option + " the name of a new file");
  if (leads && facts.st_size == 0) return NotePlace::kWriteInto;
  if (S_ISLNK(named.st_mode))
    throw unfaithful_error({path, {}}, "{}: is a link to a file", rules.option)
        .with_hint(
            "a link is neither followed nor replaced: give the name that it "
            "leads to, or remove it");
  if (own) return NotePlace::kReplace;
  if (rules.overwrite) return NotePlace::kReplace;
  throw in_the_way(path, rules)
      .with_hint("give " + rules.option +
                 " the name of a new file, or replace this one with "
                 "--overwrite");
}

Error cannot_write(const std::string& path, int why) {
  return io_error(path, "cannot write", why);
}

}  // namespace

bool has_mark(const std::string& path, std::string_view mark) {
  if (mark.empty()) return false;
  // Not by a Handle: what is written is not watched like a source.
  const int file = retry(
      [&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  if (file < 0) return false;
  std::string head(kNoteHead, '\0');
  const ssize_t n =
      retry([&] { return ::pread(file, head.data(), head.size(), 0); });
  ::close(file);
  head.resize(n < 0 ? 0 : static_cast<size_t>(n));
  return head.find(mark) != head.npos;
}

bool has_same_bytes(const std::string& a, const std::string& b) {
  constexpr uint64_t kBlock = 1 << 20;
  if (!is_file(a) || !is_file(b)) return false;
  const Handle left = Handle::open_read(a);
  const Handle right = Handle::open_read(b);
  if (left.size() != right.size()) return false;
  for (uint64_t at = 0; at < left.size(); at += kBlock) {
    const uint64_t part = std::min(kBlock, left.size() - at);
    if (left.read_string(at, part) != right.read_string(at, part)) return false;
  }
  return true;
}

bool is_same_file(const std::string& a, const std::string& b) {
  struct stat left;
  struct stat right;
  return ::stat(a.c_str(), &left) == 0 && ::stat(b.c_str(), &right) == 0 &&
         left.st_dev == right.st_dev && left.st_ino == right.st_ino;
}

void check_note_place(const std::string& path, const NoteRules& rules) {
  place_of(path, rules);
}

Note::Note(std::string path, const NoteRules& rules) : path_(std::move(path)) {
  const NotePlace place = place_of(path_, rules);
  int flags = O_WRONLY | O_CLOEXEC;
  if (place == NotePlace::kNothing) written_ = path_;
  if (place == NotePlace::kReplace)
    written_ = join(parent(path_), "." + base_name(path_) + ".ckpt-" +
                                       std::to_string(::getpid()));
  if (!written_.empty()) flags |= O_CREAT | O_EXCL;
  const std::string opened = written_.empty() ? path_ : written_;
  file_ = retry([&] { return ::open(opened.c_str(), flags, 0666); });
  if (file_ >= 0) return;
  const int why = errno;
  written_.clear();
  throw cannot_write(path_, why);
}

Note::~Note() {
  close_file();
  if (!written_.empty()) ::unlink(written_.c_str());
}

void Note::close_file() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

void Note::commit(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = retry(
        [&] { return ::write(file_, text.data() + at, text.size() - at); });
    if (n < 0) throw cannot_write(path_, errno);
    at += static_cast<size_t>(n);
  }
  const int closed = ::close(file_);
  file_ = -1;
  if (closed != 0) throw cannot_write(path_, errno);
  if (!written_.empty() && written_ != path_)
    replace_by_rename(written_, path_);
  written_.clear();
}

void write_note(const std::string& path, const NoteRules& rules,
                std::string_view text) {
  Note(path, rules).commit(text);
}

}  // namespace ckpt::io
