// SPDX-License-Identifier: Apache-2.0
// What two tensors with different values still have in common, proven from
// their bytes: sentences that save a user an afternoon.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "api/engine.h"
#include "ckpt/catalog.h"
#include "reshard/run/run_options.h"

namespace ckpt::library {

// "equal after cast to bf16", "B is A rounded to bf16".
std::optional<std::string> rounding(const Catalog& a, const Tensor& x,
                                    const Catalog& b, const Tensor& y,
                                    const Engine& engine);

// "rows permuted by heads (8 blocks of 64 rows)", "rows permuted". For tensors
// that fit in memory twice.
std::optional<std::string> row_order(const Catalog& a, const Tensor& x,
                                     const Catalog& b, const Tensor& y,
                                     const Engine& engine);

// "only padding differs (rows 60 to 63; the vocabulary has 60)", for two that
// begin with the rows of a vocabulary; 0: unknown.
std::optional<std::string> only_padding(const Catalog& a, const Tensor& x,
                                        const Catalog& b, const Tensor& y,
                                        uint64_t vocabulary,
                                        const Engine& engine);

// For tiles of tensors that are compared.
reshard::RunOptions plain_read(const Engine& engine);

// True if, by what rounding() said, only a format's own dtype for such a tensor
// differs, and no number.
bool is_own_dtype(const Catalog& a, const Catalog& b, std::string_view said);

}  // namespace ckpt::library
