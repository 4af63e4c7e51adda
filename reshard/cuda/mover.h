// SPDX-License-Identifier: Apache-2.0
// One worker with a GPU: a ring of blocks (cuda/abi.h). This thread reads or
// writes one while the others are transferred and worked on.
//
//   block i+1   read from the files into its slot, submitted
//   block i     upload, kernels, download, on its slot's stream
//   block i-1   waited for, written, its digests added
//
// Reading, writing, checksums and what is known of an item go through the
// worker's Mover, which also handles the items that are not for a device.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "reshard/cuda/block.h"
#include "reshard/cuda/load.h"
#include "reshard/run/mover.h"

namespace ckpt::reshard {

class DeviceMover {
 public:
  // Blocks in progress at once. Two would do if reading and writing took no
  // time; a third keeps the device busy while they do.
  static constexpr uint32_t kSlots = 3;
  // A block is this many of the processor's: no cache has to hold it, and
  // starting the work on one takes some 20 us.
  static constexpr uint64_t kBlocks = 4;
  // Device memory of all rings together. With an exchange's messages it stays
  // below 512 MiB.
  static constexpr uint64_t kDeviceMemory = uint64_t{448} << 20;

  using Done = std::function<void(const Outcome&)>;

  // `block`: bytes of each buffer of a slot.
  DeviceMover(const CudaModule& module, const Plan& plan, Mover& host,
              const RunOptions& options, uint64_t block);

  // Starts an item; `done` is called with those that are finished, in any
  // order. After a signal, items stay unfinished.
  void run(const Item& item, const Done& done);
  // Finishes the items that were started.
  void finish(const Done& done);

  // Bytes of host memory for each byte of `block`, including a Mover's two.
  static constexpr uint64_t host_buffers() { return 2 + 2 * kSlots; }
  // The largest block for so many workers.
  static uint64_t most_block(uint32_t threads) {
    return kDeviceMemory / threads / (3 * kSlots);
  }

 private:
  struct Started {
    Outcome outcome;
    uint64_t blocks = 0;  // in progress
    bool whole = false;   // all blocks were submitted
  };
  struct Flight {
    uint32_t slot = 0;
    Block block;
    Started* item = nullptr;
  };

  void submit(Flight& flight);
  void read_part(const Block::Read& read, std::span<std::byte> bytes);
  void land(const Done& done);  // the oldest
  void add_sums(const Flight& flight, const std::vector<CkptCudaSum>& sums);
  void write(const Block& block, const std::byte* out);
  void settle(const Done& done);

  const CudaModule& module_;
  Mover& host_;
  const RunOptions& options_;
  CudaRing ring_;
  Blocks blocks_;
  std::deque<Flight> flights_;  // oldest first
  std::deque<Started> items_;   // likewise; addresses stay
  std::vector<CkptCudaSum> sums_;
  uint32_t next_slot_ = 0;
};

}  // namespace ckpt::reshard
