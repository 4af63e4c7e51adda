// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/common.h"

#include <fmt/format.h>

#include "api/salvage/structure.h"
#include "containers/torch/file_plan.h"
#include "formats/megatron/locate.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/model/rules.h"
#include "formats/megatron/model/vocab.h"
#include "lib/io/file.h"

namespace ckpt::library {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

std::string archive(const Document& document, Id root) {
  torch::FilePlan plan = torch::plan_file(
      document, root, {}, torch::archive_root_of(megatron::kCommonFile));
  return std::move(plan.file.literals[0].bytes);
}

// The args one by one, and where each comes from.
class Args {
 public:
  explicit Args(const Catalog& catalog) : catalog_(catalog) {
    dict_ = document_.add_container(Type::kDict);
    megatron::infer_facts(catalog.tensors, facts_);
  }

  Inferred file() {
    add_ranks();
    add_model();
    add_dtype();
    const Id root = document_.add_container(Type::kDict);
    document_.set(
        root, megatron::kArgs,
        document_.add_call(
            {.how = pickle::How::kNewObj,
             .callable = document_.add_global("argparse", "Namespace"),
             .args = document_.add_container(Type::kTuple),
             .state = dict_}));
    if (iteration_)
      document_.set(root, "iteration",
                    document_.add_int(static_cast<int64_t>(*iteration_)));
    document_.set(root, "checkpoint_version", document_.add_float(3));
    return {archive(document_, root), told_};
  }

 private:
  void tell(const char* name, const std::string& value, const char* from) {
    told_ += fmt::format("{}{} = {} ({})", told_.empty() ? "" : ", ", name,
                         value, from);
  }
  void set(const char* name, const std::optional<uint64_t>& value,
           const char* from) {
    if (!value || *value == 0) return;
    document_.set(dict_, name, document_.add_int(static_cast<int64_t>(*value)));
    tell(name, std::to_string(*value), from);
  }
  void set_flag(const char* name, const std::optional<bool>& value) {
    if (!value) return;
    document_.set(dict_, name, document_.add_bool(*value));
    tell(name, *value ? "True" : "False", "names and shapes");
  }

  // The grid of the objects with this key; empty if there are none.
  std::vector<uint64_t> grid_of(std::string_view key) const {
    for (const Object& object : catalog_.objects)
      if (const auto parsed = megatron::parse_object_key(object.name);
          parsed && parsed->key == key)
        return parsed->grid;
    return {};
  }

  void add_ranks() {
    iteration_ = megatron::iteration_number(io::base_name(catalog_.path));
    set("iteration", iteration_, "the directory's name");
    uint64_t tp = catalog_.topology.tp, pp = 0;
    const std::vector<uint64_t> rng = grid_of("rng_state");
    if (rng.size() >= 2) {
      pp = rng[0];
      tp = rng[1];
    }
    set("tensor_model_parallel_size", tp,
        pp != 0 ? "grid of rng_state" : "boxes of the tensors");
    set("pipeline_model_parallel_size", pp, "grid of rng_state");
    const std::vector<uint64_t> world = grid_of("rerun_state_machine_state");
    if (world.size() != 1) return;
    set("world_size", world[0], "grid of rerun_state_machine_state");
    if (pp != 0 && tp != 0 && world[0] % (tp * pp) == 0)
      set("data_parallel_size", world[0] / (tp * pp), "world_size");
  }

  const Tensor* ending(std::string_view end) const {
    for (const Tensor& tensor : catalog_.tensors)
      if (tensor.kind == Kind::model && tensor.name.ends_with(end) &&
          !megatron::parse_key(tensor.name).tower && !tensor.shape.empty())
        return &tensor;
    return nullptr;
  }

  void add_model() {
    constexpr const char* kShapes = "shapes";
    set("num_layers", facts_.num_layers, "names and shapes");
    set("num_experts", facts_.num_experts, "names and shapes");
    set_flag("swiglu", facts_.gated);
    set_flag("untie_embeddings_and_output_weights", facts_.untied);
    set("padded_vocab_size", megatron::vocabulary_rows(catalog_), kShapes);
    if (const Tensor* words = ending("embedding.word_embeddings.weight"))
      set("hidden_size", words->shape.back(), kShapes);
    if (const Tensor* down = ending("mlp.linear_fc2.weight"))
      set("ffn_hidden_size", down->shape.back(), kShapes);
    if (ending("linear_fc1.weight"))
      set_flag("add_bias_linear", ending("linear_fc1.bias") != nullptr);
    add_heads();
  }

  // A norm of each head has the head's size. Without one, only products of that
  // size and the number of heads are known.
  void add_heads() {
    const Tensor* norm = ending("self_attention.q_layernorm.weight");
    const Tensor* out = ending("self_attention.linear_proj.weight");
    const Tensor* in = ending("self_attention.linear_qkv.weight");
    if (!norm || !out || !in || in->shape.size() < 2) return;
    const uint64_t head = norm->shape.back(), width = out->shape.back();
    const uint64_t rows = in->shape[in->shape.size() - 2];
    if (head == 0 || width % head != 0 || rows < width ||
        (rows - width) % (2 * head) != 0)
      return;
    set_flag("qk_layernorm", true);
    set("kv_channels", head, "shapes");
    set("num_attention_heads", width / head, "shapes");
    set("num_query_groups", (rows - width) / (2 * head), "shapes");
  }

  void add_dtype() {
    const Tensor* words = ending("linear_fc1.weight");
    if (!words) return;
    const bool bf16 = words->dtype == DType::bf16;
    const bool fp16 = words->dtype == DType::f16;
    if (!bf16 && !fp16 && words->dtype != DType::f32) return;
    document_.set(dict_, "params_dtype",
                  torch::add_dtype(document_, words->dtype));
    tell("params_dtype", std::string(name(words->dtype)), "the weights");
    set_flag("bf16", bf16);
    set_flag("fp16", fp16);
  }

  const Catalog& catalog_;
  megatron::Facts facts_;
  Document document_;
  Id dict_ = pickle::kNoId;
  std::optional<uint64_t> iteration_;
  std::string told_;
};

}  // namespace

std::string empty_common() {
  Document document;
  return archive(document, document.add_container(Type::kDict));
}

Inferred infer_common(const Catalog& catalog) { return Args(catalog).file(); }

}  // namespace ckpt::library
