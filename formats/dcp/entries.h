// SPDX-License-Identifier: Apache-2.0
// What a .metadata file says, checked (metadata.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::dcp {

inline constexpr uint32_t kNoTransforms = 0;
inline constexpr uint32_t kNoFile = UINT32_MAX;

// An item of a .distcp file.
struct Stored {
  uint64_t offset = 0;
  uint64_t length = 0;
  uint32_t file = kNoFile;  // index into Metadata::files; max: none
  uint32_t transforms = 0;  // index into Metadata::transforms
};

struct Chunk {
  Box box;
  Stored stored;
};

struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape size;
  bool requires_grad = false;
  uint32_t position = 0;  // among all entries of state_dict_metadata
  // No chunk has volume zero: what an empty shard stores may have any shape.
  std::vector<Chunk> chunks;
};

struct BytesEntry {
  std::string name;
  Stored stored;
  uint32_t position = 0;
};

// An element of a planner path.
using PathElement = std::variant<std::string, int64_t>;

struct Metadata {
  std::string path;                // of the .metadata file
  std::string directory;           // base of relative paths
  std::string version;             // "1.0.0", or ""
  std::string root_class;          // "Metadata", "MCoreMetadata"
  std::vector<std::string> files;  // relative; checked: plain, inside, existing
  std::vector<uint64_t> sizes;     // of the files, in bytes
  std::vector<std::vector<std::string>> transforms{{}};  // [0]: none
  std::vector<TensorEntry> tensors;  // in the order of the pickle
  std::vector<BytesEntry> bytes;
  // Nothing if planner_data is None.
  std::optional<std::unordered_map<std::string, std::vector<PathElement>>>
      planner;
  // Megatron's mcore_data: nd_reformulated_orig_global_shape by name.
  std::unordered_map<std::string, Shape> original_shapes;
  bool has_mcore_data = false;
  std::vector<std::string> globals;  // sorted, unique
  std::vector<Problem> problems;
};

}  // namespace ckpt::dcp
