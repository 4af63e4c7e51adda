// SPDX-License-Identifier: Apache-2.0
// A checkpoint assembled beside DST from links to sound files and from rebuilt
// files, so that the ordinary readers judge it before anything is written.
//
//   .NAME.ckpt-salvage/   model.safetensors -> /source/model.safetensors
//                         model.pt          rebuilt
//
// One run for each DST has it. What a run left that was killed goes when
// anything is written to that target (lib/io/staging.h).
#pragma once

#include <string>
#include <vector>

#include "formats/salvage/repair.h"
#include "lib/io/file.h"
#include "lib/io/lock.h"

namespace ckpt::library {

class Shadow {
 public:
  // Creates the directory beside `target`; the destructor removes it. Throws
  // kIo if another process salvages to that target.
  explicit Shadow(const std::string& target);
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  std::string path(const std::string& file) const;
  // Creates a directory, which may stay empty.
  void make_directory(const std::string& name);
  // Links a sound file.
  void link(const std::string& file, const std::string& source);
  // Writes a small file.
  void write(const std::string& file, const std::string& bytes);
  // Rebuilds a file; lost bytes are zeros for now, and seal() sets checksums.
  void build(const std::string& file, const salvage::Repair& repair);
  // Opens a file for writing; never a link.
  io::Handle edit(const std::string& file) const;
  void remove(const std::string& file);
  // Sets the checksums that a file's repair asks for, from its current bytes.
  void seal(const std::string& file, const std::vector<LateCrc>& crcs);

  // Relative, sorted.
  const std::vector<std::string>& files() const { return files_; }

 private:
  void add(const std::string& file);
  std::string root_;
  io::TargetLock lock_;
  std::vector<std::string> files_;
};

}  // namespace ckpt::library
