// SPDX-License-Identifier: Apache-2.0
// Which parts of the target's files are complete while a run writes them, so
// that they can be uploaded. A part waits for the items that write to it, and
// for the checksums in it, which wait for the items of their record: so no part
// is touched after it was complete.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ckpt/layout.h"
#include "reshard/plan/plan.h"
#include "reshard/plan/work.h"
#include "reshard/run/output.h"

namespace ckpt::reshard {

using FileRange = std::pair<uint64_t, uint64_t>;  // bytes [first, second)

class TargetParts {
 public:
  // `sizes`: the size of a part, for each file; 0 if its parts are not needed.
  TargetParts(const Plan& plan, const Target& target,
              std::vector<uint64_t> sizes);

  // The parts that an item writes to, some more than once.
  void for_each_part(
      uint32_t item,
      const std::function<void(uint32_t file, uint64_t part)>& see) const;

  // True if the item writes to no other file.
  bool only_to_parts(uint32_t item) const;

  // The most bytes of parts that are begun but not complete, if items are done
  // in order.
  uint64_t most_open() const;

  // Called once for each part, from any thread. Never for parts of copied
  // files.
  using Whole = std::function<void(uint32_t file, uint64_t part)>;
  // Call before the run, when literals and carried ranges are in the files
  // already.
  void begin(Output& output, Whole whole);
  // Call when all bytes of an item are in their files, and its sums in the
  // output.
  void finished(uint32_t item);

  // The payload of a part, which is not needed here once the part was uploaded;
  // the rest is still to be digested.
  std::vector<FileRange> spare(uint32_t file, uint64_t part) const;

 private:
  struct FileParts {
    uint64_t size = 0;                                    // of a part
    std::unique_ptr<std::atomic<uint32_t>[]> parts = {};  // what each waits for
    std::unique_ptr<std::atomic<uint32_t>[]> crcs = {};   // the same
    uint64_t count = 0;
    std::vector<FileRange> kept = {};  // sorted
  };
  using See = std::function<void(uint32_t file, uint64_t begin, uint64_t end)>;
  void add_file(const TargetFile& file, uint64_t size);
  void ranges_of(const Item& item, const See& see) const;
  void all_ranges_of(const Item& item, const See& see) const;
  void ranges_of_columns(const Item& item, const See& see) const;
  void add_crcs(uint32_t file, uint64_t begin, uint64_t end);
  void crc_known(uint32_t file, uint32_t index);
  void release(uint32_t file, uint64_t part);

  const Plan& plan_;
  const Target& target_;
  std::vector<Item> items_;
  std::vector<FileParts> files_;
  Output* output_ = nullptr;
  Whole whole_;
};

// Sorts the work by where it goes instead of where it comes from.
void order_by_target(Plan& plan);

// Picks the order in which fewer bytes of the target are begun but not
// complete, if the difference is large.
void order_for_sending(Plan& plan, const Target& target);

}  // namespace ckpt::reshard
