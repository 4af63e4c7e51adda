// SPDX-License-Identifier: Apache-2.0
// The globals whose meaning this program knows. All others stay names.
#pragma once

#include <cstdint>
#include <string_view>

namespace ckpt::pickle {

enum class Known : uint8_t {
  kOther,
  // collections
  kOrderedDict,
  kCounter,
  kDefaultDict,
  // what bytes, sets and complex numbers are reduced to
  kCodecsEncode,
  kBytes,
  kByteArray,
  kSet,
  kFrozenSet,
  kComplex,
  kNewObjEx,  // copyreg.__newobj_ex__(class, args, kwargs)
  // torch values
  kSize,
  kDevice,
  kLayout,
  kDtype,
  kQScheme,
  // torch's rebuild functions, first to last
  kTensorV1,
  kTensorV2,
  kTensorV3,
  kParameter,
  kFromType,
  kQTensor,
  kSparse,
  kMeta,
  kNested,
  kWrapper,  // a subclass without data of its own
  kFromCpu,
  kFromNumpy,
  // numpy
  kNdarray,
  kNumpyDtype,
  kNumpyScalar,
};

// Looks up a global by its Python 3 module name.
Known known_global(std::string_view module, std::string_view name);

inline bool is_rebuild(Known known) {
  return known >= Known::kTensorV1 && known <= Known::kFromNumpy;
}

// The full name of a torch dtype: "float32" for "float"; "" for others.
std::string_view torch_dtype(std::string_view name);

}  // namespace ckpt::pickle
