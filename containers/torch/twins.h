// SPDX-License-Identifier: Apache-2.0
// Reuses what was made of one file for others that say the same: hundreds of
// ranks of a stage have one data.pkl, byte for byte, and one directory, except
// for checksums (lib/zip/outline.h).
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
    std::shared_ptr<const void> made;  // what was made of its twin
  };
  // Nothing if no file like it was added.
  std::optional<Twin> find(const io::Handle& file) const;

  // `aside`: the catalog of this zip file alone, with Headers::kComputed.
  // Leaves out files with problems, whose messages name them, and those with
  // more than a small record. The oldest make room.
  void add(const io::Handle& file, const Catalog& aside,
           std::shared_ptr<const void> made);

 private:
  struct Known {
    std::string contents;
    std::vector<std::string> globals;
    std::vector<StoredCrc> crcs;
    std::vector<size_t> entries;  // of the directory, one per element of crcs
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
