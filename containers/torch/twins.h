// SPDX-License-Identifier: Apache-2.0
// What was made of files, for others that say the same: the ranks of a stage
// by the hundred have one data.pkl, byte for byte, and one directory but for
// checksums (lib/zip/outline.h).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/zip/outline.h"

namespace ckpt::torch {

// Safe to use on many threads.
class Twins {
 public:
  struct Twin {
    Catalog aside;                     // of this file
    std::shared_ptr<const void> made;  // what was made of the other
  };
  // Nothing if no file that was added is alike.
  std::optional<Twin> find(const io::Handle& file) const;

  // `aside`: of a zip file with Headers::kComputed, alone in it. Files with
  // problems, whose messages are about them, are left out, and those that are
  // more than a small record; the oldest ones make room.
  void add(const io::Handle& file, const Catalog& aside,
           std::shared_ptr<const void> made);

 private:
  struct Known {
    std::string contents;
    std::vector<std::string> globals;
    std::vector<StoredCrc> crcs;
    std::vector<size_t> entries;  // of the directory, one for each of crcs
    std::shared_ptr<const void> made;
  };
  struct Layout {
    zip::Outline outline;
    std::vector<std::shared_ptr<const Known>> known;
  };
  using Layouts = std::vector<std::shared_ptr<const Layout>>;  // newest first

  static const Known* find_known(
      const std::vector<std::shared_ptr<const Known>>& all,
      const std::string& contents);
  Layouts layouts() const;

  mutable std::mutex mutex_;
  Layouts layouts_;
};

}  // namespace ckpt::torch
