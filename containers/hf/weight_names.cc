// SPDX-License-Identifier: Apache-2.0
#include "containers/hf/weight_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "ckpt/note.h"
#include "containers/hf/numbered.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::formats {
namespace {

constexpr std::string_view kSafetensors = ".safetensors";

constexpr auto kAll = std::to_array<WeightNames>({
    {"transformers", "model", "pytorch_model"},
    {"diffusers", "diffusion_pytorch_model", "diffusion_pytorch_model"},
    {"peft", "adapter_model", "adapter_model"},
    {"diffusers' LoRA", "pytorch_lora_weights", "pytorch_lora_weights"},
    {"MLX's LoRA", "adapters", "adapters"},
    {"open_clip", "open_clip_model", "open_clip_pytorch_model"},
});

struct Parsed {
  const WeightNames* names;
  std::string variant;
};

// "model.fp16-00001-of-00002.safetensors"; older libraries put the variant
// behind the numbers.
std::optional<Parsed> parse(std::string_view file) {
  const bool safe = file.ends_with(kSafetensors);
  if (!safe && !file.ends_with(".bin")) return std::nullopt;
  std::string stem(file.substr(0, file.rfind('.')));
  if (const auto numbered = parse_numbered(file)) {
    const std::string_view rest = numbered->rest;
    stem = numbered->stem;
    stem += rest.substr(0, rest.rfind('.'));
  }
  const size_t dot = stem.find('.');
  const std::string_view name = std::string_view(stem).substr(0, dot);
  const auto row = std::ranges::find(
      kAll, name, safe ? &WeightNames::safetensors : &WeightNames::torch);
  if (row == kAll.end()) return std::nullopt;
  return Parsed{&*row, dot == stem.npos ? "" : stem.substr(dot + 1)};
}

// False if the variant says another dtype than the tensors have.
bool has_dtype_of(const Catalog& catalog, std::string_view variant) {
  std::optional<DType> said;
  if (variant == "fp16") said = DType::f16;
  if (variant == "bf16") said = DType::bf16;
  if (variant == "fp32") said = DType::f32;
  if (!said) return true;
  return std::ranges::none_of(catalog.tensors, [&](const Tensor& tensor) {
    const bool plain = tensor.dtype == DType::f32 ||
                       tensor.dtype == DType::f16 ||
                       tensor.dtype == DType::bf16;
    return plain && tensor.dtype != *said;
  });
}

// The files of the model's tensors, if a library gives all of them one name.
std::optional<Parsed> find_names(const Catalog& source) {
  std::set<uint32_t> files;
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::model)
      for (const Piece& piece : tensor.pieces) files.insert(piece.extent.file);
  std::optional<Parsed> found;
  for (const uint32_t file : files) {
    const auto one = parse(io::base_name(source.files[file].path));
    const bool same = one && (!found || (one->names == found->names &&
                                         one->variant == found->variant));
    if (!same) return std::nullopt;
    found = one;
  }
  return found;
}

}  // namespace

std::span<const WeightNames> weight_names() { return kAll; }

bool is_named_for_library(const Catalog& source) {
  return find_names(source).has_value();
}

bool has_loader(std::string_view file) { return parse(file).has_value(); }

bool has_index_loader(std::string_view file) {
  const std::string_view stem = file.substr(0, file.find_first_of("-."));
  constexpr size_t kLibraries = 2;
  return std::ranges::any_of(
      std::span(kAll).first(kLibraries), [&](const WeightNames& names) {
        return stem == names.safetensors || stem == names.torch;
      });
}

void check_has_index(const std::string& directory,
                     std::span<const std::string> names,
                     std::vector<Problem>& problems) {
  if (names.empty() || !parse_numbered(names[0])) return;
  const auto found = parse(names[0]);
  if (!found || !has_index_loader(names[0])) return;
  const bool safe = names[0].ends_with(kSafetensors);
  const Stem stem{
      std::string(safe ? found->names->safetensors : found->names->torch),
      found->variant, std::string(safe ? kSafetensors : ".bin")};
  problems.push_back(warning(
      "no_index", {io::join(directory, stem.index()), {}},
      "is missing, and {} opens no {} without it; vLLM reads them all; ckpt "
      "convert with --to safetensors writes one",
      found->names->library, text::printable(names[0])));
}

void check_opened_unasked(const std::string& directory, std::string_view file,
                          std::vector<Problem>& problems) {
  constexpr std::string_view kIndex = ".index.";
  if (!io::is_file(io::join(directory, "config.json"))) return;
  const Where where{io::join(directory, std::string(file)), {}};
  // mlx-lm's loader tries "model*" and then "weight*".
  if (file.starts_with("weight") && file.ends_with(kSafetensors)) {
    problems.push_back(warning(
        "variant_alone", where,
        "mlx-lm opens a file of this name, and transformers and diffusers "
        "don't: ckpt convert with --to safetensors writes model{}",
        kSafetensors));
    return;
  }
  // "model.safetensors.index.fp16.json" has the variant behind "index".
  std::string name(file);
  std::string variant;
  if (const size_t at = file.find(kIndex);
      at != file.npos && file.ends_with(".json")) {
    name = file.substr(0, at);
    if (file.size() > at + kIndex.size() + 4)
      variant =
          file.substr(at + kIndex.size(), file.size() - at - kIndex.size() - 5);
  }
  const auto found = parse(name);
  if (!found || !has_index_loader(name)) return;
  if (variant.empty()) variant = found->variant;
  if (variant.empty()) return;
  problems.push_back(warning(
      "variant_alone", where,
      "{} opens it only with from_pretrained(..., variant=\"{}\"): without "
      "that it looks for {}{}",
      found->names->library, text::printable(variant),
      name.ends_with(kSafetensors) ? found->names->safetensors
                                   : found->names->torch,
      name.ends_with(kSafetensors) ? kSafetensors : ".bin"));
}

std::string Stem::file(uint64_t number, uint64_t count) const {
  const std::string full = variant.empty() ? name : name + "." + variant;
  return count == 1 ? full + ending
                    : numbered_name(full, number, count, ending);
}

std::string Stem::index() const {
  return fmt::format("{}{}.index{}{}.json", name, ending,
                     variant.empty() ? "" : ".", variant);
}

Stem stem_like(const Catalog& source, std::string_view ending) {
  const bool safe = ending == kSafetensors;
  const auto found = find_names(source);
  Stem stem{std::string(safe ? kAll[0].safetensors : kAll[0].torch),
            {},
            std::string(ending)};
  if (!found) return stem;
  stem.name = safe ? found->names->safetensors : found->names->torch;
  if (has_dtype_of(source, found->variant)) stem.variant = found->variant;
  return stem;
}

}  // namespace ckpt::formats
