// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/known.h"

#include <algorithm>
#include <array>

namespace ckpt::pickle {
namespace {

struct Row {
  std::string_view module;
  std::string_view name;
  Known known;
};

constexpr Row kRows[] = {
    {"collections", "OrderedDict", Known::kOrderedDict},
    {"collections", "Counter", Known::kCounter},
    {"collections", "defaultdict", Known::kDefaultDict},
    {"_codecs", "encode", Known::kCodecsEncode},
    {"builtins", "bytes", Known::kBytes},
    {"builtins", "bytearray", Known::kByteArray},
    {"builtins", "set", Known::kSet},
    {"builtins", "frozenset", Known::kFrozenSet},
    {"builtins", "complex", Known::kComplex},
    {"copyreg", "__newobj_ex__", Known::kNewObjEx},
    {"torch", "Size", Known::kSize},
    {"torch", "device", Known::kDevice},
    {"torch.serialization", "_get_layout", Known::kLayout},
    {"torch._utils", "_rebuild_tensor", Known::kTensorV1},
    {"torch._utils", "_rebuild_tensor_v2", Known::kTensorV2},
    {"torch._utils", "_rebuild_tensor_v3", Known::kTensorV3},
    {"torch._utils", "_rebuild_parameter", Known::kParameter},
    {"torch._utils", "_rebuild_parameter_with_state", Known::kParameter},
    {"torch._tensor", "_rebuild_from_type_v2", Known::kFromType},
    {"torch._tensor", "_rebuild_from_type", Known::kFromType},
    {"torch._utils", "_rebuild_qtensor", Known::kQTensor},
    {"torch._utils", "_rebuild_sparse_tensor", Known::kSparse},
    {"torch._utils", "_rebuild_meta_tensor_no_storage", Known::kMeta},
    {"torch._utils", "_rebuild_nested_tensor", Known::kNested},
    {"torch._utils", "_rebuild_wrapper_subclass", Known::kWrapper},
    {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor", Known::kFromCpu},
    {"torch._utils", "_rebuild_device_tensor_from_numpy", Known::kFromNumpy},
    {"torch._utils", "_rebuild_xla_tensor", Known::kFromNumpy},
    {"numpy.core.multiarray", "_reconstruct", Known::kNdarray},
    {"numpy._core.multiarray", "_reconstruct", Known::kNdarray},
    {"numpy.core.multiarray", "scalar", Known::kNumpyScalar},
    {"numpy._core.multiarray", "scalar", Known::kNumpyScalar},
    {"numpy", "dtype", Known::kNumpyDtype},
};

// Alias, full name.
constexpr std::array<std::string_view, 2> kDtypes[] = {
    {"float64", "float64"},
    {"float32", "float32"},
    {"float16", "float16"},
    {"bfloat16", "bfloat16"},
    {"int64", "int64"},
    {"int32", "int32"},
    {"int16", "int16"},
    {"int8", "int8"},
    {"uint8", "uint8"},
    {"uint16", "uint16"},
    {"uint32", "uint32"},
    {"uint64", "uint64"},
    {"bool", "bool"},
    {"complex128", "complex128"},
    {"complex64", "complex64"},
    {"complex32", "complex32"},
    {"qint8", "qint8"},
    {"qint32", "qint32"},
    {"quint8", "quint8"},
    {"quint4x2", "quint4x2"},
    {"quint2x4", "quint2x4"},
    {"float8_e4m3fn", "float8_e4m3fn"},
    {"float8_e5m2", "float8_e5m2"},
    {"float8_e4m3fnuz", "float8_e4m3fnuz"},
    {"float8_e5m2fnuz", "float8_e5m2fnuz"},
    {"float8_e8m0fnu", "float8_e8m0fnu"},
    {"float4_e2m1fn_x2", "float4_e2m1fn_x2"},
    {"bits8", "bits8"},
    {"bits16", "bits16"},
    {"bits1x8", "bits1x8"},
    {"bits2x4", "bits2x4"},
    {"bits4x2", "bits4x2"},
    {"float", "float32"},
    {"double", "float64"},
    {"half", "float16"},
    {"long", "int64"},
    {"int", "int32"},
    {"short", "int16"},
    {"cfloat", "complex64"},
    {"cdouble", "complex128"},
    {"chalf", "complex32"},
};

constexpr std::string_view kQSchemes[] = {
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_affine_float_qparams",
};

}  // namespace

std::string_view torch_dtype(std::string_view name) {
  for (const auto& row : kDtypes) {
    if (row[0] == name) return row[1];
  }
  return {};
}

Known known_global(std::string_view module, std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name && row.module == module) return row.known;
  }
  if (module != "torch") return Known::kOther;
  if (!torch_dtype(name).empty()) return Known::kDtype;
  if (std::ranges::find(kQSchemes, name) != std::end(kQSchemes))
    return Known::kQScheme;
  return Known::kOther;
}

}  // namespace ckpt::pickle
