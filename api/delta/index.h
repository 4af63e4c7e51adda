// SPDX-License-Identifier: Apache-2.0
// The index of a lossless delta (lossless.h has a picture). Private to this
// room.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "containers/safetensors/header.h"
#include "lib/hash/digest.h"
#include "lib/io/file.h"

namespace ckpt::library {

inline constexpr uint64_t kBlockBytes = 4 << 20;
// Of the delta, padded with spaces.
inline constexpr uint64_t kHeaderBytes = 512;

// A part of a file of B; with `tensor`, XORed with a box of the base's.
struct Block {
  uint64_t bytes = 0;
  uint64_t begin = 0, end = 0;  // of its frame in the payload
  uint64_t step = 1;
  std::optional<uint32_t> tensor = {};
  Box box = {};
  Digest digest = {};  // of the box
};

struct PackedFile {
  std::string path;  // relative
  uint64_t bytes = 0;
  std::string sha256;
  std::vector<Block> blocks;
};

// The tensors that blocks name, by their number.
struct BaseTensor {
  std::string name;
  DType dtype;
  Shape shape;
};

std::string index_text(const std::vector<PackedFile>& files, bool folder,
                       const std::vector<BaseTensor>& tensors);

// The safetensors header of a delta, of kHeaderBytes.
std::string header_text(uint64_t payload, uint64_t index);

// Reads an index that anyone may have made.
class DeltaIndex {
 public:
  DeltaIndex(const std::string& path, const safetensors::Header& header,
             const io::Handle& file);

  bool folder() const { return folder_; }
  const std::vector<PackedFile>& files() const { return files_; }
  const std::vector<BaseTensor>& tensors() const { return tensors_; }
  // Where the payload begins in the file.
  uint64_t payload() const { return payload_; }

 private:
  template <class... Args>
  Error wrong(fmt::format_string<Args...> text, Args&&... args) const {
    return input_error({path_, {}}, "not a whole delta: {}",
                       fmt::format(text, std::forward<Args>(args)...));
  }
  Dims dims(const nlohmann::json& json) const;
  void read_tensors(const nlohmann::json& root);
  void read_file(const nlohmann::json& json);
  Block read_block(const nlohmann::json& json) const;
  void check_path(const std::string& path) const;

  std::string path_;
  bool folder_ = true;
  uint64_t payload_ = 0, payload_bytes_ = 0;
  std::vector<PackedFile> files_;
  std::vector<BaseTensor> tensors_;
};

}  // namespace ckpt::library
