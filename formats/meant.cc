// SPDX-License-Identifier: Apache-2.0
#include "formats/meant.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "containers/foreign.h"
#include "formats/format.h"
#include "formats/runs/find/trainer.h"
#include "lib/text/format.h"
#include "lib/text/suggest.h"

namespace ckpt::formats {
namespace {

constexpr std::string_view kHuggingFace =
    "--to safetensors --dialect hf writes Hugging Face's files and names";
constexpr std::string_view kMegatron =
    "Megatron's: megatron_torch_dist, megatron_legacy (mp_rank_XX) or "
    "megatron_zarr";
constexpr std::string_view kLoadsHuggingFace =
    "it loads Hugging Face's files: --to safetensors --dialect hf";
constexpr std::string_view kArrays =
    "ckpt does not have it: safetensors is read in NumPy, JAX, TensorFlow and "
    "PyTorch by the package of that name, NumPy's own files are numpy";

struct Called {
  std::vector<std::string_view> names;  // lower case, "_" for "-", "." and " "
  std::string_view hint;
};

// Names by which a format is known elsewhere, its own excepted.
const std::vector<Called>& called_elsewhere() {
  static const std::vector<Called> all = {
      {{"hf", "huggingface", "hugging_face", "hf_safetensors", "transformers",
        "peft"},
       kHuggingFace},
      {{"st"}, "did you mean safetensors?"},
      {{"megatron", "megatron_core", "megatron_lm", "mcore"}, kMegatron},
      // Megatron's --ckpt-format, --dist-ckpt-format and
      // --non-persistent-ckpt-type.
      {{"torch_dist", "dist", "dist_ckpt", "dist_checkpointing",
        "dist_checkpoint", "megatron_dist", "megatron_dist_ckpt", "mcore_dist",
        "mcore_torch_dist"},
       "did you mean megatron_torch_dist?"},
      {{"zarr", "zarr2", "zarr3"},
       "did you mean megatron_zarr? JAX's directories of zarr are orbax"},
      {{"fsdp_dtensor", "megatron_fsdp", "mfsdp"},
       "did you mean megatron_fsdp_dtensor?"},
      {{"local", "nvrx"}, "did you mean megatron_local?"},
      {{"mp_rank", "megatron_torch", "megatron_mp_rank", "legacy"},
       "did you mean megatron_legacy?"},
      {{"torch_dcp", "distcp", "fsdp", "fsdp1", "fsdp2", "dtensor",
        "torch_distributed", "torch_distributed_checkpoint",
        "distributed_checkpoint"},
       "did you mean dcp?"},
      {{"pt", "pth", "bin", "pytorch", "ckpt", "torch_save", "pytorch_bin",
        "pkl", "pickle"},
       "did you mean torch?"},
      {{"olmo", "olmo2", "olmo3"}, "did you mean olmo_core?"},
      {{"ds", "zero", "zero1", "zero2", "zero3", "universal", "ucp",
        "deepspeed_zero"},
       "did you mean deepspeed?"},
      {{"llama", "llama2", "llama3", "consolidated", "meta_llama"},
       "Meta's own files (consolidated.00.pth) are meta, Hugging Face's "
       "safetensors; a model's family is said with --family"},
      {{"sharded_state"}, "did you mean vllm?"},
      {{"trt_model_optimizer", "nvidia_modelopt", "model_optimizer"},
       "did you mean modelopt?"},
      {{"pl", "pytorch_lightning"},
       "a step of Lightning is format run, with --trainer lightning"},
      {{"trainer"},
       "a step of transformers' Trainer is format run, with --trainer "
       "hf_trainer"},
      {{"titan"},
       "a step of torchtitan is format run, with --trainer torchtitan"},
      {{"nemo2", "nemo_2"},
       "a step of NeMo 2 is format run, the model in it megatron_torch_dist"},
      {{"jax", "flax", "maxtext", "t5x", "big_vision"},
       "orbax is read, not written; the package safetensors loads safetensors "
       "as arrays of JAX"},
      {{"npy", "npz", "np", "ndarray"}, "did you mean numpy?"},
      {{"tensorflow", "tf", "keras", "paddle"}, kArrays},
      {{"ollama", "llama_cpp", "llamacpp", "lmstudio"}, "did you mean gguf?"},
      {{"sglang", "tgi", "mlx", "tensorrt_llm", "trtllm", "lmdeploy"},
       kLoadsHuggingFace}};
  return all;
}

const OtherFormat* other_format(std::string_view name) {
  for (const OtherFormat& other : other_formats())
    if (other.ending.substr(1) == name) return &other;
  return nullptr;
}

std::string as_listed(std::string_view name) {
  std::string plain(name.substr(0, 256));
  while (plain.starts_with('.')) plain.erase(0, 1);
  for (char& c : plain)
    c = c == '-' || c == ' ' || c == '.'
            ? '_'
            : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return plain;
}

}  // namespace

std::string meant_format(std::string_view name) {
  const std::string plain = as_listed(name);
  std::vector<std::string> formats;
  for (const Format& format : all_formats()) formats.emplace_back(format.name);
  if (std::ranges::find(formats, plain) != formats.end())
    return fmt::format("did you mean {}?", plain);
  for (const Called& called : called_elsewhere())
    if (std::ranges::find(called.names, plain) != called.names.end())
      return std::string(called.hint);
  for (const runs::Trainer& trainer : runs::trainers())
    if (trainer.name == plain)
      return fmt::format("a step of {0} is format run, with --trainer {0}",
                         trainer.name);
  if (const OtherFormat* other = other_format(plain))
    return other->to_make.empty() ? std::string(kArrays)
                                  : fmt::format("ckpt has no {}: {}",
                                                other->title, other->to_make);
  if (const std::string near = text::nearest(plain, formats); !near.empty())
    return fmt::format("did you mean {}?", near);
  return fmt::format("formats: {}", fmt::join(formats, ", "));
}

std::string written_instead(std::string_view format) {
  if (format == "nemo")
    return "--to megatron_torch_dist: NeMo's newer folders hold the model so";
  if (format == "orbax")
    return "--to safetensors: safetensors.flax loads it, "
           "orbax.checkpoint saves that";
  if (format == "megatron_fsdp_dtensor")
    return "--to megatron_torch_dist: Megatron's checkpoint_inspector.py "
           "convert-torch-dist-to-fsdp-dtensor makes it of that";
  if (format == "megatron_local")
    return "--to megatron_torch_dist, which a job loads from any node";
  return "";
}

}  // namespace ckpt::formats
