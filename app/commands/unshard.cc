// SPDX-License-Identifier: Apache-2.0
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/commands/source.h"
#include "app/commands/within.h"
#include "app/commands/write.h"
#include "app/options/target_name.h"
#include "ckpt/error.h"
#include "convert/check_source.h"
#include "convert/config/dialects.h"
#include "formats/options.h"
#include "formats/traits.h"
#include "formats/unsharded.h"

namespace ckpt::app {
namespace {

class Unshard : public Command {
 public:
  std::string_view name() const override { return "unshard"; }
  std::string_view help() const override {
    return "join all shards: one file, or a directory of whole tensors";
  }
  std::string_view examples() const override {
    return "ckpt unshard step_5000 model.safetensors --model-only\n"
           "ckpt unshard step_5000 model.pt --dtype bf16\n"
           "ckpt unshard step_5000 whole/ --max-shard-size 5GB\n"
           "ckpt unshard step_5000 whole/ --per-tensor --to torch";
  }
  void add_options(CLI::App& app) override {
    add_request_options(
        app, request_, "A directory, or a file: .safetensors, .pt, .pth, .bin");
    app.add_option("--to", container_,
                   "Container of a directory's files: safetensors or torch")
        ->type_name("FORMAT")
        ->group("Target");
    add_optimizer_option(app, request_.write);
    app.add_flag("--per-tensor", per_tensor_,
                 "A directory with one file for each tensor")
        ->group("Target");
  }
  ExitCode run() override {
    check_options();
    request_.command = "unshard";
    request_.output = output;
    return within_memory(request_, [this] { return write(); });
  }

 private:
  ExitCode write() {
    Catalog source = open_for_write(request_);
    log_problems(families::check_beside(
        source, {.family = request_.source.read.family}));
    warn_of_names(source);
    Layout layout;
    layout.format = file_format(request_.target_path);
    layout.single_file = !layout.format.empty();
    if (!layout.single_file) set_directory(source, layout);
    source = with_state_as_asked(request_, std::move(source), layout);
    return write_checkpoint(request_, std::move(source), layout);
  }

  // Shards are joined under their own names. With a config.json beside them
  // they look like a model of transformers, which would find none of its names.
  void warn_of_names(const Catalog& source) const {
    const std::string_view from = families::dialect_of(source);
    if (from.empty() || from == "hf") return;
    if (!families::find_family(source, {.family = request_.source.read.family}))
      return;
    spdlog::warn(
        "names stay those of {}: unshard joins shards; `ckpt convert SRC DST "
        "--to safetensors` gives those of transformers",
        families::owner_of(from));
  }

  void check_options() const {
    const bool file = !file_format(request_.target_path).empty();
    if (!container_.empty() && !formats::traits_of(container_).is_container)
      throw usage_error({}, "--to '{}': expected safetensors or torch",
                        container_)
          .with_hint("ckpt convert SRC DST --to " + container_ +
                     " writes other formats");
    if (file && (per_tensor_ || !container_.empty()))
      throw usage_error({request_.target_path, {}},
                        "{} is for directories, and this is one file's name",
                        per_tensor_ ? "--per-tensor" : "--to")
          .with_hint("a trailing slash makes any name a directory");
    if (per_tensor_ && request_.write.max_shard_size > 0)
      throw usage_error({},
                        "--per-tensor and --max-shard-size exclude each "
                        "other: a tensor is never split");
  }

  // OLMo-core's own unshard writes model and optimizer separately; other
  // formats become a directory like Hugging Face's.
  void set_directory(const Catalog& source, Layout& layout) const {
    const formats::Traits& traits = formats::traits_of(source.format);
    if (!container_.empty())
      layout.format = container_;
    else
      layout.format = traits.is_container
                          ? source.format
                          : std::string(formats::usual_container());
    std::string_view form;
    if (per_tensor_)
      form = formats::kTensors;
    else if (traits.unshards_apart)
      form = request_.write.max_shard_size > 0 ? formats::kChunks
                                               : formats::kFiles;
    if (!form.empty()) layout.options[std::string(formats::kForm)] = form;
  }

  std::string container_;  // "": the source's
  bool per_tensor_ = false;
  WriteRequest request_;
};

}  // namespace

std::unique_ptr<Command> make_unshard() { return std::make_unique<Unshard>(); }

}  // namespace ckpt::app
