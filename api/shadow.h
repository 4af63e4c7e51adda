// SPDX-License-Identifier: Apache-2.0
// A checkpoint that is being put together beside DST, out of links to sound
// files and rebuilt ones, so that the ordinary readers judge it before
// anything is written.
//
//   .NAME.ckpt-salvage-XXXXXX/   model.safetensors -> /source/model.safetensors
//                                model.pt          rebuilt
#pragma once

#include <string>
#include <vector>

#include "formats/salvage/repair.h"
#include "lib/io/file.h"

namespace ckpt::library {

class Shadow {
 public:
  // Makes the directory beside `target`. The destructor removes it.
  explicit Shadow(const std::string& target);
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  std::string path(const std::string& file) const;
  // A directory, which may stay empty.
  void make_directory(const std::string& name);
  // A sound file, as it is.
  void link(const std::string& file, const std::string& source);
  // A small one of its own.
  void write(const std::string& file, const std::string& bytes);
  // A rebuilt one; what is gone is zeros for now. Checksums are set by
  // seal().
  void build(const std::string& file, const salvage::Repair& repair);
  // To write into; never a link.
  io::Handle edit(const std::string& file) const;
  void remove(const std::string& file);
  // The checksums that the repair of a file asks for, of its bytes now.
  void seal(const std::string& file, const std::vector<LateCrc>& crcs);

  // Relative, sorted.
  const std::vector<std::string>& files() const { return files_; }

 private:
  void add(const std::string& file);
  std::string root_;
  std::vector<std::string> files_;
};

}  // namespace ckpt::library
