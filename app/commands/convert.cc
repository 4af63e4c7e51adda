// SPDX-License-Identifier: Apache-2.0
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "api/places.h"
#include "app/command.h"
#include "app/commands/delta.h"
#include "app/commands/dialect.h"
#include "app/commands/source.h"
#include "app/commands/target.h"
#include "app/commands/within.h"
#include "app/commands/write.h"
#include "app/keep.h"
#include "app/options/adapter.h"
#include "app/options/read_paths.h"
#include "app/options/target_name.h"
#include "ckpt/adapter.h"
#include "ckpt/error.h"
#include "convert/config/dialects.h"
#include "formats/options.h"
#include "formats/traits.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"

namespace ckpt::app {
namespace {

class Convert : public Command {
 public:
  std::string_view name() const override { return "convert"; }
  std::string_view help() const override {
    return "rewrite a checkpoint in another format";
  }
  std::string_view examples() const override {
    return "ckpt convert model.pt model.safetensors\n"
           "ckpt convert step_5000 out --to torch --max-shard-size 5GB\n"
           "ckpt convert Llama-3-8B out --to megatron_torch_dist --tp 8 --pp "
           "4\n"
           "ckpt convert iter_0001000 out --to safetensors --family llama\n"
           "ckpt convert checkpoint-500 out --to run --trainer accelerate\n"
           "ckpt convert Llama-3-8B out --to safetensors --adapter my-lora";
  }
  void add_options(CLI::App& app) override {
    add_request_options(app, request_, "Where the new one goes");
    add_target_options(app, target_);
    add_dialect_options(app, dialect_);
    add_adapter_options(app, adapter_);
    add_optimizer_option(app, request_.write);
    names_file(app.add_option("--delta", delta_,
                              "Restore the files of a delta that diff made of "
                              "SRC without loss"))
        ->type_name("DELTA")
        ->group("Writing");
  }
  ExitCode run() override {
    library::check_target_name(request_.target_path);
    if (!delta_.empty()) return restore();
    // The ending of a file's name decides, as for unshard.
    if (target_.to.empty()) target_.to = file_format(request_.target_path);
    take_hugging_face();
    if (!adapter_.weights.empty() && !adapter_.any())
      throw usage_error({}, "--adapter-weight goes with --adapter DIR")
          .with_hint("name the adapter: --adapter DIR --adapter-weight W");
    if (adapter_.alpha &&
        !(*adapter_.alpha != 0 && std::isfinite(*adapter_.alpha)))
      throw usage_error({}, "--adapter-alpha {}", *adapter_.alpha);
    take_trainer();
    check_target_options(target_);
    request_.command = "convert";
    request_.source.read.set = numbers_of(dialect_);
    request_.output = output;
    return within_memory(request_, [this] { return write(); });
  }

 private:
  // "hf" is what people call its files and names together.
  void take_hugging_face() {
    constexpr std::string_view kNames[] = {"hf", "huggingface", "transformers"};
    if (std::ranges::find(kNames, target_.to) == std::end(kNames)) return;
    target_.to = std::string(formats::usual_container());
    if (dialect_.dialect.empty()) dialect_.dialect = "hf";
  }

  // The files are B's, whatever was asked for.
  ExitCode restore() {
    if (!target_.to.empty() || adapter_.any() || request_.write.dtype ||
        !request_.write.quantize.empty() ||
        !request_.write.rename_file.empty() || request_.select != Selection())
      throw usage_error({}, "--delta gives B's files back as they were")
          .with_hint("restore them, then convert the result");
    request_.command = "convert";
    request_.output = output;
    return restore_delta(request_, delta_);
  }

  ExitCode write() {
    Catalog source = open_for_write(request_);
    if (target_.to.empty()) target_.to = own_container(request_, source);
    const bool alone = is_adapter_alone(source);
    const bool inside = !alone && adds_inside(source);
    if (!alone && !inside) check_adapter(source);
    if (!alone && !inside) say_kept(source);
    if (adapter_.alpha && !alone && !inside && !adapter_.any())
      throw usage_error({}, "--adapter-alpha: there is no adapter in {}",
                        request_.source_path)
          .with_hint("name the adapter: --adapter PATH --adapter-alpha N");
    const bool any = !source.tensors.empty();
    const std::string dialect(families::dialect_of(source));
    const Selection& select = request_.select;
    const bool partial = !select.keys.empty() || !select.exclude.empty() ||
                         !select.layers.empty() || !select.blocks.empty() ||
                         request_.counted;
    dialect_.renamed = !request_.write.rename_file.empty();
    dialect_.with_optimizer = request_.write.with_optimizer;
    if (adapter_.any() || inside)
      source = with_adapters(std::move(source), inside,
                             partial || !select.experts.empty());
    if (alone)
      source = adapter_in_dialect(std::move(source));
    else
      source = into_dialect(std::move(source), dialect_,
                            request_.source.read.family, target_.to,
                            target_.vocab_size, request_.write.dtype, partial);
    check_renamed(source, dialect);
    if (source.tensors.empty() && any)
      throw usage_error({request_.source_path, {}},
                        "--drop leaves no tensor: nothing would be written");
    const Layout layout = make_layout(request_, target_, source);
    source = with_state_as_asked(request_, std::move(source), layout);
    return write_checkpoint(request_, std::move(source), layout);
  }

  // What --rename asks for is what a container gets, or it is refused; names
  // that were made those of another framework are on their way elsewhere.
  void check_renamed(const Catalog& source, std::string_view dialect) const {
    if (request_.renamed.empty() ||
        !formats::traits_of(target_.to).is_container ||
        (!dialect.empty() && dialect != "hf"))
      return;
    std::unordered_set<std::string_view> names;
    for (const Tensor& tensor : source.tensors) names.insert(tensor.name);
    for (const std::string& name : request_.renamed)
      if (!names.contains(name))
        throw unfaithful_error({source.path, name},
                               "--rename gives this name, and the names of "
                               "the target's model are others")
            .with_hint("--dialect keep writes names as --rename gives them");
  }

  // For a format with this option, it belongs to the target: whose step the
  // source is can be detected.
  void take_trainer() {
    std::string& named = request_.source.read.trainer;
    if (named.empty() || named == "none") return;
    if (formats::takes(target_.to, "trainer"))
      target_.options["trainer"] = std::exchange(named, {});
  }

  std::string wanted_adapter_dialect() const {
    if (!dialect_.dialect.empty()) return dialect_.dialect;
    const formats::Traits& target = formats::traits_of(target_.to);
    return std::string(target.is_container ? "hf" : target.dialect);
  }
  // True for an adapter that is converted to another dialect's names. Those
  // that need the base's numbers keep theirs in a container, if nothing says
  // them.
  bool is_adapter_alone(const Catalog& source) const {
    const std::string_view from = adapter_dialect(source);
    const std::string to = wanted_adapter_dialect();
    // Ranks' files hold no adapters: Megatron-Bridge does not write them.
    const formats::Traits& target = formats::traits_of(target_.to);
    const bool takes = !target.is_container && dialect_takes_adapters(to);
    const bool holds = takes || target.is_container || target.stacks_layers;
    if (from.empty() || adapter_.any() || !holds || from == to) return false;
    if (to == "mcore") return from == "hf" || from == "loose";
    const bool asked = !dialect_.config_from.empty() ||
                       dialect_.dialect == "hf" || from == "mcore";
    return takes || (to == "hf" && (asked || !adapter_needs_base(from)));
  }

  // An adapter in its base is added where names change, or where its alpha is
  // given; else the live model stays as it is.
  bool adds_inside(const Catalog& source) const {
    if (dialect_.dialect == "keep" || adapter_.any() ||
        !has_adapter_inside(source))
      return false;
    const std::string to = wanted_adapter_dialect();
    const std::string_view from = families::dialect_of(source);
    return adapter_.alpha || (!from.empty() && !to.empty() && from != to);
  }
  AdapterOptions adapter_options() const {
    return library_options(adapter_,
                           naming_of(dialect_, request_.source.read.family,
                                     target_.vocab_size, {}, false));
  }

  Catalog adapter_in_dialect(Catalog source) const {
    const bool global = formats::traits_of(target_.to).stacks_layers;
    const size_t before = source.assumptions.size();
    const auto problems = static_cast<ptrdiff_t>(source.problems.size());
    source = translate_adapter(std::move(source), wanted_adapter_dialect(),
                               global ? target_.topology.tp.to.value_or(1) : 1,
                               adapter_options());
    for (size_t i = before; i < source.assumptions.size(); ++i)
      spdlog::info("{}", text::printable(source.assumptions[i]));
    log_problems({source.problems.begin() + problems, source.problems.end()});
    return source;
  }

  // Names that only their own library reads.
  void say_kept(const Catalog& source) const {
    const std::string_view from = adapter_dialect(source);
    if (!formats::traits_of(target_.to).is_container || adapter_.any() ||
        !dialect_.dialect.empty() || !adapter_needs_base(from))
      return;
    spdlog::warn(
        "{}: the adapter's names stay those of {}: --config-from BASE gives "
        "PEFT's by the base's numbers (--dialect keep is silent)",
        text::printable(source.path), from);
  }

  // An adapter's parts mean something only beside their base.
  void check_adapter(const Catalog& source) const {
    const formats::Traits& target = formats::traits_of(target_.to);
    if (target.any_tensors) return;
    if (adapter_dialect(source) == target.dialect ||
        families::dialect_of(source) == target.dialect)
      return;
    if (const auto adapter = adapter_of(source))
      throw unfaithful_error({source.path, {}},
                             "an adapter ({}), which {} does not hold",
                             adapter->kind, target_.to)
          .with_hint("add it to its base: ckpt convert BASE DST --to " +
                     target_.to + " --adapter " +
                     text::shell_path(source.path));
  }

  Catalog with_adapters(Catalog source, bool inside, bool partial) {
    if (partial)
      throw usage_error({}, "--adapter needs the whole model")
          .with_hint("add the adapter first, then select from the result");
    keep(inside ? add_adapter_inside(source, adapter_options())
                : add_adapters(source, uses_of(adapter_), adapter_options()));
    return source;
  }

  WriteRequest request_;
  TargetOptions target_;
  DialectOptions dialect_;
  AdapterChoice adapter_;
  std::string delta_;
};

}  // namespace

std::unique_ptr<Command> make_convert() { return std::make_unique<Convert>(); }

}  // namespace ckpt::app
