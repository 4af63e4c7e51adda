// SPDX-License-Identifier: Apache-2.0
// Takes bytes to target files that other processes write.
//
//   worker ── Output::write ─┬─ own file: pwritev
//                            └─ another's: deliver() ~~► its process: pwritev
//
// Messages carry them today (ranks/exchange.h). Anything else may, if it
// guarantees that
// - what was delivered is written once, at its place, or the job fails;
// - the parts are the caller's again when deliver() returns;
// - its memory is bounded, whatever is delivered: deliver() waits for room,
//   and the wait ends, with an exception, when the job is stopped;
// - what runs after when_written() may be believed even if the machine that
//   wrote the bytes crashes while this one continues;
// - all functions may be called from many threads, finish() from one, last.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <span>

namespace ckpt::reshard {

class Carrier {
 public:
  virtual ~Carrier() = default;
  // True if another process writes the file.
  virtual bool takes(uint32_t file) const = 0;
  // The parts go to file bytes [offset, …).
  virtual void deliver(uint32_t file, uint64_t offset,
                       std::span<const iovec> parts) = 0;
  // Calls `then` after everything delivered before it has been written, from
  // any thread that calls this object; never, if that can't be known.
  virtual void when_written(std::function<void()> then) = 0;
  // Returns when everything that any process delivered is written.
  virtual void finish() = 0;
};

}  // namespace ckpt::reshard
