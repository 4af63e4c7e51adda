// SPDX-License-Identifier: Apache-2.0
// Weights of torchao's tensor classes in a pickle.
//
//   a.weight             the object, with its class, dtype and shape
//   a.weight.args.3.…    what it is made of: qdata, scale, zero_point, and
//                        values such as block_size

#include <array>

#include "ckpt/error.h"
#include "convert/quantized/quantized.h"
#include "convert/quantized/weight_finder.h"
#include "formats/dcp/subclass.h"
#include "lib/pickle/json.h"
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
  if (std::ranges::find(kClasses, kind) == kClasses.end())
    open(weight, "no rule knows torchao's class " + kind);
  if (weight.parts.size() > known)
    open(weight, "no rule knows what " + weight.parts[known] + " is for");
  const Tensor* codes = get(stem + "qdata");
  const Tensor* scales = get(stem + "scale");
  if (!codes || !scales || made_of->shape != codes->shape ||
      codes->shape.size() != 2 || !block.is_array() || block.size() != 2 ||
      !is_size(block[0]) || !is_size(block[1]) ||
      !(codes->dtype == DType::i8 || is_small_float(codes->dtype)))
    open(weight, "its parts are not those of the class");
  if (weight.open.empty()) set_torchao(weight, *codes, *scales, block);
  if (weight.open.empty() && made_of->dtype != DType::f32)
    weight.made.rounds = made_of->dtype;
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

}  // namespace ckpt::families
