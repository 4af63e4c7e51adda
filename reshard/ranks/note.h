// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other about messages of an exchange.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "ckpt/error.h"
#include "reshard/ranks/link.h"

namespace ckpt::ranks {

struct Note {
  uint32_t round = 0;  // unique in a job; notes with another are old
  uint32_t channel = 0;
  uint64_t id = 0;  // of the sender's message
  // If payload goes in rounds (rounds.h): for kGrant the first round that it
  // may be in, for kJoin the one that it is in. Else 0.
  uint64_t turn = 0;
  uint64_t bytes = 0;  // for kJoin; 0: nothing comes
};

inline Note note_of(const Message& message) {
  Note note;
  if (message.bytes.size() != sizeof(note))
    throw bug_error({}, "a note of {} bytes from rank {}", message.bytes.size(),
                    message.from);
  std::memcpy(&note, message.bytes.data(), sizeof(note));
  return note;
}

inline void post(Link& link, uint32_t to, Tag tag, const Note& note) {
  link.post(to, tag, {reinterpret_cast<const char*>(&note), sizeof(note)});
}

}  // namespace ckpt::ranks
