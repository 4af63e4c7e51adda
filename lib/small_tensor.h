// SPDX-License-Identifier: Apache-2.0
// The content of a tensor that describes others: a shape, a marker, a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt {

// Its bytes. Nothing if it has more than `most`, or is not in one run of bytes
// of a file that is stored as it is. Throws kIo.
std::optional<std::string> small_tensor(const Catalog& catalog,
                                        const Tensor& tensor, uint64_t most);

// The same as numbers, of an integer dtype; of f32, bf16 or f16.
std::optional<std::vector<int64_t>> small_integers(const Catalog& catalog,
                                                   const Tensor& tensor,
                                                   uint64_t most);
std::optional<std::vector<float>> small_floats(const Catalog& catalog,
                                               const Tensor& tensor,
                                               uint64_t most);

// A tensor of one number, of any float dtype.
std::optional<double> small_number(const Catalog& catalog,
                                   const Tensor& tensor);

// Adds a file of these numbers, f32, that is kept in memory until the process
// ends; returns its index.
uint32_t add_numbers(const std::vector<float>& numbers, const std::string& name,
                     Catalog& catalog);

}  // namespace ckpt
