// SPDX-License-Identifier: Apache-2.0
// Checking the checksums that a source stores while its bytes pass by: a
// damaged byte must not be copied as if it were sound.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ckpt/catalog.h"
#include "reshard/plan/plan.h"

namespace ckpt::reshard {

// One for a run; all functions but the first may be called from any thread.
class SourceCrcs {
 public:
  explicit SourceCrcs(const Catalog& catalog);

  // Bytes [offset, …) of catalog.files[file], as the container has them.
  // Returns their CRC-32 if they are bytes of one record.
  std::optional<uint32_t> add(uint32_t file, uint64_t offset,
                              std::span<const std::byte> bytes);

  // What has passed by of one record, in this process or in another.
  struct Seen {
    uint32_t index = 0;  // in catalog.crcs
    uint32_t crc = 0;    // what these bytes give to the CRC-32 of the record
    uint64_t bytes = 0;
  };
  std::vector<Seen> seen() const;  // of records of which bytes have passed
  void add(const Seen& part);      // throws bug_error for an unknown record

  // Indexes into catalog.crcs of records that were read completely, each byte
  // once, and do not have their checksum.
  std::vector<uint32_t> wrong(const Plan& plan) const;
  // Records that were not read so, although the plan takes at least half of
  // what is in them, or anything of a small one: padded storages, strided
  // tensors, work that an earlier run did. They have to be read on their own.
  // Of large records that the plan takes less of, nothing is said: tensors were
  // left out.
  std::vector<uint32_t> unsure(const Plan& plan) const;
  // Those others.
  std::vector<uint32_t> left_out(const Plan& plan) const;

 private:
  // Bytes [begin, end) of a file.
  struct Span {
    uint32_t file = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  static std::vector<Span> spans_of(const Plan& plan);
  void plan_bytes(uint32_t file, uint64_t offset, uint64_t bytes,
                  std::vector<uint64_t>& planned) const;
  // What the plan takes of each record of records_.
  std::vector<uint64_t> planned_bytes(const Plan& plan) const;
  // True if what is taken of a record of so many bytes is worth reading it
  // whole.
  static constexpr uint64_t kSmall = uint64_t{64} << 20;
  static bool is_taken(uint64_t planned, uint64_t size) {
    return planned != 0 && (planned >= size / 2 || size <= kSmall);
  }

  struct Record {
    uint32_t file = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
    uint32_t index = 0;  // in catalog.crcs
    uint32_t crc32 = 0;
  };
  struct Sum {
    std::atomic<uint32_t> crc = 0;
    std::atomic<uint64_t> bytes = 0;
  };
  std::vector<Record> records_;  // by file and begin
  std::vector<uint32_t> place_;  // of a record in records_, by its index
  std::unique_ptr<Sum[]> sums_;

 public:
  // Bytes for each record.
  static constexpr uint64_t kMemory =
      sizeof(Record) + sizeof(uint32_t) + sizeof(Sum);
};

}  // namespace ckpt::reshard
