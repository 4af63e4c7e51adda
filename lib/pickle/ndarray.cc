// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/ndarray.h"

#include <charconv>

#include "lib/pickle/tensor_view.h"

namespace ckpt::pickle {
namespace {

// A call's argument or an element of its state; kNoId if absent.
Id element(const Document& document, Id sequence_id, size_t at) {
  if (!document.is(sequence_id, Type::kTuple) &&
      !document.is(sequence_id, Type::kList))
    return kNoId;
  const std::span<const Id> items = document.items(sequence_id);
  return at < items.size() ? items[at] : kNoId;
}

std::string text_or(const Document& document, Id id, const char* otherwise) {
  return document.is(id, Type::kString) ? std::string(document.text(id))
                                        : otherwise;
}

// "f4" -> 4, for the number types that C++ also has.
size_t size_of_code(const std::string& code) {
  size_t size = 0;
  const char* end = code.data() + code.size();
  if (code.size() < 2 || std::from_chars(code.data() + 1, end, size).ptr != end)
    return 0;
  const auto one_of = [size](std::initializer_list<size_t> sizes) {
    for (const size_t each : sizes) {
      if (each == size) return size;
    }
    return size_t{0};
  };
  switch (code[0]) {
    case 'f':
      return one_of({2, 4, 8});
    case 'i':
    case 'u':
      return one_of({1, 2, 4, 8});
    case 'b':
      return one_of({1});
    case 'c':
      return one_of({8, 16});
    default:
      return 0;
  }
}

// Converts column-major to row-major order: counts through the result's
// indices, the last one fastest, and follows in the source by strides.
std::string transposed(std::string_view bytes,
                       const std::vector<int64_t>& shape, size_t size) {
  std::vector<size_t> strides(shape.size());
  size_t stride = size;
  for (size_t d = 0; d < shape.size(); ++d) {
    strides[d] = stride;
    stride *= static_cast<size_t>(shape[d]);
  }
  std::vector<int64_t> index(shape.size(), 0);
  std::string result;
  result.reserve(bytes.size());
  size_t at = 0;
  while (result.size() < bytes.size()) {
    result.append(bytes.substr(at, size));
    for (size_t d = shape.size(); d-- > 0;) {
      at += strides[d];
      if (++index[d] < shape[d]) break;
      at -= strides[d] * static_cast<size_t>(shape[d]);
      index[d] = 0;
    }
  }
  return result;
}

// The size of an array in bytes; nullopt on overflow.
std::optional<size_t> bytes_of(const std::vector<int64_t>& shape, size_t size) {
  size_t total = size;
  for (const int64_t dim : shape) {
    if (dim < 0 ||
        __builtin_mul_overflow(total, static_cast<size_t>(dim), &total))
      return std::nullopt;
  }
  return total;
}

}  // namespace

std::optional<NumpyDtype> numpy_dtype(const Document& document, Id id) {
  if (!document.is(id, Type::kCall) || document.known(id) != Known::kNumpyDtype)
    return std::nullopt;
  const Call call = document.call(id);
  const Id code = element(document, call.args, 0);
  if (!document.is(code, Type::kString)) return std::nullopt;
  NumpyDtype dtype{.code = std::string(document.text(code))};
  if (call.state == kNoId) return dtype;
  dtype.order = text_or(document, element(document, call.state, 1), "");
  const Id subarray = element(document, call.state, 2);
  const Id names = element(document, call.state, 3);
  dtype.plain =
      document.is(subarray, Type::kNone) && document.is(names, Type::kNone);
  return dtype;
}

std::optional<NumpyArray> numpy_array(const Document& document, Id id) {
  if (!document.is(id, Type::kCall)) return std::nullopt;
  const Call call = document.call(id);
  NumpyArray array;
  if (document.known(id) == Known::kNumpyScalar) {
    if (document.items(call.args).size() != 2) return std::nullopt;
    array.dtype = numpy_dtype(document, element(document, call.args, 0));
    array.data = element(document, call.args, 1);
    array.shape.emplace();
    return array;
  }
  if (document.known(id) != Known::kNdarray) return std::nullopt;
  if (call.state == kNoId) return array;
  array.shape = int_list(document, element(document, call.state, 1));
  array.dtype = numpy_dtype(document, element(document, call.state, 2));
  const Id fortran = element(document, call.state, 3);
  array.fortran = document.as_int(fortran).value_or(0) != 0;
  array.data = element(document, call.state, 4);
  return array;
}

std::optional<Numbers> numbers(const Document& document,
                               const NumpyArray& array) {
  constexpr size_t kMostDims = 64;  // numpy's own limit
  if (!array.dtype || !array.dtype->plain || !array.shape ||
      array.shape->size() > kMostDims || !document.is(array.data, Type::kBytes))
    return std::nullopt;
  Numbers result;
  result.kind = array.dtype->code.empty() ? '\0' : array.dtype->code[0];
  result.size = size_of_code(array.dtype->code);
  const std::string_view bytes = document.text(array.data);
  if (result.size == 0 || bytes_of(*array.shape, result.size) != bytes.size())
    return std::nullopt;
  result.big_endian = array.dtype->order == ">" && result.size > 1;
  result.type = result.size == 1 ? "|" : result.big_endian ? ">" : "<";
  result.type += array.dtype->code;
  const bool turn = array.fortran && array.shape->size() > 1;
  result.bytes =
      turn ? transposed(bytes, *array.shape, result.size) : std::string(bytes);
  return result;
}

}  // namespace ckpt::pickle
