// SPDX-License-Identifier: Apache-2.0
// A matrix plus a product of two small ones, made block by block: weights
// that an adapter (LoRA) changes, as one file in the order of rows.
//
//   made[i][j] = base[i][j] + scale * sum over k of left[i][k] * right[k][j]
//
// In f32, as peft computes it: products are added in the order of k, each with
// one rounding (fma); the sum is scaled, then added, then rounded to the base's
// dtype. With magnitudes (DoRA) each row, or each column, is scaled to its own
// length at the end. No buffer grows with the matrix.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "reshard/sources/made.h"

namespace ckpt::reshard {

// A stored matrix: its tensor, and the files that hold its pieces. Rows of
// pieces are contiguous.
class StoredMatrix {
 public:
  struct Part {
    uint64_t row, rows, column, columns;  // the box
    uint64_t begin, end;                  // of its elements, those it holds
    File file;
    uint64_t offset, stride;  // bytes; of a row, if it is not contiguous
    uint8_t transform;
  };
  // All that it is, for another process.
  struct Content {
    std::string name;
    DType dtype = DType::f32;
    uint64_t rows = 1, columns = 1;
    std::vector<Part> parts;
  };

  // A vector is one column. Throws unfaithful_error for what can't be read by
  // rows: other numbers of dimensions, strided elements, packed files.
  StoredMatrix(const Tensor& tensor, const std::vector<File>& files);
  explicit StoredMatrix(Content content);

  const Content& content() const { return content_; }

  uint64_t rows() const { return content_.rows; }
  uint64_t columns() const { return content_.columns; }
  DType dtype() const { return content_.dtype; }

  // Elements [row, row + rows) x [column, column + columns), as stored.
  void load(uint64_t row, uint64_t rows, uint64_t column, uint64_t columns,
            std::byte* out, const ReadFile& read) const;
  // The same as f32.
  void load(uint64_t row, uint64_t rows, uint64_t column, uint64_t columns,
            float* out, const ReadFile& read) const;

  // Calls `make` for the parts of a matrix like this one that `buffer` holds
  // from byte `offset` on: whole rows, with a part of one before and after.
  using MakePart =
      std::function<void(uint64_t row, uint64_t rows, uint64_t column,
                         uint64_t columns, std::byte* out)>;
  void each_part(uint64_t offset, std::span<std::byte> buffer,
                 const MakePart& make) const;

 private:
  void load_row(const Part& part, uint64_t row, uint64_t column, uint64_t end,
                std::byte* out, const ReadFile& read) const;

  Content content_;
  uint64_t size_ = 1;  // bytes of an element
};

struct LowRankTerm {
  StoredMatrix left;  // [rows, rank], or [rank, rows] if transposed
  // [rank, columns], or [columns, rank]; none: a column of ones
  std::optional<StoredMatrix> right;
  bool transposed = false;
  float scale = 1;
  // peft first rounds what it adds to an embedding to the embedding's dtype.
  bool rounded = false;
  // Sums that are not finite where the base is are written, not refused.
  bool allow_nonfinite = false;
  // DoRA: the length of each row; of each column if transposed.
  std::optional<StoredMatrix> magnitude;
};

class LowRank : public Made {
 public:
  // Throws unfaithful_error, naming the tensor, if the shapes don't fit;
  // read() does for a sum that is not finite.
  LowRank(StoredMatrix base, LowRankTerm term, const std::string& name);
  ~LowRank() override;
  void read(uint64_t offset, std::span<std::byte> buffer,
            const ReadFile& read) const override;
  const StoredMatrix& base() const { return base_; }
  const LowRankTerm& term() const { return term_; }
  const std::string& name() const { return name_; }

 private:
  struct Tile;  // a block of rows and columns, and buffers for it

  void make(uint64_t row, uint64_t rows, uint64_t column, uint64_t columns,
            std::byte* out, const ReadFile& read) const;
  // base + scale * left * right of a tile, in f32.
  void sum(Tile& tile, const ReadFile& read) const;
  void load_right(Tile& tile, const ReadFile& read) const;
  void load_left(Tile& tile, const ReadFile& read) const;
  // Multiplies by magnitude / length.
  void bring_to_length(Tile& tile, const ReadFile& read) const;
  void measure_rows(uint64_t row, uint64_t rows, const ReadFile& read) const;
  void measure_columns(const ReadFile& read) const;

  const std::string name_;
  const StoredMatrix base_;
  const LowRankTerm term_;
  uint64_t rank_ = 1;
  // Of rows or columns; negative until measured.
  mutable std::vector<std::atomic<float>> lengths_;
  mutable std::mutex measuring_;
  mutable bool measured_ = false;
};

// left [rows, rank] times right [rank, columns], all contiguous. The same bits
// on every processor.
void multiply(const float* left, const float* right, uint64_t rows,
              uint64_t rank, uint64_t columns, float* out);

}  // namespace ckpt::reshard
