// SPDX-License-Identifier: Apache-2.0
// One .safetensors file of tensors that are computed here, each written at its
// place when it is known.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/progress.h"
#include "reshard/engine.h"

namespace ckpt::library {

class TensorFile {
 public:
  void add(std::string name, DType dtype, Shape shape);
  // The header, when all are added, with these metadata besides the usual
  // one. Then begin() and size() are known.
  std::string lay_out(
      const std::vector<std::pair<std::string, std::string>>& metadata = {});
  uint64_t begin(const std::string& name) const { return begins_.at(name); }
  uint64_t size() const { return size_; }

 private:
  struct Entry {
    std::string name;
    std::string_view dtype;
    Shape shape;
    uint64_t bytes = 0;
  };
  std::vector<Entry> entries_;
  std::map<std::string, uint64_t> begins_;
  uint64_t size_ = 0;
};

// Bytes of a tensor that are read at once.
constexpr uint64_t kTensorTile = 4 << 20;

struct TensorOf {
  const Catalog& catalog;
  const Tensor& tensor;
};
// b - a of a box, in f64.
void read_difference(const TensorOf& a, const TensorOf& b, const Box& box,
                     const reshard::RunOptions& options,
                     std::vector<double>& out);

struct DifferenceOptions {
  DType dtype = DType::f32;
  std::string base;      // where A is
  uint32_t threads = 0;  // 0: as many as processors
  uint64_t max_mem = uint64_t{1} << 30;
  bool overwrite = false;
  bool sync = true;
  bool dry_run = false;
};

// Writes b - a, of two catalogs with the same names and shapes, rounded once to
// the dtype: one file, or a directory of it and the configuration of `b`.
// Tensors that are no floats are zeros of their dtype: they are equal, or among
// `differing`, which throws an unfaithful_error. Returns what was written:
// path, bytes.
std::vector<std::pair<std::string, uint64_t>> write_difference(
    Catalog a, Catalog b, const std::vector<std::string>& differing,
    const std::string& target, bool folder, const DifferenceOptions& options,
    const Progress& progress);

}  // namespace ckpt::library
