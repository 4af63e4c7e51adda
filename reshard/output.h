// SPDX-License-Identifier: Apache-2.0
// Where the engine's bytes go: files that exist already with their full size,
// memory, or nowhere.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/layout.h"
#include "reshard/carrier.h"
#include "reshard/journal.h"
#include "reshard/sources.h"

namespace ckpt::reshard {

class Output {
 public:
  // Nowhere: for plans that only read.
  Output() = default;
  // The target's files below `root`, which must exist ("": file paths as they
  // are).
  Output(const Target& target, const std::string& root);
  // Memory: file i is buffers[i], of the target file's size.
  explicit Output(std::vector<std::span<std::byte>> buffers);

  // Files that `carrier` takes are another process's: it gets their bytes.
  void send_by(Carrier& carrier) { carrier_ = &carrier; }

  // Gathers parts (clobbered) to file bytes [offset, …). Thread-safe; no two
  // writes may touch the same byte. `known`: the CRC-32 of all the bytes, if
  // it was made already. Returns what the bytes gave to a CRC.
  CrcPart write(uint32_t file, uint64_t offset, std::span<iovec> parts,
                std::optional<uint32_t> known = {});
  // Shares bytes with the source inside the file system where it can (XFS,
  // btrfs) and both offsets lie alike in their blocks: then [head, tail) of
  // the range is done, and only the rest is to be written. Else, or where a
  // CRC is wanted of the bytes, nothing is done and head = tail = count.
  void clone(const io::Handle& from, uint64_t from_offset, uint32_t file,
             uint64_t offset, uint64_t count, uint64_t& head, uint64_t& tail);
  // False if clone() will do nothing.
  bool may_clone() const { return handles_ && *clones_; }
  // See reshard/behind.h; nothing where the target is not a file.
  void start_writeback(uint32_t file, uint64_t offset, uint64_t count) const;
  void settle(uint32_t file, uint64_t offset, uint64_t count) const;
  // Adds what an earlier run wrote, or another process.
  void add_crc(const CrcPart& part);
  // What was written gave to CRCs; parts that are zero are left out.
  std::vector<CrcPart> crc_parts() const;
  // After all writes: the literals, and the CRCs of what was written.
  void write_literals(uint32_t file);

  // The same of one CRC whose bytes are all written, where literals are.
  void write_crc(uint32_t file, uint32_t index);

  const std::string& path(uint32_t file) const { return paths_[file]; }

 private:
  CrcPart crc_of(uint32_t file, uint64_t offset, std::span<const iovec> parts,
                 std::optional<uint32_t> known = {}) const;
  void add_known(uint32_t file);

  struct Patch {
    uint64_t at = 0;  // byte of the file
    uint32_t crc = 0;
  };
  std::vector<Patch> patches_of(uint32_t file) const;  // sorted
  bool is_remote(uint32_t file) const {
    return carrier_ && carrier_->takes(file);
  }

  const Target* target_ = nullptr;
  Carrier* carrier_ = nullptr;
  // The first refusal is remembered: asking costs a system call a block.
  std::unique_ptr<std::atomic<bool>> clones_ =
      std::make_unique<std::atomic<bool>>(true);
  std::vector<std::string> paths_;
  std::vector<std::span<std::byte>> buffers_;
  std::unique_ptr<HandleCache> handles_;
  // One value for each LateCrc of each file; parts arrive in any order.
  std::vector<std::unique_ptr<std::atomic<uint32_t>[]>> crcs_;
};

}  // namespace ckpt::reshard
