// SPDX-License-Identifier: Apache-2.0
// Carries the payload of an exchange from a slot of its sender to one of its
// receiver: by messages of the link, or in rounds between GPUs (rounds.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>

#include "reshard/ranks/link.h"
#include "reshard/ranks/note.h"

namespace ckpt::ranks {

inline constexpr uint64_t kSlotAlign = 256;  // what GPUs copy best

// Except for stop(), all functions that take a link are called by the thread
// that talks, and never wait.
class Wire {
 public:
  virtual ~Wire() = default;
  // For the slots of one rank.
  virtual std::span<std::byte> memory() = 0;

  using Ticket = uint64_t;
  // Called by the receiver: begins to receive into `room`, and grants what was
  // asked for.
  virtual Ticket grant(Link& link, uint32_t to, const Note& note,
                       std::span<std::byte> room) = 0;
  // Called by the sender: sends what was granted. The bytes must not change
  // until done().
  virtual Ticket give(Link& link, uint32_t to, const Note& grant,
                      std::span<const std::byte> bytes) = 0;
  // How many bytes there were; nothing while they are in progress. A ticket is
  // invalid once it is done.
  virtual std::optional<uint64_t> done(Link& link, Ticket ticket) = 0;

  virtual void joined(uint32_t /*from*/, const Note& /*note*/) {}
  // True if something progressed.
  virtual bool pump() { return false; }
  // Called when the exchange has been stopped, from any thread.
  virtual void stop() {}
  // Why nothing more is carried; all tickets are then done, without bytes.
  virtual std::exception_ptr failure() const { return nullptr; }
  // Rounds between GPUs so far.
  virtual uint64_t rounds() const { return 0; }
};

// By messages, which the link keeps in order. Memory is only what is touched.
class LinkWire : public Wire {
 public:
  explicit LinkWire(uint64_t bytes)
      : bytes_(bytes),
        memory_(std::make_unique_for_overwrite<std::byte[]>(bytes)) {}
  std::span<std::byte> memory() override { return {memory_.get(), bytes_}; }
  Ticket grant(Link& link, uint32_t to, const Note& note,
               std::span<std::byte> room) override {
    // First the receive, then the grant: the bytes never arrive unexpectedly.
    const Ticket ticket = link.take(to, note.channel, room);
    post(link, to, Tag::kGrant, note);
    return ticket;
  }
  Ticket give(Link& link, uint32_t to, const Note& grant,
              std::span<const std::byte> bytes) override {
    return link.give(to, grant.channel, bytes);
  }
  std::optional<uint64_t> done(Link& link, Ticket ticket) override {
    return link.done(ticket);
  }

 private:
  uint64_t bytes_;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace ckpt::ranks
