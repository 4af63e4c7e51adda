// SPDX-License-Identifier: Apache-2.0
// Finds what code would run if the files of a checkpoint were loaded elsewhere.
//
// Files are judged by their content, whatever their name:
//
//   zip (torch.save, npz, any)   each record, as a file of its own
//   items of a .distcp file      as .metadata says, else back to back
//   a pickle                     and those that follow its STOP
//   torch's old streams, tars    all of their pickles
//   .npy                         if it holds objects
//   gzip, bzip2, zstd, zlib,     what they hold
//   xz, lzma, lz4
//   GGUF, HDF5                   chat templates, Keras' lambdas
//
// These have no mark, and their loaders go by the name:
//
//   .json .yaml .jinja           what configurations name, templates
//   code/….py of an archive      TorchScript
//
// Nothing is executed. What can't be followed to its end is never called
// safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/pickle/trace.h"

namespace ckpt::scan {

class Heads;

enum class Verdict : uint8_t {
  kNoPickle,    // no pickle loader gets anywhere in it
  kSafe,        // pickles, all of whose globals are harmless
  kUnreadable,  // parts of it can't be parsed
  kExecutes,    // a global that is not harmless is imported or called
};
std::string_view name(Verdict verdict);

struct Global {
  pickle::Mention mention;
  std::string inside;  // "archive/data.pkl" in a zip; else empty
  bool harmless = false;
  std::string loader = {};  // what runs it, if that is no unpickler
  std::string where = {};   // the key of a configuration that names it
  bool asked = false;       // the loader has to be told to
};

// "posix.system (GLOBAL REDUCE) at byte 144 of archive/data.pkl"
std::string describe(const Global& global);

struct FileScan {
  std::string path;
  Verdict verdict = Verdict::kNoPickle;
  uint64_t pickles = 0;
  uint8_t protocol = 0;         // the highest of them
  std::vector<Global> globals;  // each once, in order of appearance
  std::string problem;          // kUnreadable, kExecutes: what can't be parsed
  bool absent = false;          // a link that leads to no file, a FIFO
  bool unknown = false;  // no loader of pickles gets beyond its first byte
};

// Scans several files, many at a time where they are on a server. An unknown
// file is no pickle, unless it is named like one. Throws kMissing for a missing
// file; other faults become its verdict. `heads` (heads.h): takes what need not
// be read now.
std::vector<FileScan> scan_files(const std::vector<std::string>& paths,
                                 Heads* heads = nullptr);

// Scans a file, which is unreadable if it is unknown (the user named this very
// file), or all files in and below a directory, by path. Follows links,
// but enters each directory once.
std::vector<FileScan> scan_path(const std::string& path,
                                Heads* heads = nullptr);

}  // namespace ckpt::scan
