// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/job_args.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "ckpt/note.h"
#include "formats/megatron/model/vocab.h"
#include "formats/megatron/state/common.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

// A dict, and ways to add entries to it.
class Entries {
 public:
  Entries(Document& document, Id dict) : document_(document), dict_(dict) {}

  void set(const char* name, Id value) { document_.set(dict_, name, value); }
  void set_number(const char* name, uint64_t value) {
    set(name, document_.add_int(static_cast<int64_t>(value)));
  }
  // Only if absent.
  void add(const char* name, Id value) {
    if (document_.find(dict_, name) == kNoId) set(name, value);
  }
  void add_number(const char* name, const std::optional<uint64_t>& value) {
    if (value) add(name, document_.add_int(static_cast<int64_t>(*value)));
  }
  void add_none(const char* name) { add(name, document_.add_none()); }
  void add_flag(const char* name, bool value) {
    add(name, document_.add_bool(value));
  }
  void set_flag(const char* name, bool value) {
    set(name, document_.add_bool(value));
  }
  void set_text(const char* name, std::string_view value) {
    set(name, document_.add_string(value));
  }
  void add_text(const char* name, std::string_view value) {
    add(name, document_.add_string(value));
  }

 private:
  Document& document_;
  Id dict_;
};

// Adds what shapes and names say about the model.
void add_model(Entries& args, const Facts& facts, const Catalog& catalog) {
  args.add_number("num_layers", facts.num_layers);
  args.add_number("hidden_size", facts.hidden_size);
  args.add_number("num_experts", facts.num_experts);
  if (facts.gated) args.add_flag("swiglu", *facts.gated);
  if (facts.untied)
    args.add_flag("untie_embeddings_and_output_weights", *facts.untied);
  const uint64_t rows = vocabulary_rows(catalog);
  if (rows != 0) args.set_number("padded_vocab_size", rows);
  args.set_number("make_vocab_size_divisible_by",
                  facts.vocab_multiple.value_or(kUsualVocabMultiple));
  if (facts.vocab_size) args.set_number("vocab_size", *facts.vocab_size);
}

void set_topology(Entries& args, const Facts& facts, const Layout& layout) {
  const Topology& grid = layout.topology;
  args.set_number("tensor_model_parallel_size", grid.tp);
  args.set_number("pipeline_model_parallel_size", grid.pp);
  args.set_number("expert_model_parallel_size", grid.ep);
  args.set_number("expert_tensor_parallel_size", facts.etp.value_or(grid.tp));
  args.set_number("data_parallel_size", grid.dp);
  args.set_number("context_parallel_size", 1);
  args.set_number("world_size", uint64_t{grid.tp} * grid.pp * grid.dp);
  args.set_number("rank", 0);
  for (const char* name :
       {"virtual_pipeline_model_parallel_size",
        "num_layers_per_virtual_pipeline_stage",
        "num_virtual_stages_per_pipeline_rank",
        "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
        "pipeline_model_parallel_layout"})
    args.add_none(name);
  args.set_flag("account_for_embedding_in_pipeline_split", false);
  args.set_flag("account_for_loss_in_pipeline_split", false);
  args.add_flag("sequence_parallel", false);
}

bool has_object(const Catalog& catalog, std::string_view name) {
  return std::ranges::any_of(catalog.objects,
                             [&](const Object& o) { return o.name == name; });
}

// A fresh start: no steps, samples or optimizer of an earlier training.
// Optimizer state, if any, is a distributed optimizer's.
void add_start(Entries& args, const Layout& layout, const Catalog& catalog) {
  const bool trained = has_object(catalog, "optimizer");
  for (const char* name : {"iteration", "consumed_train_samples",
                           "consumed_valid_samples", "skipped_train_samples"})
    args.add_number(name, 0);
  args.add_flag("use_distributed_optimizer", trained);
  args.add_flag("no_save_optim", !trained);
  args.add_flag("no_save_rng", true);
  args.add_flag("finetune", false);
  args.add_none("params_dtype");
  args.add_flag("bf16", false);
  args.add_flag("fp16", false);
  const bool ranks = layout.format == "megatron_legacy";
  const bool zarr = layout.format == "megatron_zarr";
  args.set_text("ckpt_format", ranks ? "torch" : zarr ? "zarr" : "torch_dist");
  args.set_flag("use_dist_ckpt", !ranks);
}

// argparse.Namespace, as pickle stores an instance without arguments.
Id add_namespace(Document& document, Id dict) {
  return document.add_call(
      {.how = pickle::How::kNewObj,
       .callable = document.add_global("argparse", "Namespace"),
       .args = document.add_container(Type::kTuple),
       .state = dict});
}

Object made(std::string name, std::shared_ptr<Document> document, Id node) {
  return {
      .name = std::move(name), .document = std::move(document), .node = node};
}

Object job_args(const Object& args, const Facts& facts, const Layout& layout,
                const Catalog& catalog) {
  auto document = std::make_shared<Document>();
  Id node = document->import(*args.document, args.node);
  if (document->is(node, Type::kDict)) node = add_namespace(*document, node);
  const Id dict = args_dict(*document, node);
  if (dict == kNoId) return args;  // of an unknown kind: unchanged
  Entries entries(*document, dict);
  add_model(entries, facts, catalog);
  set_topology(entries, facts, layout);
  if (facts.local_spec)
    entries.set_text("transformer_impl",
                     *facts.local_spec ? "local" : "transformer_engine");
  entries.add_text("transformer_impl", "transformer_engine");
  add_start(entries, layout, catalog);
  document->set_root(node);
  return made(kArgs, std::move(document), node);
}

}  // namespace

void make_job_args(Catalog& catalog, const Facts& facts, const Layout& layout) {
  std::vector<Object> front;
  const auto args = std::ranges::find(catalog.objects, std::string_view(kArgs),
                                      &Object::name);
  if (args != catalog.objects.end() && args->document) {
    front.push_back(job_args(*args, facts, layout, catalog));
    catalog.objects.erase(args);
  } else {
    catalog.problems.push_back(remark(
        "no_args", {{}, kArgs},
        "are not known, and not written: Megatron's training compares them "
        "when it loads; megatron-core does without"));
  }
  auto document = std::make_shared<Document>();
  const Id version = document->add_float(3);
  const Id iteration = document->add_int(0);
  if (!has_object(catalog, "checkpoint_version"))
    front.push_back(made("checkpoint_version", document, version));
  if (!has_object(catalog, "iteration"))
    front.push_back(made("iteration", document, iteration));
  catalog.objects.insert(catalog.objects.begin(),
                         std::make_move_iterator(front.begin()),
                         std::make_move_iterator(front.end()));
}

void set_dtype_args(Document& document, Id args, const Catalog& catalog) {
  const Id dict = args_dict(document, args);
  if (dict == kNoId) return;
  const auto set = [&](const char* name, Id value) {
    if (document.find(dict, name) != kNoId) document.set(dict, name, value);
  };
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::model || tensor.pinned) continue;
    const char* name = tensor.dtype == DType::bf16  ? "bfloat16"
                       : tensor.dtype == DType::f16 ? "float16"
                       : tensor.dtype == DType::f32 ? "float32"
                                                    : nullptr;
    if (!name || tensor.shape.size() < 2) continue;
    set("params_dtype", document.add_global("torch", name));
    set("bf16", document.add_bool(tensor.dtype == DType::bf16));
    set("fp16", document.add_bool(tensor.dtype == DType::f16));
    return;
  }
}

}  // namespace ckpt::megatron
