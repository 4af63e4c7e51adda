// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/tensors.h"

#include <utility>

#include "ckpt/error.h"
#include "containers/torch/distributed.h"
#include "containers/torch/rebuild.h"
#include "lib/text/format.h"

namespace ckpt::torch {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

// Wrappers nest: a parameter of a subclass of a device tensor has three.
constexpr int kMaxWrappers = 16;

constexpr std::pair<std::string_view, Rebuild> kRebuilds[] = {
    {"_rebuild_tensor", Rebuild::kTensor},
    {"_rebuild_tensor_v2", Rebuild::kTensorV2},
    {"_rebuild_tensor_v3", Rebuild::kTensorV3},
    {"_rebuild_qtensor", Rebuild::kQuantized},
    {"_rebuild_parameter", Rebuild::kParameter},
    {"_rebuild_parameter_with_state", Rebuild::kParameterState},
    {"_rebuild_wrapper_subclass", Rebuild::kWrapper},
    {"_rebuild_sparse_tensor", Rebuild::kSparse},
    {"_rebuild_meta_tensor_no_storage", Rebuild::kMeta},
    {"_rebuild_nested_tensor", Rebuild::kNested},
    {"_rebuild_device_tensor_from_cpu_tensor", Rebuild::kDeviceTensor},
};

// Reads the arguments of one rebuild call; every error names the call.
class Arguments {
 public:
  Arguments(const Document& document, Id tuple, const Storages& storages,
            std::string_view name, std::string_view function)
      : document_(document),
        storages_(storages),
        name_(name),
        function_(function) {
    if (!document.is(tuple, Type::kTuple))
      fail("its arguments are not a tuple");
    const auto items = document.items(tuple);
    items_.assign(items.begin(), items.end());
  }

  void expect(size_t least, size_t most) const {
    if (items_.size() < least || items_.size() > most)
      fail("{} arguments, expected {} to {}", items_.size(), least, most);
  }
  size_t size() const { return items_.size(); }
  Id operator[](size_t i) const { return items_[i]; }

  const StorageUse& storage(size_t i) const {
    const StorageUse* use = storages_.find(items_[i]);
    if (!use) fail("argument {} is not a storage", i);
    return *use;
  }
  uint64_t size_at(size_t i) const { return to_size(items_[i], "argument", i); }
  Dims dims(size_t i, std::string_view what) const {
    const auto values = as_ints(document_, items_[i]);
    if (!values) fail("{} is not a sequence of integers of 64 bits", what);
    if (values->size() > kMaxRank)
      fail("rank {} is too large, known are up to {}", values->size(),
           kMaxRank);
    Dims dims;
    for (const int64_t value : *values) {
      if (value < 0) fail("{} {} is negative", what, value);
      dims.push_back(static_cast<uint64_t>(value));
    }
    return dims;
  }
  bool flag(size_t i) const {
    if (document_.is(items_[i], Type::kBool))
      return document_.boolean(items_[i]);
    const auto value = document_.as_int(items_[i]);
    if (!value) fail("argument {} is not a bool", i);
    return *value != 0;
  }
  // {"conj": True, "neg": True}: not applied to the stored bytes.
  uint8_t metadata(size_t i) const {
    if (i >= items_.size() || document_.is(items_[i], Type::kNone)) return 0;
    if (!document_.as_pairs(items_[i])) fail("its metadata is not a dict");
    uint8_t transform = 0;
    if (is_true(document_.find(items_[i], "conj"))) transform |= kConjugate;
    if (is_true(document_.find(items_[i], "neg"))) transform |= kNegate;
    return transform;
  }

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text,
                         Args&&... args) const {
    throw Error(ExitCode::kDamaged, {storages_.path, text::printable(name_)},
                fmt::format("{}: {}", function_,
                            fmt::format(text, std::forward<Args>(args)...)));
  }

 private:
  bool is_true(Id node) const {
    return document_.is(node, Type::kBool) && document_.boolean(node);
  }
  uint64_t to_size(Id node, std::string_view what, size_t i) const {
    if (!document_.is(node, Type::kInt) || document_.integer(node) < 0)
      fail("{} {} is not an integer of 64 bits >= 0", what, i);
    return static_cast<uint64_t>(document_.integer(node));
  }

  const Document& document_;
  const Storages& storages_;
  std::string_view name_;
  std::string_view function_;
  std::vector<Id> items_;
};

// Bytes between neighbours in each dimension; empty if row-major. The stride of
// a dimension of one element means nothing and may be anything.
Dims byte_strides(const Shape& shape, const Dims& strides, uint64_t item,
                  const Arguments& arguments) {
  const Dims row_major = row_major_strides(shape);
  Dims bytes;
  bool contiguous = true;
  for (size_t d = 0; d < shape.size(); ++d) {
    const uint64_t stride = shape[d] == 1 ? row_major[d] : strides[d];
    contiguous = contiguous && stride == row_major[d];
    const auto value = checked_mul(stride, item);
    if (!value) arguments.fail("stride {} overflows", stride);
    bytes.push_back(*value);
  }
  return contiguous ? Dims() : bytes;
}

// The bytes from the first element to the end of the last one.
uint64_t reach(const Shape& shape, const Dims& strides, uint64_t offset,
               uint64_t item, const Arguments& arguments) {
  std::optional<uint64_t> last = offset;
  for (size_t d = 0; d < shape.size() && last; ++d) {
    const auto step = checked_mul(shape[d] - 1, strides[d]);
    last = step ? checked_add(*last, *step) : std::nullopt;
  }
  const auto count = last ? checked_add(*last, 1) : std::nullopt;
  const auto end = count ? checked_mul(*count, item) : std::nullopt;
  if (!end)
    arguments.fail("offset {}, shape {}, strides {} overflow", offset,
                   to_string(shape), to_string(strides));
  return *end;
}

// A byte holds two 4-bit or four 2-bit values; torch's shape counts values.
uint64_t values_per_byte(DType dtype) {
  if (dtype == DType::qu4x2) return 2;
  if (dtype == DType::qu2x4) return 4;
  return 1;
}

// Sets (and checks the bounds of) the place of a view of `use`.
void set_geometry(TensorRef& ref, const StorageUse& use,
                  const Arguments& arguments, const Storages& storages) {
  const uint64_t offset = arguments.size_at(1);
  Dims strides = arguments.dims(3, "stride");
  ref.shape = arguments.dims(2, "size");
  if (ref.shape.size() != strides.size())
    arguments.fail("{} sizes and {} strides", ref.shape.size(), strides.size());
  if (const uint64_t packed = values_per_byte(ref.dtype); packed > 1) {
    // Listed as plain bytes, so only whole tensors will do.
    if (strides != row_major_strides(ref.shape) || offset != 0)
      arguments.fail("a view of {} values", name(ref.dtype));
    if (!ref.shape.empty())
      ref.shape.back() = (ref.shape.back() + packed - 1) / packed;
    strides = row_major_strides(ref.shape);
  }
  const auto count = element_count(ref.shape);
  if (!count || !byte_size(ref.dtype, ref.shape))
    arguments.fail("shape {} overflows", to_string(ref.shape));

  const Storage& storage = storages.all[use.storage];
  ref.storage = use.storage;
  ref.extent.file = storage.file;
  ref.extent.offset = storage.offset + use.begin;
  if (*count == 0) return;
  const uint64_t item = element_size(ref.dtype);
  const uint64_t end = reach(ref.shape, strides, offset, item, arguments);
  if (end > use.bytes)
    arguments.fail(
        "offset {}, shape {}, strides {} reach byte {} of a storage of {}",
        offset, to_string(ref.shape), to_string(strides), end, use.bytes);
  ref.extent.offset += offset * item;
  ref.extent.strides = byte_strides(ref.shape, strides, item, arguments);
}

TensorRef strided(const Document& document, Rebuild rebuild, Id tuple,
                  const Storages& storages, std::string_view name,
                  std::string_view function) {
  const Arguments arguments(document, tuple, storages, name, function);
  TensorRef ref;
  size_t metadata = SIZE_MAX;
  size_t requires_grad = 4;
  switch (rebuild) {
    case Rebuild::kTensor:
      arguments.expect(4, 4);
      requires_grad = SIZE_MAX;
      break;
    case Rebuild::kTensorV2:
      arguments.expect(5, 7);
      metadata = 6;
      break;
    case Rebuild::kTensorV3:
      arguments.expect(7, 8);
      metadata = 7;
      break;
    default:
      arguments.expect(6, 7);
      requires_grad = 5;
      ref.quantizer = arguments[4];
  }
  const StorageUse& use = arguments.storage(0);
  ref.dtype = use.dtype.value_or(DType::u8);
  if (rebuild == Rebuild::kTensorV3) {
    const auto dtype = as_dtype(document, arguments[6]);
    if (!dtype) arguments.fail("argument 6 is not a dtype that is known");
    ref.dtype = *dtype;
  }
  if (requires_grad != SIZE_MAX)
    ref.requires_grad = arguments.flag(requires_grad);
  if (metadata != SIZE_MAX) ref.transform = arguments.metadata(metadata);
  if (storages.big_endian && info(ref.dtype).swap > 1)
    ref.transform |= kSwapBytes;
  set_geometry(ref, use, arguments, storages);
  return ref;
}

bool is_strided(Rebuild rebuild) {
  return rebuild == Rebuild::kTensor || rebuild == Rebuild::kTensorV2 ||
         rebuild == Rebuild::kTensorV3 || rebuild == Rebuild::kQuantized;
}

// torch.nn.parameter.Parameter(tensor[, requires_grad]), before torch 0.4.
bool is_old_parameter(const Document& document, const pickle::Call& call) {
  return document.is_global(call.callable, "torch.nn.parameter", "Parameter") &&
         document.is(call.args, Type::kTuple) &&
         !document.items(call.args).empty();
}

// Goes through wrappers to the tensor inside.
class Unwrapper {
 public:
  Unwrapper(const Document& document, const Storages& storages,
            std::string_view name, bool distributed)
      : document_(document),
        storages_(storages),
        name_(name),
        distributed_(distributed) {}

  std::optional<TensorRef> unwrap(Id node) {
    for (int depth = 0; depth < kMaxWrappers; ++depth) {
      if (!document_.is(node, Type::kCall)) return std::nullopt;
      const pickle::Call call = document_.call(node);
      const Rebuild rebuild = rebuild_of(document_, node);
      if (is_strided(rebuild)) return leaf(rebuild, call);
      if (rebuild == Rebuild::kFromType) return from_type(call);
      if (rebuild == Rebuild::kDeviceTensor) {
        node = arguments(call, 3, 4)[0];
      } else if (rebuild == Rebuild::kParameter ||
                 rebuild == Rebuild::kParameterState) {
        const Arguments args = arguments(call, 2, 4);
        set_parameter(args.flag(1));
        node = args[0];
      } else if (is_old_parameter(document_, call)) {
        set_parameter(true);
        node = document_.items(call.args)[0];
      } else {
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

 private:
  Arguments arguments(const pickle::Call& call, size_t least, size_t most) {
    Arguments args(document_, call.args, storages_, name_, function(call));
    args.expect(least, most);
    return args;
  }
  std::string_view function(const pickle::Call& call) const {
    return document_.text(call.callable);
  }
  // The outermost wrapper says what it is.
  void set_parameter(bool requires_grad) {
    if (!parameter_) requires_grad_ = requires_grad;
    parameter_ = true;
  }
  TensorRef finish(TensorRef ref) const {
    if (parameter_) {
      ref.parameter = true;
      ref.requires_grad = *requires_grad_;
    }
    return ref;
  }
  TensorRef leaf(Rebuild rebuild, const pickle::Call& call) {
    if (!call.items.empty() || !call.pairs.empty())
      throw input_error({storages_.path, text::printable(name_)},
                        "{}: elements are appended to a tensor",
                        function(call));
    return finish(strided(document_, rebuild, call.args, storages_, name_,
                          function(call)));
  }
  std::optional<TensorRef> from_type(const pickle::Call& call) {
    const Arguments args = arguments(call, 3, 4);
    const Rebuild inner = rebuild_of_global(document_, args[0]);
    if (is_strided(inner))
      return finish(strided(document_, inner, args[2], storages_, name_,
                            document_.text(args[0])));
    // A tensor whose bytes are in another tensor, the inner call's first
    // argument.
    if (inner == Rebuild::kParameter || inner == Rebuild::kParameterState) {
      const Arguments inner_args(document_, args[2], storages_, name_,
                                 function(call));
      inner_args.expect(2, 4);
      set_parameter(inner_args.flag(1));
      return unwrap_once(inner_args[0]);
    }
    if (inner != Rebuild::kWrapper || args.size() < 4 || !distributed_)
      return std::nullopt;
    auto ref =
        as_distributed(document_, args[1], args[2], args[3], storages_, name_);
    if (!ref) return std::nullopt;
    return finish(std::move(*ref));
  }
  // Only a plain strided call: no recursion on hostile depth.
  std::optional<TensorRef> unwrap_once(Id node) {
    const Rebuild rebuild = rebuild_of(document_, node);
    if (!is_strided(rebuild)) return std::nullopt;
    return leaf(rebuild, document_.call(node));
  }

  const Document& document_;
  const Storages& storages_;
  std::string_view name_;
  bool distributed_;
  bool parameter_ = false;
  std::optional<bool> requires_grad_;
};

}  // namespace

Rebuild rebuild_of_global(const Document& document, Id global) {
  if (!document.is(global, Type::kGlobal)) return Rebuild::kNone;
  const std::string_view module = document.module(global);
  const std::string_view function = document.text(global);
  if (module == "torch._tensor")
    return function == "_rebuild_from_type_v2" ||
                   function == "_rebuild_from_type"
               ? Rebuild::kFromType
               : Rebuild::kNone;
  if (module != "torch._utils") return Rebuild::kNone;
  for (const auto& [known, rebuild] : kRebuilds)
    if (known == function) return rebuild;
  return Rebuild::kNone;
}

Rebuild rebuild_of(const Document& document, Id node) {
  if (!document.is(node, Type::kCall)) return Rebuild::kNone;
  const pickle::Call call = document.call(node);
  return call.how == pickle::How::kReduce
             ? rebuild_of_global(document, call.callable)
             : Rebuild::kNone;
}

std::optional<TensorRef> as_tensor(const Document& document, Id node,
                                   const Storages& storages,
                                   std::string_view name) {
  return Unwrapper(document, storages, name, true).unwrap(node);
}

// No recursion on hostile depth: a DTensor inside a DTensor is not followed.
std::optional<TensorRef> as_plain_tensor(const Document& document, Id node,
                                         const Storages& storages,
                                         std::string_view name) {
  return Unwrapper(document, storages, name, false).unwrap(node);
}

Tensor make_tensor(std::string name, const TensorRef& ref) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = ref.dtype;
  tensor.shape = ref.global_shape();
  tensor.requires_grad = ref.requires_grad;
  tensor.parameter = ref.parameter;
  if (ref.distributed) {
    tensor.pieces = ref.distributed->pieces;
  } else {
    tensor.pieces.push_back({.box = Box::whole(ref.shape),
                             .flat = std::nullopt,
                             .extent = ref.extent,
                             .transform = ref.transform});
  }
  return tensor;
}

std::optional<DType> as_dtype(const Document& document, Id node) {
  if (!document.is(node, Type::kGlobal) || document.module(node) != "torch")
    return std::nullopt;
  constexpr std::pair<std::string_view, DType> kAliases[] = {
      {"float", DType::f32},  {"double", DType::f64},   {"half", DType::f16},
      {"long", DType::i64},   {"int", DType::i32},      {"short", DType::i16},
      {"cfloat", DType::c64}, {"cdouble", DType::c128}, {"chalf", DType::c32},
  };
  const std::string_view text = document.text(node);
  for (const auto& [alias, dtype] : kAliases)
    if (alias == text) return dtype;
  return dtype_from_torch(text);
}

std::optional<std::vector<int64_t>> as_ints(const Document& document, Id node) {
  if (document.is_call(node, "torch", "Size")) {
    const Id args = document.call(node).args;
    if (!document.is(args, Type::kTuple)) return std::nullopt;
    if (document.items(args).empty()) return std::vector<int64_t>();
    node = document.items(args)[0];
  }
  if (!document.is(node, Type::kTuple) && !document.is(node, Type::kList))
    return std::nullopt;
  std::vector<int64_t> values;
  for (const Id item : document.items(node)) {
    if (!document.is(item, Type::kInt)) return std::nullopt;
    values.push_back(document.integer(item));
  }
  return values;
}

}  // namespace ckpt::torch
