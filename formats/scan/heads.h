// SPDX-License-Identifier: Apache-2.0
// The fronts of storages on a server. A scan reads nothing else of them, and
// each would be a request. Whoever reads all bytes afterwards shows them as
// they pass:
//
//   scan_path(path, &heads) ─► expect() ─► see() … ─► all_harmless()
//                    ▲                                    │ no
//                    └────────────────────────────────────┘
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::scan {

class Heads {
 public:
  // For the scan: true if these bytes will be shown, or were and do nothing.
  // Any thread may call it.
  bool leave(const std::string& path, uint64_t begin, uint64_t size);
  // Call before the bytes of these files are read.
  void expect(const Catalog& catalog);
  // Bytes [offset, …) of catalog.files[file]. Any thread may call it.
  void see(uint32_t file, uint64_t offset, std::span<const std::byte> bytes);
  // False if something would act or was not shown: the next scan reads that.
  bool all_harmless();

 private:
  struct Head {
    uint64_t begin = 0;
    uint32_t size = 0;
    bool harmless = false;
  };
  using OfFile = std::vector<Head>;
  static OfFile::iterator find(OfFile& heads, uint64_t begin);

  std::mutex mutex_;
  std::map<std::string, OfFile, std::less<>> all_;  // by begin once expected
  std::vector<OfFile*> of_;                         // by file of the catalog
  bool shown_ = false;
};

}  // namespace ckpt::scan
