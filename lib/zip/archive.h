// SPDX-License-Identifier: Apache-2.0
// Zip archives as torch writes them and people re-zip them.
//
//   | local header | name | extra | data | descriptor | … | central directory
//   | zip64 end record | zip64 locator | end record |
//
// Reading starts at the end: the central directory lists the entries, and each
// entry's local header says where its data begins. Writing is planned: every
// offset is known before a byte is written (docs/formats/torch_pickle.md 2, 3).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/layout.h"
#include "lib/io/file.h"

namespace ckpt::zip {

inline constexpr uint16_t kStored = 0;
inline constexpr uint16_t kDeflated = 8;

struct Entry {
  std::string name;
  uint64_t header_offset = 0;
  uint64_t data_offset = 0;  // read from the local header, or …
  bool computed = false;     // … by torch's rule (Headers::kComputed)
  uint64_t packed_size = 0;
  uint64_t size = 0;
  uint16_t method = kStored;
  uint16_t flags = 0;
  uint32_t crc32 = 0;  // 0 with data: the writer left out checksums
};

// Whether local headers are read, which in a file of large records is one read
// each, or the start of data is computed from torch's layout. The latter is for
// callers that open files by the thousand and call check_headers before relying
// on it.
enum class Headers : uint8_t { kRead, kComputed };

class Archive {
 public:
  // Reads and checks all headers; no payload. Refuses, with an input_error that
  // names the record and the offset: a missing or doubled end record, directory
  // or records outside the file, overlapping records, duplicate names, a local
  // header that is missing or names another record, encryption, methods other
  // than stored and deflated, stored records of two sizes, counts that don't
  // agree. Of local headers that are not read, only what the directory says is
  // checked.
  static Archive read(const io::Handle& file, Headers headers = Headers::kRead);

  // Move-only: the index refers to the names in the entries.
  Archive(Archive&&) = default;
  Archive& operator=(Archive&&) = default;

  const std::vector<Entry>& entries() const { return entries_; }
  const Entry* find(std::string_view name) const;

 private:
  Archive() = default;
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

// Reads all local headers. Throws input_error if one is not what
// Headers::kComputed assumed.
void check_headers(const io::Handle& file);

// The whole content of a small record, inflated if necessary; checks the CRC
// unless it is 0. Throws input_error if it is larger than `limit` or doesn't
// inflate to the declared size.
std::string read_entry(const io::Handle& file, const Entry& entry,
                       uint64_t limit);

// Where extents find a record's bytes: in the file itself, or inflated from it,
// for which the catalog gets a file of its own. Its checksum goes with them.
struct Place {
  uint32_t file = 0;
  uint64_t offset = 0;
};
Place place_entry(const Entry& entry, uint32_t file, Catalog& catalog);

// Checks the CRC of a record of any size, block by block, unless it is 0.
// Throws input_error that names the record.
void check_entry(const io::Handle& file, const Entry& entry);

// Where an archive has the checksum of each of its entries, in their order: in
// the directory, and in the local header or in the descriptor after the data.
std::vector<std::vector<uint64_t>> crc_places(const io::Handle& file,
                                              const Archive& archive);

// --- writing ---
struct Record {
  std::string name;  // below the root
  uint64_t size = 0;
  std::optional<std::string> content = {};  // absent: payload comes later
};

struct PlannedArchive {
  uint64_t size = 0;                   // of the whole file
  std::vector<uint64_t> data_offsets;  // of each record
  std::vector<Literal> literals;       // headers, contents, directory
  std::vector<LateCrc> crcs;           // of records without content
};

// Lays out records exactly as torch 2.13 does: stored, data aligned with an
// "FB" extra, data descriptors, zip64 where needed, and always a zip64 end
// record.
PlannedArchive plan_archive(const std::string& root,
                            const std::vector<Record>& records,
                            uint64_t alignment = 64);

// A record of Python's zipfile: known bytes, then payload.
struct Member {
  std::string name;
  std::string head;
  uint64_t payload = 0;
};

// Lays out members as Python's zipfile does for numpy.savez: stored, zip64
// sizes in each local header, and a zip64 end record where it is needed. The
// offsets are those of payload.
PlannedArchive plan_zipfile(const std::vector<Member>& members);

}  // namespace ckpt::zip
