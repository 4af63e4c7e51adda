// SPDX-License-Identifier: Apache-2.0
// What code would run if the files of a checkpoint were loaded elsewhere?
//
// Files are judged by their content, whatever they are called:
//
//   zip (torch.save, npz, any)   each record, as a file of its own
//   items of a .distcp file      as .metadata says, else back to back
//   a pickle                     and those that follow its STOP
//   torch's old streams, tars    all of their pickles
//   .npy                         if it holds objects
//   gzip, bzip2, zstd, zlib      what they hold
//
// Nothing is executed. What can't be followed to its end is never called
// safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/pickle/trace.h"

namespace ckpt::scan {

enum class Verdict : uint8_t {
  kNoPickle,    // no loader of pickles gets anywhere in it
  kSafe,        // pickles, all of whose globals are harmless
  kUnreadable,  // parts of it can't be parsed
  kExecutes,    // a global that is not harmless is imported or called
};
std::string_view name(Verdict verdict);

struct Global {
  pickle::Mention mention;
  std::string inside;  // "archive/data.pkl" in a zip; else empty
  bool harmless = false;
};

// "posix.system (GLOBAL REDUCE) at byte 144 of archive/data.pkl"
std::string describe(const Global& global);

struct FileScan {
  std::string path;
  Verdict verdict = Verdict::kNoPickle;
  uint64_t pickles = 0;
  std::vector<Global> globals;  // each once, in the order they are met
  std::string problem;          // kUnreadable, kExecutes: what can't be parsed
};

// One file. What nobody knows at all is unreadable if `asked` (someone named
// this very file), else no pickle, unless it is called like one. Throws
// kMissing for what is not there; other faults are its verdict.
FileScan scan_file(const std::string& path, bool asked);

// A file, or all files of a directory and those below, by path. Links are
// followed, each directory once.
std::vector<FileScan> scan_path(const std::string& path);

}  // namespace ckpt::scan
