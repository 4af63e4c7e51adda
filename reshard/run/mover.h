// SPDX-License-Identifier: Apache-2.0
// One worker: its buffers, its reader, and the three ways to move bytes.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/io/buffer.h"
#include "lib/io/remote.h"
#include "reshard/plan/work.h"
#include "reshard/run/behind.h"
#include "reshard/run/output.h"
#include "reshard/run/run_options.h"
#include "reshard/sources/direct.h"
#include "reshard/sources/source_crcs.h"
#include "reshard/sources/sources.h"

namespace ckpt::reshard {

// Runs of fewer bytes are copied together before they are written: an entry
// of a vectored write costs about as much as copying this many.
inline constexpr uint64_t kPackBelow = 512;

class Mover {
 public:
  // `block`: bytes of each of the two buffers. `crcs` may be null.
  Mover(const Plan& plan, const Catalog& source, Output& output,
        OpenSources& open, const RunOptions& options, uint64_t block,
        SourceCrcs* crcs);

  // Returns what the item produced besides its bytes.
  const Outcome& run(const Item& item);

  // Call before run(item): asks the disk or the server for what this item and
  // the next ones will read and is not in memory, about `most` bytes. Returns
  // how many of the next ones that are.
  size_t look_ahead(const Item& item, std::span<const Item> next,
                    uint64_t most = UINT64_MAX);
  // True if the item would not wait for a server.
  bool is_there(const Item& item);
  // True if none of its reads would ask a server for anything.
  bool has_arrived(const Item& item);

  // From here on nothing that is moved stays in the page cache, except what was
  // there already.
  void drop_behind() { behind_.turn_on(); }
  void read_around(const DirectReads& reads);

  uint64_t bytes_read() const { return reader_.bytes_read(); }
  uint64_t bytes_written() const { return bytes_written_; }

 private:
  friend class DeviceMover;  // reads, writes and accounts as this one does

  // A source lane's rows in memory.
  struct Loaded {
    std::byte* data = nullptr;
    uint64_t stride = 0;  // bytes between rows
  };

  // ahead.cc
  void ask_for(const Item& item);
  bool reads_around(const Job& job) const;
  void ask_cache(const Job& job, const Item& item);
  void ask_wanted(bool more);
  bool is_far(const Item& item) const;
  void want_rows(const Job& job, const Item& item);
  void want_columns(const Job& job, uint64_t row, uint64_t begin, uint64_t end);

  // move_run.cc: columns [begin, end) of a job of one row.
  void run_columns(const Job& job, uint64_t row, uint64_t begin, uint64_t end);
  // Columns [low, high) that `moves` want together.
  void copy_columns(const Job& job, uint64_t row, std::span<const Move> moves,
                    uint64_t low, uint64_t high);
  // The first move and those that want the same source bytes.
  static std::span<const Move> same_source(std::span<const Move> moves);
  // Source bytes that fit a block, even after a cast.
  uint64_t column_step(const Job& job) const;
  // True if nothing needs to see the bytes of this move.
  bool is_blind(const Job& job, const Move& move) const;
  // Shares bytes with the source where the file system can; [head, tail) of
  // `count` is done then.
  void share(const Lane& source, uint64_t from, uint32_t file, uint64_t offset,
             uint64_t count, uint64_t& head, uint64_t& tail);
  // move_strided.cc: rows [begin, end).
  void run_rows(const Job& job, uint64_t begin, uint64_t end);
  // Rows that fit a block; 0 if not even one does.
  uint64_t row_step(const Job& job) const;
  void move_block(const Job& job, uint64_t row, uint64_t rows);
  void load(const Lane& lane, uint64_t row, uint64_t rows, Loaded& loaded);
  void digest_block(const Job& job, uint64_t row, uint64_t rows);
  void cast_block(const Job& job, uint64_t row, uint64_t rows);
  void write_lane(const Job& job, uint32_t target, uint64_t row, uint64_t rows);
  // gather.cc
  const Outcome& move(const Item& item);
  uint32_t tensor_of(const Item& item) const;
  void run_gather(const Gather& gather);
  void emit_tile(const Gather& gather, const Dims& begin, const Dims& shape);

  // Adds a run of logical source bytes to its digest, and shows it to the
  // observer.
  void account(uint32_t digest_slot, uint32_t check_slot, uint32_t tensor,
               uint64_t offset, std::span<const std::byte> bytes);
  // Returns the CRC-32 of the bytes if it was computed on the way.
  void read_unchecked(uint32_t file, uint64_t offset,
                      std::span<std::byte> bytes);
  void read_rows(const Lane& lane, uint64_t first, uint64_t rows,
                 std::span<std::byte> bytes);
  std::optional<uint32_t> read(uint32_t file, uint64_t offset,
                               std::span<std::byte> bytes);
  void add_source(uint32_t slot, const Digest& part);
  void add_target(uint32_t tensor, const Digest& part);
  // Of `rows` runs of source bytes, before they are cast.
  void count_losses(uint32_t tensor, const std::byte* data, uint64_t stride,
                    uint64_t bytes, uint64_t rows);
  void write(uint32_t file, uint64_t offset, std::span<iovec> parts,
             std::optional<uint32_t> crc = {});
  // `count` elements, in() to `out`.
  void cast(const PlannedTensor& tensor, const std::byte* in, std::byte* out,
            uint64_t count);
  // Moves source bytes to the target unchanged: shares them if the file system
  // can (Output::clone), else writes `bytes`. `crc`: theirs, if known.
  void write_same(const Lane& source, uint64_t from, uint32_t file,
                  uint64_t offset, std::span<std::byte> bytes,
                  std::optional<uint32_t> crc);
  void leave_behind();
  void add_part(const std::byte* data, size_t bytes);

  const Plan& plan_;
  Output& output_;
  const RunOptions& options_;
  const uint64_t block_;
  const std::vector<File>& files_;
  DirectCache& direct_files_;
  SourceReader reader_;
  std::optional<DirectReader> direct_;
  SourceCrcs* crcs_;
  const io::Buffer buffer_;  // both blocks
  std::byte* const in_;
  std::byte* const out_;
  std::vector<Loaded> loaded_;
  std::vector<iovec> parts_;
  Outcome outcome_;  // of the current item
  Behind behind_;
  std::optional<Item> asked_;  // the last one that was asked for
  // What is asked for together, and the bytes of all items so far.
  struct Wanted {
    uint32_t file;
    io::Range range;
    bool last;  // of the last item
  };
  std::vector<Wanted> wanted_;
  uint64_t wanted_bytes_ = 0;
  bool asked_was_cached_ = false;
  bool was_cached_ = false;  // the current one, before anybody asked
  uint64_t bytes_written_ = 0;
};

}  // namespace ckpt::reshard
