// SPDX-License-Identifier: Apache-2.0
// A file that a command writes beside checkpoints: a page, a trace, a plan, a
// draft. One guard decides what of the disk it may replace:
//
//   what is there                    | is replaced
//   nothing                          | -
//   an empty file, a device, a pipe  | is written to
//   a file of the same kind by ckpt  | yes
//   any other file                   | with `overwrite`
//   a file of what is read           | never
//   a directory, a link to a file    | never
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::io {

// A file of ckpt's own kind has its mark among so many first bytes.
inline constexpr uint64_t kNoteHead = 512;

inline constexpr std::string_view kManifestMark = "\"ckpt_manifest\"";
inline constexpr std::string_view kJournalMark = "ckpt-journal ";

struct NoteRules {
  std::string option;     // "--html", for messages
  std::string kind;       // "page"
  std::string_view mark;  // "": none is known by its content
  bool overwrite = false;
  // Files and directories that the command reads.
  std::vector<std::string> sources = {};
};

// True for a file that has the mark; "" marks none.
bool has_mark(const std::string& path, std::string_view mark);

// Throws what the constructor of Note would throw, and writes nothing.
void check_note_place(const std::string& path, const NoteRules& rules);

class Note {
 public:
  // Throws kUnfaithful for what may not be replaced, kUsage for a directory,
  // kMissing if the directory above is missing, kIo if it can't be written.
  // What is there stays until commit().
  Note(std::string path, const NoteRules& rules);
  // Removes what was not committed.
  ~Note();
  Note(const Note&) = delete;
  Note& operator=(const Note&) = delete;

  // Writes all of the file, in its place. Throws kIo.
  void commit(std::string_view text);

 private:
  void close_file();

  std::string path_;
  std::string written_;  // path_, or what is renamed to it; "" for a device
  int file_ = -1;
};

// Checks the place again, and writes.
void write_note(const std::string& path, const NoteRules& rules,
                std::string_view text);

// True if both are files, and every byte is the same.
bool has_same_bytes(const std::string& a, const std::string& b);

// True if both exist and are one file, by whatever names.
bool is_same_file(const std::string& a, const std::string& b);

}  // namespace ckpt::io
