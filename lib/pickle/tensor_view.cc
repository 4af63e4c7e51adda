// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/tensor_view.h"

#include <array>

namespace ckpt::pickle {
namespace {

constexpr int kDeepestWrapper = 64;
constexpr size_t kMostDims = 1024;

// The dtype of a typed storage class.
constexpr std::array<std::string_view, 2> kStorages[] = {
    {"DoubleStorage", "float64"},
    {"FloatStorage", "float32"},
    {"HalfStorage", "float16"},
    {"BFloat16Storage", "bfloat16"},
    {"LongStorage", "int64"},
    {"IntStorage", "int32"},
    {"ShortStorage", "int16"},
    {"CharStorage", "int8"},
    {"ByteStorage", "uint8"},
    {"BoolStorage", "bool"},
    {"ComplexDoubleStorage", "complex128"},
    {"ComplexFloatStorage", "complex64"},
    {"QInt8Storage", "qint8"},
    {"QInt32Storage", "qint32"},
    {"QUInt8Storage", "quint8"},
    {"QUInt4x2Storage", "quint4x2"},
    {"QUInt2x4Storage", "quint2x4"},
    {"UntypedStorage", "uint8"},
};

std::string storage_dtype(std::string_view storage_class) {
  for (const auto& row : kStorages) {
    if (row[0] == storage_class) return std::string(row[1]);
  }
  return {};
}

// One call in the chain of wrappers around a tensor.
struct Layer {
  Known known = Known::kOther;
  std::span<const Id> args;
  Id state = kNoId;
};

std::optional<Layer> layer_of(const Document& document, Id id) {
  if (!document.is(id, Type::kCall)) return std::nullopt;
  const Call call = document.call(id);
  if (!document.is(call.args, Type::kTuple)) return std::nullopt;
  return Layer{document.known(id), document.items(call.args), call.state};
}

void set_once(Id& slot, Id value) {
  if (slot == kNoId) slot = value;
}

class Viewer {
 public:
  explicit Viewer(const Document& document) : doc_(document) {}

  std::optional<TensorView> run(Id id) {
    std::optional<Layer> layer = layer_of(doc_, id);
    for (int i = 0; i < kDeepestWrapper && layer; ++i) {
      set_once(view_.attributes, layer->state);
      switch (layer->known) {
        case Known::kParameter:
          layer = inside_parameter(*layer);
          break;
        case Known::kFromType:
          layer = inside_type(*layer);
          break;
        case Known::kFromCpu:
          if (layer->args.empty()) return std::nullopt;
          layer = layer_of(doc_, layer->args[0]);
          break;
        default:
          if (!fill(*layer)) return std::nullopt;
          return std::move(view_);
      }
    }
    return std::nullopt;
  }

 private:
  // (tensor, requires_grad, hooks[, attributes])
  std::optional<Layer> inside_parameter(const Layer& layer) {
    if (layer.args.size() < 2) return std::nullopt;
    if (!view_.parameter) requires_grad_ = doc_.as_int(layer.args[1]);
    view_.parameter = true;
    if (layer.args.size() > 3) set_once(view_.attributes, layer.args[3]);
    return layer_of(doc_, layer.args[0]);
  }

  // (function, class, arguments, attributes)
  std::optional<Layer> inside_type(const Layer& layer) {
    if (layer.args.size() < 4 || !doc_.is(layer.args[1], Type::kGlobal) ||
        !doc_.is(layer.args[0], Type::kGlobal) ||
        !doc_.is(layer.args[2], Type::kTuple))
      return std::nullopt;
    if (view_.tensor_class.empty()) {
      view_.tensor_class = doc_.module(layer.args[1]);
      view_.tensor_class += '.';
      view_.tensor_class += doc_.text(layer.args[1]);
    }
    set_once(view_.attributes, layer.args[3]);
    return Layer{doc_.known(layer.args[0]), doc_.items(layer.args[2]), kNoId};
  }

  bool fill(const Layer& layer) {
    const std::span<const Id> args = layer.args;
    size_t grad_at = 4;
    switch (layer.known) {
      case Known::kTensorV1:
        if (args.size() != 4) return false;
        grad_at = 0;
        break;
      case Known::kTensorV2:
        if (args.size() < 5) return false;
        if (args.size() > 6) view_.metadata = args[6];
        break;
      case Known::kTensorV3:
        if (args.size() < 7 || doc_.known(args[6]) != Known::kDtype ||
            !doc_.is(args[6], Type::kGlobal))
          return false;
        view_.dtype = torch_dtype(doc_.text(args[6]));
        if (args.size() > 7) view_.metadata = args[7];
        break;
      case Known::kQTensor:
        if (args.size() < 6) return false;
        view_.quantizer = args[4];
        grad_at = 5;
        break;
      default:
        return false;
    }
    if (!requires_grad_)
      requires_grad_ = grad_at == 0 ? 0 : doc_.as_int(args[grad_at]);
    return requires_grad_ && fill_geometry(args);
  }

  bool fill_geometry(std::span<const Id> args) {
    auto storage = storage_view(doc_, args[0]);
    auto size = int_list(doc_, args[2]);
    auto stride = int_list(doc_, args[3]);
    if (!storage || !doc_.is(args[1], Type::kInt) || !size || !stride ||
        size->size() > kMostDims || stride->size() > kMostDims)
      return false;
    if (view_.dtype.empty())
      view_.dtype = storage_dtype(doc_.text(storage->storage_class));
    view_.storage = std::move(*storage);
    view_.offset = doc_.integer(args[1]);
    view_.size = std::move(*size);
    view_.stride = std::move(*stride);
    view_.requires_grad = *requires_grad_ != 0;
    return true;
  }

  const Document& doc_;
  TensorView view_;
  std::optional<int64_t> requires_grad_;
};

}  // namespace

std::optional<std::span<const Id>> sequence(const Document& document, Id id) {
  if (document.is(id, Type::kCall) && document.known(id) == Known::kSize) {
    const Id args = document.call(id).args;
    if (!document.is(args, Type::kTuple) || document.items(args).size() > 1)
      return std::nullopt;
    if (document.items(args).empty()) return document.items(args);
    id = document.items(args)[0];
  }
  if (!document.is(id, Type::kTuple) && !document.is(id, Type::kList))
    return std::nullopt;
  return document.items(id);
}

std::optional<std::vector<int64_t>> int_list(const Document& document, Id id) {
  const auto items = sequence(document, id);
  if (!items) return std::nullopt;
  std::vector<int64_t> values;
  for (const Id item : *items) {
    if (!document.is(item, Type::kInt)) return std::nullopt;
    values.push_back(document.integer(item));
  }
  return values;
}

std::optional<StorageView> storage_view(const Document& document,
                                        Id persistent) {
  if (!document.is(persistent, Type::kPersistent)) return std::nullopt;
  const Id pid = document.items(persistent)[0];
  if (!document.is(pid, Type::kTuple)) return std::nullopt;
  const std::span<const Id> parts = document.items(pid);
  if (parts.size() < 5 || parts.size() > 6 ||
      !document.is(parts[0], Type::kString) ||
      document.text(parts[0]) != "storage" ||
      !document.is(parts[1], Type::kGlobal) ||
      !document.is(parts[4], Type::kInt))
    return std::nullopt;
  StorageView view{.storage_class = parts[1],
                   .key = {},
                   .location = parts[3],
                   .numel = document.integer(parts[4])};
  if (document.is(parts[2], Type::kString))
    view.key = document.text(parts[2]);
  else if (document.is(parts[2], Type::kInt))  // some legacy files
    view.key = std::to_string(document.integer(parts[2]));
  else
    return std::nullopt;
  return view;
}

Id resolve_module(const Document& document, Id id) {
  if (!document.is(id, Type::kPersistent)) return id;
  const Id pid = document.items(id)[0];
  if (!document.is(pid, Type::kTuple)) return id;
  const std::span<const Id> parts = document.items(pid);
  const bool module = parts.size() >= 2 &&
                      document.is(parts[0], Type::kString) &&
                      document.text(parts[0]) == "module" &&
                      document.is(parts[1], Type::kGlobal);
  return module ? parts[1] : id;
}

std::optional<TensorView> tensor_view(const Document& document, Id id) {
  return Viewer(document).run(id);
}

}  // namespace ckpt::pickle
