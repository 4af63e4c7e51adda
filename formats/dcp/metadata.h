// The .metadata file of a PyTorch distributed checkpoint: which boxes each
// tensor is made of, and in which file the archive of each box lies.
//
//   Metadata
//     .state_dict_metadata  name -> size, dtype, chunks [(offsets, sizes)]
//                           name -> bytes (an object)
//     .storage_data         (name, offsets) -> (file, offset, length)
//     .planner_data         name -> path in the nested state dict
//
// A pickle of dataclasses; nothing is executed. Also read by the formats that
// are made of it: Megatron's torch_dist, OLMo-core.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/format.h"

namespace ckpt::dcp {

inline constexpr uint32_t kNoTransforms = 0;

// An item of a .distcp file.
struct Stored {
  uint64_t offset = 0;
  uint64_t length = 0;
  uint32_t file = UINT32_MAX;  // index into Metadata::files; max: none
  uint32_t transforms = 0;     // index into Metadata::transforms
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
  std::vector<Chunk> chunks;
};

struct BytesEntry {
  std::string name;
  Stored stored;
};

// An element of a planner path.
using PathElement = std::variant<std::string, int64_t>;

struct Metadata {
  std::string path;                // of the .metadata file
  std::string directory;           // that relative paths start from
  std::string version;             // "1.0.0", or ""
  std::string root_class;          // "Metadata", "MCoreMetadata"
  std::vector<std::string> files;  // relative, checked: plain, inside
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

// Reads and checks one .metadata file: boxes inside of their tensors, an item
// for each, file names that stay inside the directory, ranges inside of the
// files. Throws input_error or unsafe_error.
Metadata read_metadata(const std::string& path,
                       const formats::ReadOptions& options);

// Adds files, tensors (kind other, extents with `archive`), objects, problems,
// globals, and the catalog's locate and load_objects. Takes the chunks.
void add_to_catalog(Metadata& metadata, Catalog& catalog);

}  // namespace ckpt::dcp
