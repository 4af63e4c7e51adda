// SPDX-License-Identifier: Apache-2.0
// One block of an item as a value: what to read, what the device does with it,
// what to write. Pure; cuda/mover.h carries it out.
#pragma once

#include <utility>
#include <vector>

#include "reshard/cuda/load.h"
#include "reshard/plan/plan.h"
#include "reshard/plan/tiles.h"
#include "reshard/plan/work.h"

namespace ckpt::reshard {

struct Block {
  struct Read {
    uint32_t file = 0;
    uint64_t offset = 0;  // in the file
    uint64_t at = 0;      // in the buffer
    uint64_t bytes = 0;
    bool checked = true;  // false: other blocks read these bytes, too
  };
  // What a digest is added to; kNone: nothing.
  struct Counts {
    uint32_t slot = kNone;
    uint32_t check = kNone;
    uint32_t target = kNone;  // tensor
  };
  // `bytes` at each index of `steps`: in the file, in the buffer.
  struct Write {
    struct Step {
      uint64_t size = 1;
      uint64_t offset = 0;
      uint64_t at = 0;
    };
    uint32_t file = 0;
    uint64_t offset = 0;
    uint64_t at = 0;
    uint64_t bytes = 0;
    std::vector<Step> steps;
  };

  std::vector<Read> reads;
  std::vector<CkptCudaCopy> copies;
  std::vector<CkptCudaDigest> digests;
  std::vector<Counts> counts;  // for each digest
  std::vector<Write> writes;
  uint64_t in_bytes = 0;
  uint64_t out_bytes = 0;
  uint64_t wanted = 0;  // bytes of payload, for the progress

  void clear();
};

// The blocks of one item, one by one.
class Blocks {
 public:
  // `room`: bytes of a buffer. `count`: casts that may lose elements are not
  // for the device.
  Blocks(const Plan& plan, const CudaModule& module, uint64_t room, bool digest,
         bool count = false)
      : plan_(plan),
        module_(module),
        room_(room),
        digest_(digest),
        count_(count) {}

  // False if the item is not for the device: bytes that only move from file to
  // file, which the file system may even share; elements that it can't cast;
  // rows too long for a buffer; stored elements that differ from the logical
  // ones (byte order, signs).
  bool begin(const Item& item);
  // False at the item's end.
  bool next(Block& block);

 private:
  enum class Kind : uint8_t { kColumns, kRows, kGather };

  bool begin_job(const Job& job);
  bool begin_gather(const Gather& gather);
  bool cast_of(const PlannedTensor& tensor);
  uint64_t scaled(uint64_t bytes) const {
    return casts_ ? bytes / from_ * to_ : bytes;
  }

  bool next_columns(Block& block);
  void start_group();
  bool next_rows(Block& block);
  void read_lanes(const Job& job, uint64_t row, uint64_t rows, Block& block);
  void move_lanes(const Job& job, uint64_t row, uint64_t rows, Block& block);
  bool next_tile(Block& block);
  void fill_tile(const Gather& gather, const Dims& begin, const Dims& shape,
                 Block& block) const;
  void add_digest(const CkptCudaDigest& digest, Block::Counts counts,
                  Block& block) const;
  CkptCudaCopy plain_copy() const;
  CkptCudaCopy cast_copy() const;

  const Plan& plan_;
  const CudaModule& module_;
  const uint64_t room_;
  const bool digest_;
  const bool count_;

  Kind kind_ = Kind::kColumns;
  Item item_;
  bool casts_ = false;
  CudaModule::Cast cast_;
  uint64_t from_ = 1;  // element size in bytes
  uint64_t to_ = 1;
  uint64_t at_ = 0;  // the next row, or column of the group
  uint64_t end_ = 0;
  uint64_t step_ = 0;  // rows of a block
  uint32_t move_ = 0;  // kColumns: current group of moves
  uint32_t group_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> lanes_;  // at, stride in memory
  Tiles tiles_;                                       // of the gather
};

}  // namespace ckpt::reshard
