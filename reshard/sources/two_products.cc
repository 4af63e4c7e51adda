// SPDX-License-Identifier: Apache-2.0
#include "reshard/sources/two_products.h"

#include <algorithm>

#include "ckpt/error.h"
#include "reshard/numbers/sums.h"

namespace ckpt::reshard {
namespace {

// Elements of a row, and of a factor's part, at a time: 1 MiB of f32.
constexpr uint64_t kMostAtOnce = uint64_t{1} << 18;

void check_product(const FactoredMatrix& product, const std::string& name) {
  const uint64_t inner = product.right ? product.right->rows() : 1;
  if (product.right && inner != product.left.columns())
    throw unfaithful_error({{}, name},
                           "an adapter's factors are of ranks {} and {}",
                           product.left.columns(), inner);
  if (product.rank() == 0 || product.rank() > kMostAtOnce ||
      product.rows() == 0 || product.columns() == 0)
    throw unfaithful_error({{}, name}, "an adapter of rank {}", product.rank());
}

}  // namespace

// The factor on the right is loaded once for all rows.
class ProductSum::Rows {
 public:
  Rows(const FactoredMatrix& product, uint64_t column, uint64_t columns,
       const ReadFile& read)
      : product_(product), column_(column), read_(read), row_(columns) {
    if (!product.right) return;
    right_.resize(product.rank() * columns);
    left_.resize(product.rank());
    product.right->load(0, product.rank(), column, columns, right_.data(),
                        read);
  }

  const float* at(uint64_t row) {
    if (row == loaded_) return row_.data();
    if (product_.right) {
      product_.left.load(row, 1, 0, product_.rank(), left_.data(), read_);
      multiply(left_.data(), right_.data(), 1, product_.rank(), row_.size(),
               row_.data());
    } else {
      product_.left.load(row, 1, column_, row_.size(), row_.data(), read_);
    }
    loaded_ = row;
    return row_.data();
  }

 private:
  const FactoredMatrix& product_;
  const uint64_t column_;
  const ReadFile& read_;
  std::vector<float> right_, left_, row_;
  uint64_t loaded_ = UINT64_MAX;
};

ProductSum::ProductSum(StoredMatrix base, TwoProducts term, std::string name)
    : base_(std::move(base)), term_(std::move(term)), name_(std::move(name)) {
  check_product(term_.a, name_);
  check_product(term_.b, name_);
  const FactoredMatrix& a = term_.a;
  const FactoredMatrix& b = term_.b;
  // Neither number is over 2^48 here, and base_ holds them.
  const bool fits =
      term_.kronecker
          ? base_.rows() % a.rows() == 0 &&
                base_.columns() % a.columns() == 0 &&
                base_.rows() / a.rows() == b.rows() &&
                base_.columns() / a.columns() == b.columns()
          : a.rows() == base_.rows() && a.columns() == base_.columns() &&
                b.rows() == base_.rows() && b.columns() == base_.columns();
  if (!fits)
    throw unfaithful_error(
        {{}, name_},
        "an adapter's {} is of {} x {} and {} x {}, the weight is {} x {}",
        term_.kronecker ? "Kronecker product" : "product by elements", a.rows(),
        a.columns(), b.rows(), b.columns(), base_.rows(), base_.columns());
}

ProductSum::~ProductSum() = default;

uint64_t ProductSum::width_at(uint64_t column) const {
  const uint64_t rank = std::max(term_.a.rank(), term_.b.rank());
  const uint64_t most = std::max<uint64_t>(1, kMostAtOnce / rank);
  const uint64_t rest = std::min(base_.columns() - column, most);
  const uint64_t block = term_.b.columns();
  // All columns of B, or a part of one of its repetitions.
  if (!term_.kronecker || block <= most) return rest;
  return std::min(rest, block - column % block);
}

void ProductSum::read(uint64_t offset, std::span<std::byte> buffer,
                      const ReadFile& read) const {
  const uint64_t size = element_size(base_.dtype());
  base_.each_part(
      offset, buffer,
      [&](uint64_t row, uint64_t rows, uint64_t column, uint64_t columns,
          std::byte* out) {
        for (uint64_t c = 0; c < columns;) {
          const uint64_t wide = std::min(width_at(column + c), columns - c);
          make(row, rows, column + c, wide, columns, out + c * size, read);
          c += wide;
        }
      });
}

void ProductSum::make(uint64_t row, uint64_t rows, uint64_t column,
                      uint64_t columns, uint64_t stride, std::byte* out,
                      const ReadFile& read) const {
  const uint64_t p = term_.b.rows(), q = term_.b.columns();
  const bool kron = term_.kronecker;
  const uint64_t first = kron ? column / q : column;
  const uint64_t last =
      kron ? (column + columns - 1) / q : column + columns - 1;
  // Of several repetitions, B is needed whole.
  const uint64_t from = kron ? (first == last ? column % q : 0) : column;
  Rows a(term_.a, first, last - first + 1, read);
  Rows b(term_.b, from, kron && first != last ? q : columns, read);
  std::vector<float> sum(columns), base(columns);
  for (uint64_t r = row; r < row + rows; ++r) {
    const float* left = a.at(kron ? r / p : r);
    const float* right = b.at(kron ? r % p : r);
    for (uint64_t j = 0; j < columns;) {
      const uint64_t at = column + j;
      const uint64_t count = kron ? std::min(q - at % q, columns - j) : columns;
      const float* rest = kron ? right + (at % q - from) : right;
      for (uint64_t k = 0; k < count; ++k)
        sum[j + k] = left[kron ? at / q - first : k] * rest[k];
      j += count;
    }
    scale_all(sum.data(), columns, term_.scale);
    base_.load(r, 1, column, columns, base.data(), read);
    add_all(sum.data(), base.data(), columns);
    if (!term_.allow_nonfinite)
      check_sums(sum, base, {name_, base_.dtype(), r, column, columns});
    narrow_sum(base_.dtype(), sum.data(),
               out + (r - row) * stride * element_size(base_.dtype()), columns);
  }
}

}  // namespace ckpt::reshard
