// SPDX-License-Identifier: Apache-2.0
// NumPy's files:
//
//   w.npy          one array, the tensor "w"
//   model.npz      a zip of arrays: "w" is its member w.npy (numpy.savez,
//                  savez_compressed, mlx)
//   model/         a .npy for each tensor; names with / are files in folders,
//                  as they are in an .npz
//
// The elements are numbers. Objects (pickles), records and text are refused,
// and so are raw bytes, which numpy.save makes of ml_dtypes' types.
#pragma once

#include <memory>
#include <string_view>

#include "formats/format.h"

namespace ckpt::numpy {

inline constexpr std::string_view kFormat = "numpy";
inline constexpr std::string_view kArray = ".npy";
inline constexpr std::string_view kArchive = ".npz";

std::unique_ptr<formats::Reader> make_reader();
std::unique_ptr<formats::Writer> make_writer();

}  // namespace ckpt::numpy
