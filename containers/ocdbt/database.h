// SPDX-License-Identifier: Apache-2.0
// TensorStore's OCDBT, a database of keys and values in files: what Orbax keeps
// arrays in unless it is told otherwise.
//
//   DIR/manifest.ocdbt    where the newest version's root node is
//   DIR/d/HEX             nodes of a B+tree, and values; also those of other
//   DIR/ocdbt.…/d/HEX     databases, by relative paths
//
//   node    magic, length, version, compression | body, maybe zstd | CRC-32C
//   leaf    keys with a value each: in the node, or a range of a data file
//
// Rules: the format's description in TensorStore (kvstore/ocdbt).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::ocdbt {

struct Value {
  // Where it is, if it is not in the node: a range of that file.
  std::string path;
  uint64_t offset = 0;
  uint64_t size = 0;
  std::string inline_bytes;  // else
};

// All keys of the newest version, by name.
using Database = std::map<std::string, Value, std::less<>>;

// With the polynomial of iSCSI.
uint32_t crc32c(std::string_view bytes);

// True if the directory has a manifest.ocdbt.
bool is_database(const std::string& directory);

// Reads the manifest and the tree's nodes, and no value in a data file. Throws
// input_error for damage (a checksum, a range outside of its file),
// unsafe_error for a data file outside of the directory, LostFile for one that
// is not there.
Database read_database(const std::string& directory);

// A value's bytes. Throws input_error, naming the key, for one of more than
// `most` bytes.
std::string read_value(const std::string& key, const Value& value,
                       uint64_t most);

}  // namespace ckpt::ocdbt
