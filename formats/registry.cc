#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "ckpt/error.h"
#include "formats/dcp/dcp.h"
#include "formats/deepspeed/deepspeed.h"
#include "formats/fairseq2/fairseq2.h"
#include "formats/foreign.h"
#include "formats/format.h"
#include "formats/megatron/legacy.h"
#include "formats/megatron/megatron.h"
#include "formats/megatron/zarr.h"
#include "formats/meta/meta.h"
#include "formats/modelopt/modelopt.h"
#include "formats/olmo_core/olmo_core.h"
#include "formats/olmo_core/v1.h"
#include "formats/safetensors/safetensors.h"
#include "formats/torch/torch.h"
#include "formats/vllm/vllm.h"
#include "lib/io/file.h"
#include "lib/io/listing.h"
#include "lib/text/format.h"
#include "lib/text/suggest.h"
#include "lib/trace.h"

namespace ckpt::formats {
namespace {

using text::printable;

std::vector<Format> make_formats() {
  std::vector<Format> formats;
  // In the order they are tried: what is more special comes first.
  formats.push_back({"fairseq2", "fairseq2's native checkpoints",
                     fairseq2::make_reader(), fairseq2::make_writer()});
  formats.push_back({"megatron_legacy",
                     "Megatron-LM's ranks, one directory each (mp_rank_XX)",
                     megatron::make_legacy_reader(),
                     megatron::make_legacy_writer()});
  formats.push_back(
      {"megatron_torch_dist", "Megatron-Core's distributed checkpoints",
       megatron::make_dist_reader(), megatron::make_dist_writer()});
  formats.push_back(
      {"megatron_zarr", "the same of the zarr backend (cores up to 0.15)",
       megatron::make_zarr_reader(), megatron::make_zarr_writer()});
  formats.push_back({"olmo_core", "OLMo-core's checkpoints since 1.0 (on DCP)",
                     olmo_core::make_reader(), olmo_core::make_writer()});
  formats.push_back({"olmo_core_v1", "OLMo-core's checkpoints up to 0.1.0",
                     olmo_core::v1::make_reader(),
                     olmo_core::v1::make_writer()});
  formats.push_back({"dcp", "PyTorch distributed checkpoints (.distcp)",
                     dcp::make_reader(), dcp::make_writer()});
  formats.push_back({"modelopt", "ModelOpt's shards and files of whole blocks",
                     modelopt::make_reader(), modelopt::make_writer()});
  formats.push_back({"meta", "Meta's ranks of Llama (consolidated.NN.pth)",
                     meta::make_reader(), meta::make_writer()});
  formats.push_back({"vllm", "vLLM's tensor-parallel ranks (sharded_state)",
                     vllm::make_reader(), vllm::make_writer()});
  formats.push_back({"safetensors",
                     "safetensors: one file, or a Hugging Face directory",
                     safetensors::make_reader(), safetensors::make_writer()});
  formats.push_back({"deepspeed", "DeepSpeed's checkpoints: ZeRO, universal",
                     deepspeed::make_reader(), deepspeed::make_writer()});
  formats.push_back({"torch", "torch.save: .pt, .pth, .bin, .ckpt",
                     torch::make_reader(), torch::make_writer()});
  return formats;
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const Format& format : all_formats()) names.emplace_back(format.name);
  return names;
}

std::string known_formats() {
  return fmt::format("ckpt reads {}", fmt::join(format_names(), ", "));
}

// What could have been meant, if a path does not exist.
std::string missing_hint(const std::string& path) {
  const std::string directory = io::parent(path);
  if (!io::is_directory(directory)) {
    std::string above = directory;
    while (!io::is_directory(above) && above != io::parent(above))
      above = io::parent(above);
    return fmt::format("{} exists, what is below it does not",
                       printable(above));
  }
  try {
    const std::string near =
        text::nearest(io::base_name(path), io::list_directory(directory));
    if (!near.empty())
      return fmt::format("did you mean {}?",
                         printable(io::join(directory, near)));
  } catch (const Error&) {
    // The directory can't be listed: no suggestion then.
  }
  return {};
}

void check_path(const std::string& path) {
  if (io::is_file(path) || io::is_directory(path)) return;
  std::error_code ignored;
  const auto facts = std::filesystem::symlink_status(path, ignored);
  if (std::filesystem::is_symlink(facts))
    throw missing_error({path, {}}, "is a link to nothing")
        .with_hint(
            "in a Hugging Face cache this means that the download did "
            "not finish");
  if (std::filesystem::exists(facts))
    throw missing_error({path, {}}, "is neither a file nor a directory");
  throw missing_error({path, {}}, "no such file or directory")
      .with_hint(missing_hint(path));
}

// The answers of all formats: "torch: does not start with PK\3\4; …"
std::string all_answers(const Detection& detection) {
  std::string answers;
  for (const auto& [name, why] : detection.tried)
    answers += fmt::format("{}{}: {}", answers.empty() ? "" : "; ", name, why);
  return answers;
}

[[noreturn]] void unknown_file(const Detection& detection) {
  const std::string& path = detection.path;
  if (const auto foreign = recognise_file(path))
    throw missing_error({path, {}}, "no checkpoint: this is {}", foreign->what)
        .with_hint(foreign->hint.empty() ? known_formats()
                                         : std::string(foreign->hint));
  std::error_code ignored;
  if (std::filesystem::file_size(path, ignored) == 0)
    throw missing_error({path, {}}, "is empty (0 bytes)")
        .with_hint("fetch or copy the file again");
  throw missing_error({path, {}}, "is of no format that ckpt knows ({})",
                      all_answers(detection))
      .with_hint(known_formats() +
                 "; name the format with --from if it is "
                 "one of these");
}

// A checkpoint inside of a directory that is none: "step_10 (fairseq2)".
std::string checkpoint_below(const std::string& path,
                             const std::vector<std::string>& names) {
  constexpr size_t kMostTried = 64;
  size_t tried = 0;
  for (const std::string& name : names) {
    if (tried++ == kMostTried) break;
    const std::string below = io::join(path, name);
    for (const Format& format : all_formats()) {
      try {
        if (format.reader && format.reader->supports(below).yes)
          return fmt::format("{} looks like {}", printable(below), format.name);
      } catch (const Error&) {
        // It can't be read, so it is no suggestion.
      }
    }
  }
  return {};
}

// A file in a directory that explains why it is no checkpoint.
std::string foreign_inside(const std::string& path,
                           const std::vector<std::string>& names) {
  constexpr size_t kMostTried = 64;
  for (size_t i = 0; i < std::min(names.size(), kMostTried); ++i) {
    const auto foreign = recognise_file(io::join(path, names[i]));
    if (foreign)
      return fmt::format("{} is {}{}{}", printable(names[i]), foreign->what,
                         foreign->hint.empty() ? "" : ": ", foreign->hint);
  }
  return {};
}

[[noreturn]] void unknown_directory(const Detection& detection) {
  const std::string& path = detection.path;
  const std::vector<std::string> names = io::list_directory(path);
  if (names.empty())
    throw missing_error({path, {}}, "is an empty directory")
        .with_hint(known_formats());
  std::string hint = checkpoint_below(path, names);
  if (hint.empty()) hint = foreign_inside(path, names);
  if (hint.empty()) hint = known_formats();
  throw missing_error({path, {}},
                      "no checkpoint that ckpt knows is in this directory ({})",
                      all_answers(detection))
      .with_hint(hint);
}

// A file whose name says that it is something else, and which then can't be
// read, is most likely that: an .npz is a zip archive as torch's files are.
Catalog read(const Format& format, const std::string& path,
             const ReadOptions& options) {
  try {
    return format.reader->read_catalog(path, options);
  } catch (const Error& error) {
    const auto foreign = recognise({}, io::base_name(path));
    if (!foreign) throw;
    throw error.with_hint(fmt::format("by its name this is {}", foreign->what));
  }
}

// What a format is called elsewhere, for who asks for it by that name.
std::string meant_format(std::string_view name) {
  struct Called {
    std::vector<std::string_view> names;
    std::string_view hint;
  };
  static const std::vector<Called> elsewhere = {
      {{"hf", "huggingface", "hugging_face", "transformers"},
       "the format of Hugging Face's files is safetensors; --dialect hf gives "
       "their names"},
      {{"megatron", "megatron_core", "megatron_lm", "mcore", "torch_dist"},
       "Megatron's: megatron_torch_dist, megatron_legacy (mp_rank_XX) or "
       "megatron_zarr"},
      {{"pt", "pth", "bin", "pytorch"}, "did you mean torch?"},
      {{"distcp", "fsdp", "fsdp2"}, "did you mean dcp?"},
      {{"olmo"}, "did you mean olmo_core?"},
      {{"gguf"},
       "ckpt has no GGUF; llama.cpp makes it from Hugging Face's files: "
       "safetensors with --dialect hf"}};
  for (const Called& called : elsewhere)
    if (std::ranges::find(called.names, name) != called.names.end())
      return std::string(called.hint);
  if (const std::string near = text::nearest(name, format_names());
      !near.empty())
    return fmt::format("did you mean {}?", near);
  return fmt::format("formats: {}", fmt::join(format_names(), ", "));
}

}  // namespace

const std::vector<Format>& all_formats() {
  static const std::vector<Format> formats = make_formats();
  return formats;
}

const Format& find_format(std::string_view name) {
  for (const Format& format : all_formats())
    if (format.name == name) return format;
  throw usage_error({}, "unknown format \"{}\"", printable(name))
      .with_hint(meant_format(name));
}

Detection detect(const std::string& path) {
  check_path(path);
  const io::SameListings listings;
  Detection detection;
  detection.path = path;
  for (const Format& format : all_formats()) {
    if (!format.reader) continue;
    Support support = format.reader->supports(path);
    detection.tried.emplace_back(format.name, std::move(support.why));
    if (!support.yes) continue;
    detection.format = &format;
    return detection;
  }
  // No content that anybody knows; its name still says who can tell what is
  // wrong with it.
  if (io::is_file(path) && path.ends_with(".safetensors")) {
    detection.format = &find_format("safetensors");
    detection.tried.emplace_back("safetensors", "is named .safetensors");
    return detection;
  }
  if (io::is_directory(path)) unknown_directory(detection);
  unknown_file(detection);
}

Catalog open(const std::string& path, const std::string& from,
             const ReadOptions& options) {
  const trace::Span span("headers");
  const io::SameListings listings;
  if (from.empty()) {
    const Detection detection = detect(path);
    Catalog catalog = read(*detection.format, detection.path, options);
    catalog.assumptions.insert(
        catalog.assumptions.begin(),
        fmt::format("format {}: {}", detection.format->name,
                    detection.tried.back().second));
    return catalog;
  }
  const Format& format = find_format(from);
  if (!format.reader)
    throw usage_error({}, "format {} can be written, not read", from);
  check_path(path);
  return read(format, path, options);
}

}  // namespace ckpt::formats
