// SPDX-License-Identifier: Apache-2.0
// Where the engine's bytes go: files that already exist at full size, memory,
// or nowhere.
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
#include "reshard/run/carrier.h"
#include "reshard/run/journal.h"
#include "reshard/sources/sources.h"

namespace ckpt::reshard {

class Output {
 public:
  // Discards everything: for plans that only read.
  Output() = default;
  // The target's files below `root`, which must exist ("": file paths as they
  // are).
  Output(const Target& target, const std::string& root);
  // Memory: file i is buffers[i], of the target file's size.
  explicit Output(std::vector<std::span<std::byte>> buffers);

  // `carrier` gets the bytes of files that it takes: those are another
  // process's.
  void send_by(Carrier& carrier) { carrier_ = &carrier; }

  // Gathers parts (clobbered) into file bytes [offset, …). Thread-safe; no two
  // writes may touch the same byte. `known`: the CRC-32 of all the bytes, if
  // already computed. Returns what the bytes add to a CRC.
  CrcPart write(uint32_t file, uint64_t offset, std::span<iovec> parts,
                std::optional<uint32_t> known = {});
  // Shares bytes with the source inside the file system if it can (XFS, btrfs)
  // and both offsets are at the same place in their blocks: then [head, tail)
  // of the range is done, and only the rest remains to be written. Otherwise,
  // or if the bytes need a CRC, does nothing and head = tail = count.
  void clone(const io::Handle& from, uint64_t from_offset, uint32_t file,
             uint64_t offset, uint64_t count, uint64_t& head, uint64_t& tail);
  // False if clone() will do nothing.
  bool may_clone() const { return handles_ && *clones_; }
  // See reshard/run/behind.h; nothing where the target is not a file.
  void start_writeback(uint32_t file, uint64_t offset, uint64_t count) const;
  void settle(uint32_t file, uint64_t offset, uint64_t count) const;
  // Adds what an earlier run, or another process, wrote.
  void add_crc(const CrcPart& part);
  // What the written bytes added to CRCs; zero parts are left out.
  std::vector<CrcPart> crc_parts() const;
  // After all writes: writes the literals, and the CRCs of what was written.
  void write_literals(uint32_t file);

  // The same for one CRC, once all its bytes and the literals are written.
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
  // Remembers the first refusal: asking costs a system call per block.
  std::unique_ptr<std::atomic<bool>> clones_ =
      std::make_unique<std::atomic<bool>>(true);
  std::vector<std::string> paths_;
  std::vector<std::span<std::byte>> buffers_;
  std::unique_ptr<HandleCache> handles_;
  // One value for each LateCrc of each file; parts arrive in any order.
  std::vector<std::unique_ptr<std::atomic<uint32_t>[]>> crcs_;
};

}  // namespace ckpt::reshard
