// SPDX-License-Identifier: Apache-2.0
// The index of a checkpoint spread over several files, as Hugging Face
// libraries write it for safetensors and for torch .bin files:
//
//   {"metadata":   {"total_size": bytes, …},      may be missing
//    "weight_map": {"tensor": "file", …}}         plain names of files beside
//    it
//
// The file names come from the file and are hostile: they are never allowed to
// lead out of the directory. Names of tensors are data; any string will do.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "containers/hf/numbered.h"
#include "lib/pickle/value.h"

namespace ckpt::formats {

struct Index {
  struct Weight {
    std::string tensor;
    uint32_t file = 0;  // index into files
  };
  std::string path;  // of the index itself
  // Names in the directory, or FOLDER/NAME: sorted, unique.
  std::vector<std::string> files;
  std::vector<Weight> weights;         // in the order of the index
  std::optional<uint64_t> total_size;  // metadata.total_size, if it is there
  std::string total_text;              // its spelling, or ""
  // The rest of metadata, a dict; null if there is none.
  std::shared_ptr<pickle::Document> metadata;
};

// True for "model.safetensors.index.json", "model.safetensors.index.fp16.json"
// and the like: `suffix` (".safetensors", ".bin"), then .index, a variant, and
// .json.
bool is_index_name(std::string_view file_name, std::string_view suffix);

// The index of safetensors files that torch files stand in for: its weight_map
// names .pt, .pth or .bin files of the directory alone, as people write one for
// transformers to take what a trainer saved. "" if there is none.
std::string index_of_torch_files(const std::string& directory);

// True if there is an index of this name whose weight_map names other files
// than `file`.
bool indexes_others(const std::string& directory, const std::string& index_file,
                    std::string_view file);

// Where the weights called `stem` are, found as loaders find them: in STEM
// SUFFIX, else where STEM SUFFIX.index.json says, else in a set STEM-x-of-N
// SUFFIX. Both lists are sorted. At least one of the members is empty.
struct WeightFiles {
  std::vector<std::string> names;
  std::string index;
};
WeightFiles find_weight_files(std::string_view stem, std::string_view suffix,
                              std::span<const std::string> names,
                              std::span<const std::string> indexes);

// Reads `directory`/`index_file` and checks all of it, including that every
// file is there. Throws an input_error for a malformed index or a missing file,
// an unsafe_error for a file name that is not a plain name. Files may also be
// one level down, in `folder` if it is given.
Index read_index(const std::string& directory, const std::string& index_file,
                 std::string_view folder = {});

// A tensor of one of the files: its number in the file's own order.
struct Located {
  uint32_t file = 0;
  uint32_t tensor = 0;
  bool copy = false;  // of a tensor that the index has in another file
};

// Compares what is in the files (`found[f]`: the names in index.files[f],
// unique within it) with the index. Returns those to take, by file, then in the
// file's order. A tensor that the index promises but its file lacks is an
// input_error. One that the index lacks is taken, with a warning
// ("unindexed_tensor"), and so is a second copy of an indexed one
// ("duplicate_tensor").
std::vector<Located> select_indexed(
    const std::string& directory, const Index& index,
    std::span<const std::vector<std::string_view>> found,
    std::vector<Problem>& problems);

// Makes copies of tensors replicas of those that they are copies of: loaders
// that read all files keep the last, whatever the index says. One of another
// dtype or shape is an input_error.
void add_copies(Catalog& catalog, std::vector<Tensor> copies);

// Warns ("index_metadata") if an index that transformers or diffusers looks for
// has no metadata: they fail on it. Warns ("total_size") if its sum of bytes is
// none of `sums`, the first of which is the files'. Depending on their version,
// writers count tied weights once or under each of their names.
void check_index_metadata(const Index& index, std::span<const uint64_t> sums,
                          std::vector<Problem>& problems);

// The text of an index: two spaces, sorted keys, ASCII, a newline at the end.
// `metadata`: members other than total_size.
struct IndexEntry {
  std::string_view tensor;
  std::string_view file;
};
std::string write_index(std::span<const IndexEntry> weight_map,
                        uint64_t total_size, nlohmann::json metadata = {});

}  // namespace ckpt::formats
