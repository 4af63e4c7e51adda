// One worker: its buffers, its reader, and the three ways to move bytes.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/io/buffer.h"
#include "reshard/behind.h"
#include "reshard/engine.h"
#include "reshard/output.h"
#include "reshard/source_crcs.h"
#include "reshard/sources.h"
#include "reshard/work.h"

namespace ckpt::reshard {

// Runs of fewer bytes are copied together before they are written: an entry
// of a vectored write costs about as much as copying this many.
inline constexpr uint64_t kPackBelow = 512;

class Mover {
 public:
  // `block`: bytes of each of the two buffers. `crcs` may be null.
  Mover(const Plan& plan, const Catalog& source, Output& output,
        HandleCache& handles, const RunOptions& options, uint64_t block,
        SourceCrcs* crcs);

  // Returns what the item gave besides its bytes.
  const Outcome& run(const Item& item);

  // Has the disk fetch what the item will read and is not in memory.
  void ask_for(const Item& item);

  // From here on nothing that was moved stays in the page cache.
  void drop_behind() { behind_.turn_on(); }

  uint64_t bytes_read() const { return reader_.bytes_read(); }
  uint64_t bytes_written() const { return bytes_written_; }

 private:
  friend class DeviceMover;  // reads, writes and accounts as this one does

  // A source lane's rows in memory.
  struct Loaded {
    std::byte* data = nullptr;
    uint64_t stride = 0;  // bytes between rows
  };

  // move_run.cc: columns [begin, end) of a job of one row.
  void run_columns(const Job& job, uint64_t row, uint64_t begin, uint64_t end);
  // Columns [low, high) of what all `moves` want.
  void copy_columns(const Job& job, uint64_t row, std::span<const Move> moves,
                    uint64_t low, uint64_t high);
  // True if nobody has to see the bytes of this move.
  bool is_blind(const Job& job, const Move& move) const;
  // Shares bytes with the source where the file system can; [head, tail) is
  // what it did of `count`.
  void share(const Lane& source, uint64_t from, uint32_t file, uint64_t offset,
             uint64_t count, uint64_t& head, uint64_t& tail);
  // move_strided.cc: rows [begin, end).
  void run_rows(const Job& job, uint64_t begin, uint64_t end);
  void move_block(const Job& job, uint64_t row, uint64_t rows);
  void load(const Lane& lane, uint64_t row, uint64_t rows, Loaded& loaded);
  void digest_block(const Job& job, uint64_t row, uint64_t rows);
  void cast_block(const Job& job, uint64_t row, uint64_t rows);
  void write_lane(const Job& job, uint32_t target, uint64_t row, uint64_t rows);
  // gather.cc
  void run_gather(const Gather& gather);
  void emit_tile(const Gather& gather, const Dims& begin, const Dims& shape);

  // What is known of a run of logical source bytes: its digest, the observer.
  void account(uint32_t digest_slot, uint32_t check_slot, uint32_t tensor,
               uint64_t offset, std::span<const std::byte> bytes);
  // Returns the CRC-32 of the bytes if it was made on the way.
  std::optional<uint32_t> read(uint32_t file, uint64_t offset,
                               std::span<std::byte> bytes);
  void add_source(uint32_t slot, const Digest& part);
  void add_target(uint32_t tensor, const Digest& part);
  void write(uint32_t file, uint64_t offset, std::span<iovec> parts,
             std::optional<uint32_t> crc = {});
  // `count` elements, in() to `out`.
  void cast(const PlannedTensor& tensor, const std::byte* in, std::byte* out,
            uint64_t count);
  // Source bytes go to the target as they are: shares them if the file system
  // can (Output::clone), else writes `bytes`. `crc`: of them, if it is known.
  void write_same(const Lane& source, uint64_t from, uint32_t file,
                  uint64_t offset, std::span<std::byte> bytes,
                  std::optional<uint32_t> crc);
  void leave_behind();
  void add_part(const std::byte* data, size_t bytes);

  const Plan& plan_;
  Output& output_;
  const RunOptions& options_;
  const uint64_t block_;
  SourceReader reader_;
  SourceCrcs* crcs_;
  const io::Buffer buffer_;  // both blocks
  std::byte* const in_;
  std::byte* const out_;
  std::vector<Loaded> loaded_;
  std::vector<iovec> parts_;
  Outcome outcome_;  // of the current item
  Behind behind_;
  uint64_t bytes_written_ = 0;
};

}  // namespace ckpt::reshard
