// SPDX-License-Identifier: Apache-2.0
// The .metadata file of a PyTorch distributed checkpoint: which boxes each
// tensor is made of, and which file holds the archive of each box.
//
//   Metadata
//     .state_dict_metadata  name -> size, dtype, chunks [(offsets, sizes)]
//                           name -> bytes (an object)
//     .storage_data         (name, offsets) -> (file, offset, length)
//     .planner_data         name -> path in the nested state dict
//
// A pickle of dataclasses; nothing is executed. The formats built on it read it
// too: Megatron's torch_dist, OLMo-core.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/format.h"

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

// Reads and checks one .metadata file: boxes lie inside their tensors and each
// has an item, file names stay inside the directory, ranges lie inside the
// files. Throws input_error or unsafe_error.
Metadata read_metadata(const std::string& path,
                       const formats::ReadOptions& options);

// Throws input_error if the chunks of a tensor have more or fewer elements than
// the tensor. (The planner proves that no two overlap.)
void check_cover(const Metadata& metadata);

// Adds files, tensors (kind other, extents with `archive`), objects, problems,
// globals, and the catalog's locate and load_objects. Takes the chunks.
void add_to_catalog(Metadata& metadata, Catalog& catalog,
                    const formats::ReadOptions& options = {});

// The work that add_to_catalog sets up for ckpt::locate: opens the archive of
// every piece that has one. For readers that add their own pieces.
void locate_items(Catalog& catalog);
// The same for a dry run (containers/assume.h), if there are at least this many
// items. Opening fewer takes next to no time.
inline constexpr uint64_t kManyItems = 65'536;
uint64_t sample_items(Catalog& catalog, uint64_t least = kManyItems);
// For Catalog::archive_opener: does both. There is only one instance.
std::shared_ptr<const ArchiveOpener> item_opener();

}  // namespace ckpt::dcp
