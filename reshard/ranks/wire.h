// SPDX-License-Identifier: Apache-2.0
// What carries the payload of an exchange from a slot of its sender to one of
// its receiver: messages of the link, or rounds between GPUs (rounds.h).
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

// But for stop(), all functions that have a link are of the thread that talks,
// and never wait.
class Wire {
 public:
  virtual ~Wire() = default;
  // For the slots of one rank.
  virtual std::span<std::byte> memory() = 0;

  using Ticket = uint64_t;
  // The receiver: begins to receive into `room`, and grants what was asked for.
  virtual Ticket grant(Link& link, uint32_t to, const Note& note,
                       std::span<std::byte> room) = 0;
  // The sender: what was granted. The bytes stay as they are until done().
  virtual Ticket give(Link& link, uint32_t to, const Note& grant,
                      std::span<const std::byte> bytes) = 0;
  // How many bytes there were; nothing while they are under way. A ticket is
  // over once it is done.
  virtual std::optional<uint64_t> done(Link& link, Ticket ticket) = 0;

  virtual void joined(uint32_t /*from*/, const Note& /*note*/) {}
  // True if something went on.
  virtual bool pump() { return false; }
  // The exchange has been stopped. From any thread.
  virtual void stop() {}
  // Why nothing is carried any more: all tickets are done then, without bytes.
  virtual std::exception_ptr failure() const { return nullptr; }
  // So far, between GPUs.
  virtual uint64_t rounds() const { return 0; }
};

// By messages, which the link keeps in order; memory is as much as is touched.
class LinkWire : public Wire {
 public:
  explicit LinkWire(uint64_t bytes)
      : bytes_(bytes),
        memory_(std::make_unique_for_overwrite<std::byte[]>(bytes)) {}
  std::span<std::byte> memory() override { return {memory_.get(), bytes_}; }
  Ticket grant(Link& link, uint32_t to, const Note& note,
               std::span<std::byte> room) override {
    // First the receive, then the word: the bytes never come unexpected.
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
