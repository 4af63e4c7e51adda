// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "ckpt/error.h"
#include "containers/foreign.h"
#include "containers/hf/hub_cache.h"
#include "formats/dcp/dcp.h"
#include "formats/deepspeed/deepspeed.h"
#include "formats/fairseq2/fairseq2.h"
#include "formats/file_list.h"
#include "formats/format.h"
#include "formats/megatron/integrity.h"
#include "formats/megatron/legacy.h"
#include "formats/megatron/megatron.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/zarr.h"
#include "formats/meta/meta.h"
#include "formats/modelopt/modelopt.h"
#include "formats/olmo_core/olmo_core.h"
#include "formats/olmo_core/v1/v1.h"
#include "formats/runs/rewrite.h"
#include "formats/runs/run.h"
#include "formats/safetensors/safetensors.h"
#include "formats/torch/torch.h"
#include "formats/tried.h"
#include "formats/unsharded.h"
#include "formats/vllm/unfuse.h"
#include "formats/vllm/vllm.h"
#include "lib/io/file.h"
#include "lib/io/listing.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/suggest.h"
#include "lib/trace.h"
#include "lib/tree_memory.h"

namespace ckpt::formats {
namespace {

using text::printable;

bool stacks_layers(std::string_view name) {
  return megatron::parse_key(name).layer_axis;
}

Traits megatron_traits() {
  return {.dialect = "mcore",
          .grid = "megatron",
          .options = Traits::Options::kMegatron,
          .sharded_objects = true,
          .typed_config = true,
          .pads_rows = true,
          .check_files = megatron::check_integrity_file};
}

Traits megatron_dist_traits() {
  Traits traits = megatron_traits();
  traits.optimizer_forms = true;
  traits.stacks_layers = stacks_layers;
  return traits;
}

Traits megatron_legacy_traits() {
  Traits traits = megatron_traits();
  traits.virtual_stages = true;
  return traits;
}

std::vector<Format> make_formats() {
  std::vector<Format> formats;
  // In the order they are tried: what is more special comes first.
  formats.push_back({"fairseq2",
                     "fairseq2's native checkpoints",
                     fairseq2::make_reader(),
                     fairseq2::make_writer(),
                     {.dialect = "fairseq2", .reads_rules = true}});
  formats.push_back({"megatron_legacy",
                     "Megatron-LM's ranks, one directory each (mp_rank_XX)",
                     megatron::make_legacy_reader(),
                     megatron::make_legacy_writer(), megatron_legacy_traits()});
  formats.push_back({"megatron_torch_dist",
                     "Megatron-Core's distributed checkpoints",
                     megatron::make_dist_reader(), megatron::make_dist_writer(),
                     megatron_dist_traits()});
  formats.push_back({"megatron_zarr",
                     "the same of the zarr backend (cores up to 0.15)",
                     megatron::make_zarr_reader(), megatron::make_zarr_writer(),
                     megatron_dist_traits()});
  formats.push_back(
      {"olmo_core",
       "OLMo-core's checkpoints since 1.0 (on DCP)",
       olmo_core::make_reader(),
       olmo_core::make_writer(),
       {.dialect = "olmo_core", .flat_objects = true, .unshards_apart = true}});
  formats.push_back({"olmo_core_v1",
                     "OLMo-core's checkpoints up to 0.1.0",
                     olmo_core::v1::make_reader(),
                     olmo_core::v1::make_writer(),
                     {.dialect = "olmo_core",
                      .mixed_dialects = true,
                      .unshards_apart = true}});
  formats.push_back({"dcp",
                     "PyTorch distributed checkpoints (.distcp)",
                     dcp::make_reader(),
                     dcp::make_writer(),
                     {.any_tensors = true, .flat_objects = true}});
  formats.push_back({"modelopt",
                     "ModelOpt's shards and files of whole blocks",
                     modelopt::make_reader(),
                     modelopt::make_writer(),
                     {.dialect = "hf",
                      .mixed_dialects = true,
                      .repeats_tied_head = true,
                      .options = Traits::Options::kBlocks}});
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
                      .computes_rotary = "vLLM"}});
  formats.push_back({"safetensors",
                     "safetensors: one file, or a Hugging Face directory",
                     safetensors::make_reader(),
                     with_forms(safetensors::make_writer()),
                     {.any_tensors = true, .is_container = true}});
  formats.push_back({"deepspeed",
                     "DeepSpeed's checkpoints: ZeRO, universal",
                     deepspeed::make_reader(),
                     deepspeed::make_writer(),
                     {.target_ranks = Traits::Ranks::kNone}});
  formats.push_back({"torch",
                     "torch.save: .pt, .pth, .bin, .ckpt",
                     torch::make_reader(),
                     with_forms(torch::make_writer()),
                     {.any_tensors = true, .is_container = true}});
  formats.push_back({"run",
                     "the folder of a step, as its trainer left it",
                     runs::make_run_reader(),
                     runs::make_run_writer(),
                     {.target_ranks = Traits::Ranks::kSources}});
  return formats;
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const Format& format : all_formats()) names.emplace_back(format.name);
  return names;
}

std::string known_formats() {
  std::vector<std::string> names = format_names();
  std::erase(names, "run");  // is told by its parts
  return fmt::format("ckpt reads {}", fmt::join(names, ", "));
}

// "meta-llama/Llama-3-8B", not a path of ours.
bool is_hub_name(const std::string& path) {
  const size_t slash = path.find('/');
  const auto plain = [](std::string_view part) {
    return !part.empty() && part[0] != '.' && part[0] != '-' &&
           std::ranges::all_of(part, [](unsigned char c) {
             return std::isalnum(c) || c == '.' || c == '-' || c == '_';
           });
  };
  return slash != path.npos && plain(std::string_view(path).substr(0, slash)) &&
         plain(std::string_view(path).substr(slash + 1));
}

// What could have been meant, if a path does not exist.
std::string missing_hint(const std::string& path) {
  const std::string directory = io::parent(path);
  try {
    if (io::is_url(path)) return {};
    if (!io::is_directory(directory)) {
      if (is_hub_name(path))
        return fmt::format("a model of the Hugging Face hub is hf://{}",
                           printable(path));
      std::string above = directory;
      while (!io::is_directory(above) && above != io::parent(above))
        above = io::parent(above);
      return fmt::format("{} is the last directory of that path that exists",
                         printable(above));
    }
    const std::string near =
        text::nearest(io::base_name(path), io::list_directory(directory));
    if (!near.empty())
      return fmt::format("did you mean {}?",
                         printable(io::join(directory, near)));
  } catch (const Error&) {
    // It can't be looked at or listed: no suggestion then.
  }
  return {};
}

void check_path(const std::string& path) {
  const bool pipe = path == "/dev/stdin";
  if (!pipe && (io::is_file(path) || io::is_directory(path))) return;
  if (pipe || path == "-" || path.starts_with("/dev/fd/") ||
      path.starts_with("/proc/self/fd/"))
    throw missing_error({path, {}}, "a checkpoint can't be read from a pipe")
        .with_hint("save it to a file first; a file named -: ./-");
  throw missing_error({path, {}}, "no such file or directory")
      .with_hint(missing_hint(path));
}

constexpr std::string_view kShowTried = "; -v shows what was tried";

[[noreturn]] void empty_file(const std::string& path) {
  throw missing_error({path, {}}, "an empty file (0 bytes)")
      .with_hint("fetch or copy the file again");
}

[[noreturn]] void unknown_file(const Detection& detection) {
  const std::string& path = detection.path;
  if (const auto foreign = recognise_file(path))
    throw missing_error({path, {}}, "not a checkpoint: this is {}",
                        foreign->what)
        .with_hint(foreign->hint.empty() ? known_formats()
                                         : std::string(foreign->hint));
  if (io::file_size(path) == 0) empty_file(path);
  throw missing_error({path, {}}, "not a recognized checkpoint")
      .with_hint(known_formats() + std::string(kShowTried));
}

// Checkpoints inside of a directory that is none, a few levels down:
// "step_10 (fairseq2)". `left` bounds how many directories are looked at.
void checkpoints_below(const std::string& path, const std::string& shown,
                       int depth, size_t& left,
                       std::vector<std::string>& found) {
  std::vector<std::string> names;
  try {
    names = io::list_directory(path);
  } catch (const Error&) {
    return;  // it can't be listed, so it is no suggestion
  }
  for (const std::string& name : names) {
    const std::string below = io::join(path, name);
    const std::string title = shown.empty() ? name : shown + "/" + name;
    if (!io::is_directory(below) && depth > 0) continue;
    if (left == 0) return;
    --left;
    bool known = false;
    for (const Format& format : all_formats()) {
      try {
        if (!format.reader || !format.reader->supports(below).yes) continue;
      } catch (const Error&) {
        continue;
      }
      found.push_back(fmt::format("{} ({})", printable(title), format.name));
      known = true;
      break;
    }
    if (!known && depth < 3 && io::is_directory(below))
      checkpoints_below(below, title, depth + 1, left, found);
  }
}

// "below it are: a (dcp), b (dcp) and 7 more"; "" if there are none.
std::string below_text(const std::string& path) {
  constexpr size_t kShown = 6, kMostTried = 200;
  size_t left = kMostTried;
  std::vector<std::string> found;
  checkpoints_below(path, "", 0, left, found);
  if (found.empty()) return {};
  const size_t more = found.size() - std::min(found.size(), kShown);
  found.resize(found.size() - more);
  return fmt::format("below it {}: {}{}", found.size() == 1 ? "is" : "are",
                     fmt::join(found, ", "),
                     more ? fmt::format(" and {} more", more) : "");
}

// What the names in a directory say that it is.
std::string foreign_directory(const std::string& path,
                              const std::vector<std::string>& names) {
  for (const ForeignDirectory& row : foreign_directories())
    for (const std::string& name : names)
      if (row.exact ? name == row.name : name.ends_with(row.name))
        return fmt::format("{}: {}", row.foreign.what, row.foreign.hint);
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
    throw missing_error({path, {}}, "an empty directory")
        .with_hint(known_formats());
  std::string hint = below_text(path);
  if (hint.empty()) hint = foreign_directory(path, names);
  // A format that nearly took it says why it did not.
  std::string near;
  for (const auto& [name, why] : detection.tried)
    if (near.empty() && (why.find("incomplete save") != why.npos ||
                         why.find("name the one") != why.npos ||
                         why.find("not a torch.save file") != why.npos ||
                         why.find("nor 'release'") != why.npos))
      near = fmt::format(" ({}: {})", name, why);
  if (hint.empty()) hint = known_formats();
  throw missing_error({path, {}}, "not a recognized checkpoint{}", near)
      .with_hint(hint + std::string(kShowTried));
}

// A pointer of git-lfs, or the page that a failed download left: the data is
// not there, whatever the name and wherever it lies.
bool stands_for_data(std::string_view what) {
  return what.starts_with("a git-lfs pointer") || what == "an HTML page" ||
         what == "an XML document";
}

// A file whose name says that it is something else, and which then can't be
// read, is most likely that: an .npz is a zip archive as torch's files are.
Catalog read(const Format& format, const std::string& path,
             const ReadOptions& options) {
  try {
    Catalog catalog = format.reader->read_catalog(path, options);
    list_files(catalog.root.empty() ? path : catalog.root, catalog);
    return catalog;
  } catch (const tree_memory::Full& error) {
    throw resource_error({path, {}}, "{}", error.problem())
        .with_hint(error.hint());
  } catch (const Error& error) {
    const std::string& file = error.where().path;
    if (error.code() == ExitCode::kDamaged && io::is_file(file)) {
      if (const auto found = recognise_file(file);
          found && stands_for_data(found->what))
        throw missing_error({file, {}}, "not a checkpoint: this is {}",
                            found->what)
            .with_hint(std::string(found->hint));
      if (file == path && io::file_size(file) == 0) empty_file(path);
    }
    const auto foreign = recognise({}, io::base_name(path));
    if (!foreign) throw;
    throw error.with_hint(fmt::format("by its name this is {}", foreign->what));
  }
}

// A run's step as any other format's path is read.
class StepReader final : public Reader {
 public:
  StepReader(const runs::Found& found, std::string given)
      : found_(found), given_(std::move(given)) {}
  std::string_view name() const override { return "run"; }
  Support supports(const std::string&) const override {
    return {true, found_.why};
  }
  Catalog read_catalog(const std::string&,
                       const ReadOptions& options) const override {
    if (auto catalog = runs::read_run(found_, given_, options))
      return *std::move(catalog);
    Catalog nobodys;
    nobodys.path = found_.step;
    return nobodys;
  }

 private:
  const runs::Found& found_;
  const std::string given_;
};

// Nothing if the step turns out to be of no trainer.
std::optional<Catalog> read_found(const runs::Found& found,
                                  const std::string& path,
                                  const ReadOptions& options) {
  const Format format{.name = "run",
                      .what = "",
                      .reader = std::make_unique<StepReader>(found, path),
                      .writer = nullptr};
  // A step that is one file is all that there is to read.
  const bool file = !io::is_directory(found.step);
  Catalog catalog = read(format, file ? found.step : path, options);
  if (!catalog.run) return std::nullopt;
  return catalog;
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

const Traits& traits_of(std::string_view name) {
  static const Traits defaults;
  for (const Format& format : all_formats())
    if (format.name == name) return format.traits;
  return defaults;
}

const Format& find_format(std::string_view name) {
  for (const Format& format : all_formats())
    if (format.name == name) return format;
  throw usage_error({}, "unknown format \"{}\"", printable(name))
      .with_hint(meant_format(name));
}

namespace {

Detection try_formats(const std::string& path) {
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
  return detection;
}

}  // namespace

std::vector<std::string> tried_formats(const std::string& path) {
  const io::SameListings listings;
  std::vector<std::string> answers;
  for (const auto& [name, why] : try_formats(path).tried)
    answers.push_back(fmt::format("not {}: {}", name, why));
  return answers;
}

Detection detect(const std::string& path) {
  check_path(path);
  const io::SameListings listings;
  Detection detection = try_formats(path);
  if (detection.format != nullptr) return detection;
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
  if (const auto snapshot = find_snapshot(path)) {
    Catalog catalog = open(snapshot->path, from, options);
    catalog.assumptions.insert(catalog.assumptions.begin(), snapshot->why);
    return catalog;
  }
  const trace::Span span("headers");
  const io::SameListings listings;
  if (from.empty() && options.trainer != "none") {
    check_path(path);
    if (const auto found = runs::find_run(path, options.trainer))
      if (auto catalog = read_found(*found, path, options))
        return *std::move(catalog);
    if (!options.trainer.empty())
      throw missing_error({path, {}}, "is no step of {} and no root of steps",
                          options.trainer)
          .with_hint("leave --trainer out: inspect -v says what it is");
  }
  if (from.empty()) {
    const Detection detection = detect(path);
    Catalog catalog = read(*detection.format, detection.path, options);
    if (options.trainer.empty()) runs::adopt(catalog, {}, options);
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
