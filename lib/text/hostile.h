// SPDX-License-Identifier: Apache-2.0
// Characters that must not be shown to people unescaped in a name.
#pragma once

namespace ckpt::text {

// They move the cursor, change the direction of text or are invisible: C0 and
// C1 controls, DEL, the soft hyphen, line separators, bidirectional marks,
// embeddings, overrides and isolates, zero-width characters, the byte order
// mark, and tag characters.
constexpr bool is_hostile(char32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0xad || c == 0x61c ||
         c == 0x180e || (c >= 0x200b && c <= 0x200f) ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) ||
         c == 0xfeff || (c >= 0xfff9 && c <= 0xfffb) ||
         (c >= 0xe0000 && c < 0xe0080);
}

}  // namespace ckpt::text
