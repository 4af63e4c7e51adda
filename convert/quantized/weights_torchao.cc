// SPDX-License-Identifier: Apache-2.0
// Weights of torchao's tensor classes in a pickle.
//
//   a.weight             the object, with its class, dtype and shape
//   a.weight.args.3.…    what it is made of: qdata, scale, zero_point, and
//                        values such as block_size
//
// And those of torch itself (torch.quantize_per_tensor, _per_channel):
//
//   a.weight             the codes, of a dtype of their own (qint8)
//   a.weight.quantizer   (scheme, scale, zero) or (scheme, scales, zeros, axis)

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "ckpt/dtype.h"
#include "ckpt/error.h"
#include "convert/quantized/quantized.h"
#include "convert/quantized/weight_finder.h"
#include "formats/dcp/subclass.h"
#include "lib/pickle/json.h"
#include "lib/pickle/parts.h"
#include "lib/pickle/tensor_view.h"
#include "lib/small_tensor.h"
#include "lib/text/words.h"

namespace ckpt::families {
namespace {

constexpr uint64_t kBudget = 4096;  // nodes of a value
constexpr std::array<std::string_view, 3> kClasses = {
    "Int8Tensor", "Float8Tensor", "IntxUnpackedToInt8Tensor"};
// What kernels and activations need.
constexpr std::string_view kOfKernels =
    "act_quant_kwargs mm_config kernel_preference reduce_range target_dtype "
    "activation_quantization dtype granularity";

nlohmann::json value_of(const Object& object) {
  return nlohmann::json(
      pickle::to_json(*object.document, object.node, kBudget));
}

bool is_size(const nlohmann::json& value) {
  return value.is_number_integer() && value.get<int64_t>() > 0;
}

}  // namespace

void WeightFinder::torchao(const Object& object) {
  // What has an archive of its own is carried with it, as a whole.
  if (!object.document || object.bytes != 0) return;
  const auto made_of = dcp::subclass_of(*object.document, object.node);
  if (!made_of || !made_of->class_name.starts_with("torchao.")) return;
  const std::string& name = object.name;
  const std::string inner = name + ".args.3.";
  const std::string stem = get(inner + "qdata") ? inner : name + ".";
  const std::string kind =
      made_of->class_name.substr(made_of->class_name.rfind('.') + 1);
  LogicalWeight weight{.name = name, .shape = made_of->shape};
  weight.method = "torchao " + kind;
  weight.block = "group";
  for (const char* part : {"qdata", "scale", "zero_point"})
    add_part(weight, stem + part);
  const size_t known = weight.parts.size();
  for (const Tensor& tensor : catalog_.tensors)
    if (tensor.name.starts_with(name + ".") &&
        std::ranges::find(weight.parts, tensor.name) == weight.parts.end())
      weight.parts.push_back(tensor.name);
  if (weight.parts.empty()) return;
  nlohmann::json block;
  for (const Object& value : catalog_.objects) {
    if (!value.name.starts_with(stem) || !value.document) continue;
    const std::string key = value.name.substr(stem.size());
    const nlohmann::json said = value_of(value);
    if (key == "block_size")
      block =
          said.is_object() && said.contains("!tuple") ? said["!tuple"] : said;
    else if (!said.is_null() && !text::has_word(kOfKernels, key))
      open(weight, "no rule knows what " + value.name + " is for");
  }
  if (weight.parts.size() > known)
    open(weight, "no rule knows what " + weight.parts[known] + " is for");
  torchao_parts(weight, stem, kind, block);
  if (weight.open.empty() && made_of->dtype != DType::f32)
    weight.made.rounds = made_of->dtype;
  add(std::move(weight));
}

void WeightFinder::torchao_parts(LogicalWeight& weight, const std::string& stem,
                                 const std::string& kind,
                                 const nlohmann::json& block) {
  if (std::ranges::find(kClasses, kind) == kClasses.end())
    open(weight, "no rule knows torchao's class " + kind);
  const Tensor* codes = get(stem + "qdata");
  const Tensor* scales = get(stem + "scale");
  if (!codes || !scales || weight.shape != codes->shape ||
      codes->shape.size() != 2 || !block.is_array() || block.size() != 2 ||
      !is_size(block[0]) || !is_size(block[1]) ||
      !(codes->dtype == DType::i8 || is_small_float(codes->dtype)))
    open(weight, "its parts are not those of the class");
  if (weight.open.empty()) set_torchao(weight, *codes, *scales, block);
}

// "a.weight": {"_type": "Int8Tensor", "_data": {"block_size": [1, 256], …},
//              "_tensor_data_names": ["qdata", "scale", "zero_point"]}
// in the header of a file with a._weight_qdata, a._weight_scale …
void WeightFinder::torchao_header(const std::string& name,
                                  const nlohmann::json& said) {
  const auto empty = nlohmann::json::object();
  const nlohmann::json data =
      said.is_object() && said.contains("_data") && said.at("_data").is_object()
          ? said.at("_data")
          : empty;
  const nlohmann::json type =
      said.is_object() ? said.value("_type", empty) : empty;
  const size_t leaf = name.rfind('.') + 1;
  const std::string stem = name.substr(0, leaf) + "_" + name.substr(leaf) + "_";
  const Tensor* codes = get(stem + "qdata");
  if (!codes || !type.is_string() || get(name)) return;
  LogicalWeight weight{.name = name, .shape = codes->shape};
  const std::string kind = type.get<std::string>();
  weight.method = "torchao " + kind;
  weight.block = "group";
  constexpr std::string_view kParts[] = {"qdata", "scale", "zero_point"};
  for (const std::string_view part : kParts)
    add_part(weight, stem + std::string(part));
  for (const nlohmann::json& one : said.value("_tensor_data_names", empty)) {
    const std::string part = one.is_string() ? one.get<std::string>() : "";
    if (std::ranges::count(kParts, part)) continue;
    add_part(weight, stem + part);
    open(weight, fmt::format("no rule knows what {}{} is for", stem, part));
  }
  // Classes that pack several codes to an element say their shape.
  if (const auto shape = data.find("shape");
      shape != data.end() && shape->is_array() &&
      std::ranges::all_of(*shape, is_size))
    weight.shape = Shape(shape->get<std::vector<uint64_t>>());
  for (const auto& [key, value] : data.items())
    if (!value.is_null() && key != "block_size" && key != "shape" &&
        !text::has_word(kOfKernels, key))
      open(weight, "no rule knows what its " + key + " is for");
  torchao_parts(weight, stem, kind, data.value("block_size", empty));
  const auto made_of = data.value("dtype", empty);
  const auto word = made_of.is_object() ? made_of.value("_data", empty) : empty;
  const std::string dtype = word.is_string() ? word.get<std::string>() : "";
  const auto rounds = dtype_from_torch(dtype);
  if (!rounds) open(weight, "its dtype is not known: " + dtype);
  if (weight.open.empty() && *rounds != DType::f32)
    weight.made.rounds = *rounds;
  add(std::move(weight));
}

void WeightFinder::set_torchao(LogicalWeight& weight, const Tensor& codes,
                               const Tensor& scales,
                               const nlohmann::json& block) {
  Decoding& made = weight.made;
  made.rows = codes.shape[0];
  made.columns = codes.shape[1];
  made.block_rows = block[0].get<uint64_t>();
  made.block_columns = block[1].get<uint64_t>();
  const Shape grid{1, up(made.rows, made.block_rows),
                   up(made.columns, made.block_columns)};
  if (in_three(scales.shape) != grid || !is_scale_dtype(scales.dtype))
    mismatch(scales, codes);
  set_tensor(made.codes, codes, {1, made.rows, made.columns});
  set_tensor(made.scales, scales, grid);
  weight.block = block_text(made);
  const size_t end = codes.name.size() - std::string_view("qdata").size();
  const Tensor* zeros = get(codes.name.substr(0, end) + "zero_point");
  if (!zeros) return;
  if (in_three(zeros->shape) != grid || zeros->dtype != DType::i8)
    open(weight, zeros->name + " is not one i8 for each scale");
  set_tensor(made.zeros, *zeros, grid);
}

namespace {

constexpr std::string_view kQuantizer = ".quantizer";

struct Quantizer {
  std::string open;  // why it can't be told
  std::vector<float> scales, zeros;
  std::optional<uint64_t> axis;  // nothing: one scale for all
};

// The numbers of a tensor of one dimension that is in a value.
std::optional<std::vector<double>> numbers_in(const Catalog& catalog,
                                              const pickle::Document& document,
                                              pickle::Id node) {
  const auto view = pickle::tensor_view(document, node);
  const auto below = pickle::storages_below(document, node);
  if (!view || view->size.size() != 1 || below.size() != 1 ||
      (view->stride[0] != 1 && view->size[0] > 1) || view->offset < 0 ||
      view->size[0] < 1)
    return std::nullopt;
  const auto& kept = catalog.skeleton->storages;
  const auto found =
      std::ranges::find(kept, below[0], &std::pair<uint32_t, Content>::first);
  if (found == kept.end()) return std::nullopt;
  const std::string& bytes = found->second.bytes();
  const auto first = static_cast<uint64_t>(view->offset);
  const auto count = static_cast<uint64_t>(view->size[0]);
  const bool wide = view->dtype == "float64" || view->dtype == "int64";
  const uint64_t element = wide ? 8 : 4;
  if ((!wide && view->dtype != "float32") || first > bytes.size() / element ||
      count > bytes.size() / element - first)
    return std::nullopt;
  std::vector<double> numbers(count);
  for (uint64_t i = 0; i < count; ++i) {
    const char* at = bytes.data() + (first + i) * element;
    uint64_t bits = 0;
    std::memcpy(&bits, at, element);
    numbers[i] = view->dtype == "int64"
                     ? static_cast<double>(std::bit_cast<int64_t>(bits))
                 : wide ? std::bit_cast<double>(bits)
                        : std::bit_cast<float>(static_cast<uint32_t>(bits));
  }
  return numbers;
}

// torch computes (code - zero) * scale, in f32 with one scale, in f64 with one
// for each channel. So zeros, the differences and the latter scales have to be
// exact in f32. (Those of torch's observers are: they compute them in f32.)
Quantizer quantizer_of(const Catalog& catalog, const Object& object,
                       const Tensor& codes) {
  constexpr double kMostZero = 1 << 23;
  Quantizer made;
  const auto open = [&](std::string why) {
    made.open = std::move(why);
    return made;
  };
  const auto& skeleton = catalog.skeleton;
  if (!object.document || !skeleton || skeleton->document != object.document)
    return open("its scales are not in the file that is read");
  const pickle::Document& document = *object.document;
  const auto parts = pickle::sequence(document, object.node);
  if (!parts || parts->size() < 3 ||
      !document.is((*parts)[0], pickle::Type::kGlobal))
    return open("its quantizer is of no known form");
  const std::string_view scheme = document.text((*parts)[0]);
  std::vector<double> scales, zeros;
  if (scheme == "per_tensor_affine") {
    const auto scale = document.as_real((*parts)[1]);
    const auto zero = document.as_real((*parts)[2]);
    if (!scale || !zero) return open("its quantizer is of no known form");
    scales = {*scale};
    zeros = {*zero};
  } else if (parts->size() > 3 &&
             (scheme == "per_channel_affine" ||
              scheme == "per_channel_affine_float_qparams")) {
    const auto axis = document.as_int((*parts)[3]);
    const auto some = numbers_in(catalog, document, (*parts)[1]);
    const auto others = numbers_in(catalog, document, (*parts)[2]);
    if (!axis || *axis < 0 ||
        static_cast<uint64_t>(*axis) >= codes.shape.size() || !some ||
        !others || some->size() != codes.shape[static_cast<size_t>(*axis)] ||
        others->size() != some->size())
      return open("its scales are not one for each channel");
    made.axis = static_cast<uint64_t>(*axis);
    scales = *some;
    zeros = *others;
  } else {
    return open("no rule knows torch." + std::string(scheme));
  }
  for (const double zero : zeros)
    if (std::abs(zero) > kMostZero)
      return open("its zero points are too large for exact numbers");
  for (const double scale : scales)
    if (made.axis && static_cast<float>(scale) != scale)
      return open(
          "its scales are not exact in f32: torch's .dequantize() "
          "multiplies in f64");
  made.scales.assign(scales.begin(), scales.end());
  if (std::ranges::any_of(zeros, [](double zero) { return zero != 0; }))
    made.zeros.assign(zeros.begin(), zeros.end());
  return made;
}

std::unordered_map<std::string, const Object*> quantizers(
    const Catalog& catalog) {
  std::unordered_map<std::string, const Object*> found;
  for (const Object& object : catalog.objects)
    if (object.name.ends_with(kQuantizer))
      found.emplace(
          object.name.substr(0, object.name.size() - kQuantizer.size()),
          &object);
  return found;
}

bool has_rule(DType dtype) {
  return dtype == DType::qi8 || dtype == DType::qu8;
}

std::string scales_of(const std::string& name) {
  return name + ".quantizer.scales";
}
std::string zeros_of(const std::string& name) {
  return name + ".quantizer.zeros";
}

}  // namespace

bool is_qint(DType dtype) {
  return has_rule(dtype) || dtype == DType::qi32 || dtype == DType::qu4x2 ||
         dtype == DType::qu2x4;
}

void add_quantizers(Catalog& catalog) {
  if (std::ranges::none_of(catalog.tensors, is_qint, &Tensor::dtype)) return;
  std::vector<Tensor> made;
  const auto add = [&](const std::string& name,
                       const std::vector<float>& numbers) {
    if (numbers.empty()) return;
    Tensor tensor{.name = name, .dtype = DType::f32, .shape = {numbers.size()}};
    tensor.pieces = {{.box = Box::whole(tensor.shape),
                      .flat = {},
                      .extent = {.offset = 0,
                                 .strides = {},
                                 .file = add_numbers(numbers, name, catalog)}}};
    made.push_back(std::move(tensor));
  };
  const auto found = quantizers(catalog);
  for (const Tensor& codes : catalog.tensors) {
    const auto at = found.find(codes.name);
    if (!is_qint(codes.dtype) || at == found.end()) continue;
    const Quantizer quantizer = quantizer_of(catalog, *at->second, codes);
    if (!quantizer.open.empty()) continue;
    add(scales_of(codes.name), quantizer.scales);
    add(zeros_of(codes.name), quantizer.zeros);
  }
  std::ranges::move(made, std::back_inserter(catalog.tensors));
}

void WeightFinder::quantized_by_torch() {
  std::unordered_map<std::string, const Object*> found;
  for (const Tensor& codes : catalog_.tensors) {
    if (!is_qint(codes.dtype) || !may_be_codes(catalog_, codes)) continue;
    if (found.empty()) found = quantizers(catalog_);
    LogicalWeight weight{.name = codes.name, .shape = codes.shape};
    weight.method = fmt::format("torch {}", info(codes.dtype).torch);
    weight.bits = codes.dtype == DType::qi32    ? 32
                  : codes.dtype == DType::qu4x2 ? 4
                  : codes.dtype == DType::qu2x4 ? 2
                                                : 8;
    weight.block = "tensor";
    weight.parts = {codes.name};
    const auto at = found.find(codes.name);
    if (!has_rule(codes.dtype))
      open(weight, "no rule makes numbers of them: torch's .dequantize() does");
    else if (at == found.end())
      open(weight, "its quantizer is not there");
    else
      set_affine(weight, codes, *at->second);
    add(std::move(weight));
  }
}

// The codes are seen as [what is before the channels, channels, the rest].
void WeightFinder::set_affine(LogicalWeight& weight, const Tensor& codes,
                              const Object& object) {
  const Quantizer quantizer = quantizer_of(catalog_, object, codes);
  if (!quantizer.open.empty()) return open(weight, quantizer.open);
  Decoding& made = weight.made;
  const size_t axis = quantizer.axis.value_or(0);
  made.rows = codes.shape.empty() ? 1 : codes.shape[axis];
  made.columns = 1;
  for (size_t d = 0; d < codes.shape.size(); ++d)
    if (d != axis) (d < axis ? made.batch : made.columns) *= codes.shape[d];
  if (made.batch * made.rows * made.columns == 0)
    return open(weight, "it is empty");
  made.block_rows = quantizer.axis ? 1 : made.rows;
  made.block_columns = made.columns;
  if (quantizer.axis) weight.block = fmt::format("channels of axis {}", axis);
  const Shape grid{1, quantizer.scales.size(), 1};
  set_tensor(made.codes, codes, {made.batch, made.rows, made.columns});
  made.codes.dtype = codes.dtype == DType::qi8 ? DType::i8 : DType::u8;
  made.scales.name = scales_of(codes.name);
  made.scales.dtype = DType::f32;
  made.scales.shape = grid;
  weight.parts.push_back(made.scales.name);
  if (quantizer.zeros.empty()) return;
  made.zeros = made.scales;
  made.zeros.name = zeros_of(codes.name);
  weight.parts.push_back(made.zeros.name);
}

}  // namespace ckpt::families
