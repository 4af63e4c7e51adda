// SPDX-License-Identifier: Apache-2.0
// The fixed parts of a zip archive; all numbers are little-endian.
//
//   local header      u32 PK\3\4 | u16 needed | u16 flags | u16 method
//     (30 bytes)      | u16 time | u16 date | u32 crc | u32 packed size
//                     | u32 size | u16 name length | u16 extra length
//                     | name | extra | data
//   data descriptor   u32 PK\7\8 | u32 crc | packed size | size; u32 each, or
//                     u64 each if the record is zip64
//   directory entry   u32 PK\1\2 | u16 made by | u16 needed | u16 flags
//     (46 bytes)      | u16 method | u16 time | u16 date | u32 crc
//                     | u32 packed size | u32 size | u16 name length
//                     | u16 extra length | u16 comment length | u16 disk
//                     | u16 internal | u32 external | u32 header offset
//                     | name | extra | comment
//   zip64 end record  u32 PK\6\6 | u64 size of what follows (44) | u16 made by
//     (56 bytes)      | u16 needed | u32 disk | u32 directory's disk
//                     | u64 entries here | u64 entries | u64 directory size
//                     | u64 directory offset
//   zip64 locator     u32 PK\6\7 | u32 disk | u64 offset of the end record
//     (20 bytes)      | u32 disks
//   end record        u32 PK\5\6 | u16 disk | u16 directory's disk
//     (22 bytes)      | u16 entries here | u16 entries | u32 directory size
//                     | u32 directory offset | u16 comment length | comment
//
// A 32-bit field of all ones means that its value is in the zip64 extra field
// (id 1) of the entry, or in the zip64 end record.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace ckpt::zip {

inline constexpr uint32_t kLocalSignature = 0x04034B50;
inline constexpr uint32_t kDescriptorSignature = 0x08074B50;
inline constexpr uint32_t kDirectorySignature = 0x02014B50;
inline constexpr uint32_t kEnd64Signature = 0x06064B50;
inline constexpr uint32_t kLocatorSignature = 0x07064B50;
inline constexpr uint32_t kEndSignature = 0x06054B50;

inline constexpr uint64_t kLocalSize = 30;
inline constexpr uint64_t kDirectoryEntrySize = 46;
inline constexpr uint64_t kCrcInEntry = 16;
inline constexpr uint64_t kCrcInLocal = 14;
inline constexpr uint64_t kEnd64Size = 56;
inline constexpr uint64_t kLocatorSize = 20;
inline constexpr uint64_t kEndSize = 22;

inline constexpr uint16_t kFlagEncrypted = 1 << 0;
inline constexpr uint16_t kFlagDescriptor = 1 << 3;
inline constexpr uint16_t kFlagPatch = 1 << 5;
inline constexpr uint16_t kFlagStrongEncryption = 1 << 6;
inline constexpr uint16_t kFlagUtf8 = 1 << 11;
inline constexpr uint16_t kFlagMasked = 1 << 13;

inline constexpr uint16_t kZip64Extra = 1;
inline constexpr uint64_t kMax16 = 0xFFFF;
inline constexpr uint64_t kMax32 = 0xFFFFFFFF;

// The caller has checked that the bytes are there.
template <class T>
T load(std::string_view bytes, uint64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace ckpt::zip
