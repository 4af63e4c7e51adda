// SPDX-License-Identifier: Apache-2.0
// The formats, a row each: a new one adds a row here and a folder.
#include <algorithm>
#include <iterator>

#include "ckpt/error.h"
#include "formats/component_tree.h"
#include "formats/dcp/dcp.h"
#include "formats/deepspeed/deepspeed.h"
#include "formats/fairseq2/fairseq2.h"
#include "formats/format.h"
#include "formats/gguf/gguf.h"
#include "formats/meant.h"
#include "formats/megatron/integrity.h"
#include "formats/megatron/legacy.h"
#include "formats/megatron/megatron.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/options.h"
#include "formats/megatron/state/optimizer.h"
#include "formats/megatron/zarr.h"
#include "formats/meta/meta.h"
#include "formats/modelopt/modelopt.h"
#include "formats/modelopt/options.h"
#include "formats/nemo/nemo.h"
#include "formats/numpy/numpy.h"
#include "formats/olmo_core/olmo_core.h"
#include "formats/olmo_core/v1/v1.h"
#include "formats/orbax/orbax.h"
#include "formats/own.h"
#include "formats/runs/run_format.h"
#include "formats/safetensors/safetensors.h"
#include "formats/target.h"
#include "formats/torch/torch.h"
#include "formats/unsharded.h"
#include "formats/vllm/unfuse.h"
#include "formats/vllm/vllm.h"
#include "lib/text/format.h"

namespace ckpt::formats {
namespace {

struct FunctionReader final : Reader {
  FunctionReader(std::string_view name, Supports supports, ReadCatalog read)
      : named(name), asks(supports), reads(read) {}
  std::string_view name() const override { return named; }
  Support supports(const std::string& path) const override {
    return asks(path);
  }
  Catalog read_catalog(const std::string& path,
                       const ReadOptions& options) const override {
    return reads(path, options);
  }
  const std::string_view named;
  const Supports asks;
  const ReadCatalog reads;
};

struct FunctionWriter final : Writer {
  FunctionWriter(std::string_view name, Review review, LayOut lay_out,
                 bool objects)
      : named(name), reviews(review), lays_out(lay_out), opens(objects) {}
  std::string_view name() const override { return named; }
  Catalog review(Catalog source, const Layout& layout) const override {
    return reviews ? reviews(std::move(source), layout) : source;
  }
  Target lay_out(const Catalog& source, const Layout& layout) const override {
    if (named != "torch") refuse_quantized(source, named);  // it has a place
    return lays_out(source, layout);
  }
  bool wants_objects() const override { return opens; }
  const std::string_view named;
  const Review reviews;
  const LayOut lays_out;
  const bool opens;
};

bool stacks_layers(std::string_view name) {
  return megatron::parse_key(name).layer_axis;
}

void gather_distributed(Catalog& source) {
  megatron::gather_optimizer(source, true);
}

Traits megatron_traits() {
  return {.dialect = "mcore",
          .grid = "megatron",
          .settle = megatron::settle_options,
          .rewritten_as = {},
          .sharded_objects = true,
          .typed_config = true,
          .pads_rows = true,
          .check_files = megatron::check_integrity_file};
}

Traits megatron_dist_traits() {
  Traits traits = megatron_traits();
  traits.options = megatron::dist_options();
  traits.stacks_layers = stacks_layers;
  return traits;
}

// For either backend; `more`: its additional files.
Traits megatron_backend_traits(std::initializer_list<std::string_view> more) {
  Traits traits = megatron_dist_traits();
  traits.gather_optimizer = gather_distributed;
  traits.own_files = {"latest_checkpointed_iteration.txt", "metadata.json",
                      "common.pt", "integrity.json"};
  traits.own_files.insert(traits.own_files.end(), more);
  return traits;
}

Traits torch_dist_traits() {
  return megatron_backend_traits(
      {".metadata", "*.distcp", "*/dist_ckpt/.metadata",
       "*/dist_ckpt/metadata.json", "*/dist_ckpt/common.pt"});
}

Traits megatron_zarr_traits() {
  Traits traits = megatron_backend_traits({"*/.zarray", "*/.zattrs"});
  traits.leaves_arrays = true;
  return traits;
}

// Its options are per parameter, not per group.
void refuse_optimizer(Catalog& source) {
  throw unfaithful_error(
      {source.path, {}},
      "optimizer state of Megatron-FSDP has its options by parameter "
      "(param_to_group_meta), which are not read as groups")
      .with_hint("--model-only converts the model alone");
}

Traits megatron_fsdp_traits() {
  Traits traits = megatron_traits();
  traits.gather_optimizer = refuse_optimizer;
  return traits;
}

Traits megatron_legacy_traits() {
  Traits traits = megatron_traits();
  traits.options = megatron::legacy_options();
  traits.own_files = {"latest_checkpointed_iteration.txt", "mp_rank_*.pt"};
  return traits;
}

std::vector<Format> make_formats() {
  std::vector<Format> formats;
  // In the order they are tried: the more specific come first.
  formats.push_back({"nemo",
                     "NeMo 1's archives (.nemo), opened in place",
                     nemo::make_reader(),
                     nullptr,
                     {.dialect = "mcore", .mixed_dialects = true}});
  formats.push_back(
      {"orbax",
       "Orbax's trees of zarr arrays (JAX)",
       orbax::make_reader(),
       nullptr,
       {.any_tensors = true,
        .own_files = {"_METADATA", "_CHECKPOINT_METADATA", "_sharding",
                      "_strings.json", "array_metadatas/*", "manifest.ocdbt",
                      "d/*", "ocdbt.process_*/*"},
        .leaves_arrays = true}});
  formats.push_back({"fairseq2",
                     "fairseq2's native checkpoints",
                     fairseq2::make_reader(),
                     fairseq2::make_writer(),
                     {.dialect = "fairseq2",
                      .own_files = {"latest", "*/latest"},
                      .reads_rules = true}});
  formats.push_back({"megatron_legacy",
                     "Megatron-LM's ranks, one directory each (mp_rank_XX)",
                     megatron::make_legacy_reader(),
                     megatron::make_legacy_writer(), megatron_legacy_traits()});
  formats.push_back({"megatron_torch_dist",
                     "Megatron-Core's distributed checkpoints",
                     megatron::make_dist_reader(), megatron::make_dist_writer(),
                     torch_dist_traits()});
  formats.push_back({"megatron_zarr",
                     "the same of the zarr backend (cores up to 0.15)",
                     megatron::make_zarr_reader(), megatron::make_zarr_writer(),
                     megatron_zarr_traits()});
  formats.push_back({"megatron_fsdp_dtensor",
                     "Megatron-FSDP's checkpoints (fsdp_dtensor, on DCP)",
                     megatron::make_fsdp_reader(), nullptr,
                     megatron_fsdp_traits()});
  formats.push_back({"megatron_local",
                     "Megatron-Core's local checkpoints (iter_N_RANK_local.pt)",
                     megatron::make_local_reader(), nullptr,
                     megatron_dist_traits()});
  formats.push_back({"olmo_core",
                     "OLMo-core's checkpoints since 1.0 (on DCP)",
                     olmo_core::make_reader(),
                     olmo_core::make_writer(),
                     {.dialect = "olmo_core",
                      .own_files = {".metadata", ".metadata.json",
                                    "model_and_optim/.metadata",
                                    "model_and_optim/*.distcp", "*.distcp"},
                      .flat_objects = true,
                      .unshards_apart = true}});
  formats.push_back(
      {"olmo_core_v1",
       "OLMo-core's checkpoints up to 0.1.0",
       olmo_core::v1::make_reader(),
       olmo_core::v1::make_writer(),
       {.dialect = "olmo_core",
        .mixed_dialects = true,
        .own_files = {"metadata.json", ".metadata.json", "model/metadata.json",
                      "optim/metadata.json"},
        .unshards_apart = true}});
  formats.push_back(
      {"dcp",
       "PyTorch distributed checkpoints (.distcp)",
       dcp::make_reader(),
       dcp::make_writer(),
       {.any_tensors = true,
        .own_files = {".metadata", "__*.metadata", "*.index.json", "*.distcp"},
        .flat_objects = true}});
  formats.push_back({"modelopt",
                     "ModelOpt's shards and files of whole blocks",
                     modelopt::make_reader(),
                     modelopt::make_writer(),
                     {.dialect = "hf",
                      .mixed_dialects = true,
                      .repeats_tied_head = true,
                      .options = modelopt::options(),
                      .settle = modelopt::settle_options,
                      .own_files = {"*.index.json", "*.index.*.json"}}});
  formats.push_back({"meta",
                     "Meta's ranks of Llama (consolidated.NN.pth)",
                     meta::make_reader(),
                     meta::make_writer(),
                     {.dialect = "meta", .keeps_names = false}});
  formats.push_back({"vllm",
                     "vLLM's tensor-parallel ranks (sharded_state)",
                     vllm::make_reader(),
                     vllm::make_writer(),
                     {.dialect = "vllm",
                      .takes = "hf",
                      .unfuse = vllm::unfuse,
                      .computes_rotary = "vLLM",
                      .own_files = {"*.index.json", "*.index.*.json"}}});
  formats.push_back({"safetensors",
                     "safetensors: one file, or a Hugging Face directory",
                     safetensors::make_reader(),
                     with_forms(with_components(safetensors::make_writer())),
                     {.any_tensors = true,
                      .is_container = true,
                      .options = {form_option()},
                      .own_files = {"*.index.json", "*.index.*.json"},
                      .about_files = {"__metadata__", "__index_metadata__"},
                      .endings = {".safetensors"},
                      .unwraps_names = true}});
  formats.push_back({"gguf",
                     "GGUF: llama.cpp's files, and their parts",
                     gguf::make_reader(),
                     gguf::make_writer(),
                     {.dialect = "gguf",
                      .own_dtypes = true,
                      .model_alone = true,
                      .keeps_names = false,
                      .about_files = {"gguf.types"},
                      .endings = {".gguf"}}});
  formats.push_back({"deepspeed",
                     "DeepSpeed's checkpoints: ZeRO, universal",
                     deepspeed::make_reader(),
                     deepspeed::make_writer(),
                     {.target_ranks = Traits::Ranks::kNone,
                      .own_files = {"latest", "latest_universal", "*_states.pt",
                                    "zero/*", "layer_*.pt"}}});
  formats.push_back({"torch",
                     "torch.save: .pt, .pth, .bin, .ckpt",
                     torch::make_reader(),
                     with_forms(with_components(torch::make_writer())),
                     {.any_tensors = true,
                      .is_container = true,
                      .options = {form_option()},
                      .own_files = {"*.index.json", "*.index.*.json"},
                      .endings = {".pt", ".pth", ".bin", ".ckpt"}}});
  formats.push_back(
      {"numpy",
       "NumPy's arrays: .npy, .npz, a directory of .npy",
       numpy::make_reader(),
       numpy::make_writer(),
       {.any_tensors = true, .unlisted = true, .endings = {".npz", ".npy"}}});
  formats.push_back({"run",
                     "the folder of a step, as its trainer left it",
                     runs::make_run_reader(),
                     runs::make_run_writer(),
                     {.target_ranks = Traits::Ranks::kSources,
                      .options = runs::options(),
                      .settle = runs::settle_options,
                      .is_run = true,
                      .any_name = true}});
  return formats;
}

}  // namespace

std::unique_ptr<Reader> reader_of(std::string_view name, Supports supports,
                                  ReadCatalog read_catalog) {
  return std::make_unique<FunctionReader>(name, supports, read_catalog);
}

std::unique_ptr<Writer> writer_of(std::string_view name, Review review,
                                  LayOut lay_out, bool wants_objects) {
  return std::make_unique<FunctionWriter>(name, review, lay_out, wants_objects);
}

const std::vector<Format>& all_formats() {
  static const std::vector<Format> formats = [] {
    std::vector<Format> known = make_formats();
    std::vector<Format> all = own_formats(known);
    std::ranges::move(known, std::back_inserter(all));
    return all;
  }();
  return formats;
}

const Traits& traits_of(std::string_view name) {
  static const Traits defaults;
  for (const Format& format : all_formats())
    if (format.name == name) return format.traits;
  return defaults;
}

const Format& find_format(std::string_view name) {
  for (const Format& format : all_formats())
    if (format.name == name) return format;
  throw usage_error({}, "unknown format \"{}\"", text::printable(name))
      .with_hint(meant_format(name));
}

}  // namespace ckpt::formats
