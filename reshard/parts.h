// SPDX-License-Identifier: Apache-2.0
// Which parts of the target's files are whole while a run writes them, so that
// they can be sent away. A part waits for the items that write to it, and for
// the checksums that stand in it, which wait for the items of their record: so
// no part is touched after it was whole.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ckpt/layout.h"
#include "reshard/output.h"
#include "reshard/plan.h"
#include "reshard/work.h"

namespace ckpt::reshard {

using FileRange = std::pair<uint64_t, uint64_t>;  // bytes [first, second)

class TargetParts {
 public:
  // `sizes`: bytes of a part of each file; 0 if they are not needed.
  TargetParts(const Plan& plan, const Target& target,
              std::vector<uint64_t> sizes);

  // The parts that an item writes to; some of them more than once.
  void for_each_part(
      uint32_t item,
      const std::function<void(uint32_t file, uint64_t part)>& see) const;

  // It writes to no other file.
  bool only_to_parts(uint32_t item) const;

  // Bytes of parts that are begun and not whole, at most, if the items are
  // done in their order.
  uint64_t most_open() const;

  // Called for each part once, from any thread. Never for those of files that
  // are copied.
  using Whole = std::function<void(uint32_t file, uint64_t part)>;
  // Before the run; literals and what is carried are in the files already.
  void begin(Output& output, Whole whole);
  // All bytes of an item are in their files, and its sums in the output.
  void finished(uint32_t item);

  // What of a part is payload, and of no use here when it was sent away:
  // digests of the rest are still to be made.
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

// Sorts what is to be done by where it goes instead of where it comes from.
void order_by_target(Plan& plan);

// The order in which fewer bytes of the target are begun and not whole, if
// that is much.
void order_for_sending(Plan& plan, const Target& target);

}  // namespace ckpt::reshard
