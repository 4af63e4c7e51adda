// SPDX-License-Identifier: Apache-2.0
// A matrix plus what two small products make together, block by block: weights
// that LoHa or LoKr changes, as one file in the order of rows.
//
//   LoHa   made[i][j] = base[i][j] + scale * A[i][j] * B[i][j]
//   LoKr   made[i][j] = base[i][j] + scale * A[i / p][j / q] * B[i % p][j % q]
//
// A and B [p, q] are products of two factors, or stored whole. In f32, as peft
// computes it (reshard/sources/low_rank.h). No buffer grows with the matrix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/sources/low_rank.h"

namespace ckpt::reshard {

struct FactoredMatrix {
  StoredMatrix left;                  // [rows, rank], or [rows, columns]
  std::optional<StoredMatrix> right;  // [rank, columns]; none: left is all

  uint64_t rows() const { return left.rows(); }
  uint64_t columns() const { return right ? right->columns() : left.columns(); }
  uint64_t rank() const { return right ? left.columns() : 1; }
};

struct TwoProducts {
  FactoredMatrix a, b;
  bool kronecker = false;  // LoKr
  float scale = 1;
  bool allow_nonfinite = false;
};

class ProductSum : public Made {
 public:
  // Throws unfaithful_error, naming the tensor, if the shapes don't fit;
  // read() does for a sum that is not finite.
  ProductSum(StoredMatrix base, TwoProducts term, std::string name);
  ~ProductSum() override;
  void read(uint64_t offset, std::span<std::byte> buffer,
            const ReadFile& read) const override;
  const StoredMatrix& base() const { return base_; }
  const TwoProducts& term() const { return term_; }
  const std::string& name() const { return name_; }

 private:
  class Rows;  // of a product, some columns of them

  // How many columns of a row are made at once, from `column` on.
  uint64_t width_at(uint64_t column) const;
  void make(uint64_t row, uint64_t rows, uint64_t column, uint64_t columns,
            uint64_t stride, std::byte* out, const ReadFile& read) const;

  const StoredMatrix base_;
  const TwoProducts term_;
  const std::string name_;
};

}  // namespace ckpt::reshard
