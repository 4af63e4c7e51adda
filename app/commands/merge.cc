// SPDX-License-Identifier: Apache-2.0
#include "ckpt/merge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <string.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <utility>

#include "api/edit/select.h"
#include "api/places.h"
#include "app/command.h"
#include "app/commands/dialect.h"
#include "app/commands/source.h"
#include "app/commands/target.h"
#include "app/commands/within.h"
#include "app/commands/write.h"
#include "app/options/target_name.h"
#include "app/print/console.h"
#include "app/print/steps.h"
#include "ckpt/error.h"
#include "formats/format.h"
#include "formats/traits.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"

namespace ckpt::app {
namespace {

// Returns how many tensors of an optimizer there were.
uint64_t leave_state(Catalog& source) {
  const auto tensors = static_cast<uint64_t>(
      std::ranges::count(source.tensors, Kind::optim, &Tensor::kind));
  if (tensors != 0) library::choose(source, {.model_only = true});
  return tensors;
}

// step_900 comes before step_1000.
bool by_numbers(const std::string& a, const std::string& b) {
  return ::strverscmp(a.c_str(), b.c_str()) < 0;
}

// What a glob in the last part of a path matches, by the numbers in the names;
// any other path is itself.
std::vector<std::string> expanded(const std::string& path) {
  const std::string name = io::base_name(path);
  if (name.find_first_of("*?[") == name.npos || io::is_url(path) ||
      io::is_file(path) || io::is_directory(path))
    return {path};
  const size_t slash = path.rfind('/');
  const std::string folder =
      slash == path.npos ? "." : path.substr(0, slash + 1);
  if (!io::is_directory(folder)) return {path};
  const text::Glob glob(name);
  std::vector<std::string> found;
  for (const std::string& one : io::list_directory(folder))
    if (!one.starts_with('.') && glob.matches(one))
      found.push_back(slash == path.npos ? one : folder + one);
  std::ranges::sort(found, by_numbers);
  return found.empty() ? std::vector{path} : found;
}

std::set<DType> float_dtypes(const Catalog& source) {
  constexpr DType kFloats[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
  std::set<DType> found;
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::model &&
        std::ranges::find(kFloats, tensor.dtype) != std::end(kFloats))
      found.insert(tensor.dtype);
  return found;
}

class Merge : public Command {
 public:
  std::string_view name() const override { return "merge"; }
  std::string_view help() const override {
    return "average checkpoints, or put together what several learned";
  }
  std::string_view examples() const override {
    return "ckpt merge step_900 step_1000 averaged\n"
           "ckpt merge runs/llama averaged --last 5 --ema 0.9\n"
           "ckpt merge A B C out --weights 0.5,0.3,0.2 --dtype bf16\n"
           "ckpt merge math code out --method ties --base Llama-3-8B "
           "--density 0.5\n"
           "ckpt merge A B out --take 'lm_head.*=B'\n"
           "ckpt merge Llama-3-8B iter_0001000 out --to dcp";
  }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  void add_method_options(CLI::App& app);
  bool take_file();
  void take_paths();
  void take_last();
  void warn_of_order() const;
  MergeOptions method_options() const;
  MergeOptions merge_options() const;
  MergeTake parse_take(const std::string& text) const;
  size_t source_of(const std::string& name, const std::string& text) const;
  std::vector<Catalog> open_sources();
  void choose_dtype(const std::vector<Catalog>& sources);
  const Catalog& last_model(const std::vector<Catalog>& sources) const;
  ExitCode write();

  std::vector<std::string> given_;    // as on the command line
  std::vector<std::string> sources_;  // the base last, if there is one
  WriteRequest request_;
  TargetOptions target_;
  DialectOptions dialect_;
  std::vector<double> weights_, densities_;
  std::optional<double> decay_;
  std::string method_, base_;
  std::vector<std::string> takes_;
  uint32_t last_ = 0;
  std::optional<double> between_;  // --t, if it was given
  std::optional<double> factor_;   // --lambda
  std::optional<uint64_t> seed_;
  std::optional<MergeFile> file_;  // mergekit's
  bool normalize_ = false, no_normalize_ = false, no_rescale_ = false;
  bool exact_ = false, with_optimizer_ = false, allow_nonfinite_ = false;
};

void Merge::add_options(CLI::App& app) {
  app.add_option("SRC", given_,
                 "The checkpoints, of any formats; or a configuration of "
                 "mergekit, .yml")
      ->required()
      ->expected(1, -1)
      ->group("Arguments");
  app.add_option("DST", request_.target_path,
                 "The last one is where the new one goes")
      ->group("Arguments");
  add_method_options(app);
  add_select_options(app, request_.select);
  add_source_options(app, request_.source);
  add_write_options(app, request_.write);
  add_engine_options(app, request_.engine);
  add_target_options(app, target_);
  add_dialect_options(app, dialect_);
}

void Merge::add_method_options(CLI::App& app) {
  const char* group = "Merge";
  app.add_option("--weights", weights_,
                 "One for each source, in their order (default: 1 each)")
      ->type_name("W,W…")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--ema", decay_,
                 "A moving average, in their order (e = D e + (1 - D) x)")
      ->type_name("D")
      ->group(group);
  app.add_option("--method", method_,
                 "How they are merged, as mergekit defines it")
      ->type_name("NAME")
      ->check(CLI::IsMember({"linear", "slerp", "task_arithmetic", "ties",
                             "dare_linear", "dare_ties", "model_stock"}))
      ->group(group);
  app.add_option("--base", base_,
                 "The model that all were trained from, for methods that "
                 "compare with it")
      ->type_name("PATH")
      ->group(group);
  app.add_option("--last", last_,
                 "The last N complete steps of a run: SRC is its folder")
      ->type_name("N")
      ->check(CLI::Range(uint32_t{1}, uint32_t{100'000}))
      ->group(group);
  app.add_option("--take", takes_,
                 "Tensors that one source gives as they are: its path, or its "
                 "number; without a method the others are the first's")
      ->type_name("GLOB=SRC")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--density", densities_,
                 "Share of the deltas that is kept: one, or one for each "
                 "model")
      ->type_name("P,P…")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--lambda", factor_, "Factor of all deltas together")
      ->type_name("L")
      ->group(group);
  app.add_option("--t", between_, "slerp: 0 is the first, 1 the second (0.5)")
      ->type_name("T")
      ->group(group);
  app.add_option("--seed", seed_, "Of the deltas that dare leaves out (0)")
      ->type_name("N")
      ->group(group);
  auto* normalize =
      app.add_flag("--normalize", normalize_,
                   "Divide by the sum of the weights (linear, ties)")
          ->group(group);
  app.add_flag("--no-normalize", no_normalize_, "Take the sum as it is")
      ->excludes(normalize)
      ->group(group);
  app.add_flag("--no-rescale", no_rescale_,
               "dare: leave the deltas that are kept as they are")
      ->group(group);
  app.add_flag("--exact", exact_, "Compute in f64 instead of f32")
      ->group(group);
  app.add_flag("--allow-nonfinite", allow_nonfinite_,
               "Write values that are not finite")
      ->group(group);
  app.add_flag("--with-optimizer", with_optimizer_,
               "Average moments and main weights, too; all else is the last "
               "source's")
      ->group(group);
}

// True for a configuration of mergekit's, which says all by itself.
bool Merge::take_file() {
  const auto is_file = [](const std::string& path) {
    return path.ends_with(".yml") || path.ends_with(".yaml");
  };
  const auto found = std::ranges::find_if(given_, is_file);
  if (found == given_.end()) return false;
  if (given_.size() != 1)
    throw usage_error({*found, {}},
                      "a configuration of mergekit names its models itself")
        .with_hint("ckpt merge CONFIG.yml DST");
  if (!weights_.empty() || !densities_.empty() || decay_ || !method_.empty() ||
      !base_.empty() || !takes_.empty() || last_ != 0 || between_ || factor_ ||
      normalize_ || no_normalize_ || no_rescale_ || with_optimizer_)
    throw usage_error({*found, {}},
                      "the configuration says how models are merged, and so "
                      "do options")
        .with_hint("leave one of them out; --exact and --seed go with it");
  file_ = read_mergekit(*found);
  sources_ = file_->sources;
  for (std::string& source : sources_) source = library::source_place(source);
  if (!request_.write.dtype) request_.write.dtype = file_->dtype;
  for (const std::string& note : file_->notes) say_note(note);
  return true;
}

// The newest steps of the root that can be opened.
void Merge::take_last() {
  if (given_.size() != 1)
    throw usage_error({},
                      "--last takes the steps of one run, and these are "
                      "{} sources",
                      given_.size())
        .with_hint("ckpt merge RUN DST --last 5");
  const std::string& root = given_.front();
  std::vector<StepRow> steps =
      library::steps_in(root, request_.source.from, request_.source.read);
  if (steps.empty()) throw library::not_a_root(root);
  std::vector<StepRow> chosen;
  // A save in progress, or one that was cut off, is no step yet.
  for (; !steps.empty() && chosen.size() < last_; steps.pop_back()) {
    StepRow& newest = steps.back();
    library::open_step(newest, request_.source.from, request_.source.read);
    if (newest.complete)
      chosen.push_back(newest);
    else
      spdlog::warn("{}: is not complete, and is left out: {}",
                   text::printable(newest.path), newest.why);
  }
  if (chosen.size() < last_)
    throw usage_error({root, {}}, "--last {} is more than the {} here", last_,
                      text::counted(chosen.size(), "complete step"))
        .with_hint("`ckpt ls " + root + "` lists them");
  std::ranges::reverse(chosen);
  sources_.clear();
  std::string names;
  for (const StepRow& step : chosen) {
    sources_.push_back(step.path);
    names += (names.empty() ? "" : ", ") + step.name;
  }
  spdlog::info("merged: {}", text::printable(names));
}

// A shell lists step_1000 before step_900.
void Merge::warn_of_order() const {
  if (!decay_ || std::ranges::is_sorted(sources_, by_numbers)) return;
  say_note(
      "an average over steps goes by their order, and the numbers of these do "
      "not rise: " +
      text::printable(fmt::format("{}", fmt::join(sources_, ", "))));
}

// The sources, and whatever stands for several.
void Merge::take_paths() {
  if (take_file()) return;
  for (const std::string& given : given_)
    std::ranges::copy(expanded(given), std::back_inserter(sources_));
  if (last_ != 0) take_last();
  warn_of_order();
  if (!base_.empty()) sources_.push_back(base_);
  if (sources_.size() < 2)
    throw usage_error({}, "one source: there is nothing to merge it with")
        .with_hint(
            "ckpt merge A B DST; ckpt merge RUN DST --last 5; `ckpt unshard "
            "SRC "
            "DST` joins the shards of one");
}

// By path, or by number from 1.
size_t Merge::source_of(const std::string& name,
                        const std::string& text) const {
  for (size_t i = 0; i < sources_.size(); ++i)
    if (sources_[i] == name || io::base_name(sources_[i]) == name) return i;
  uint32_t number = 0;
  const auto [end, failed] =
      std::from_chars(name.data(), name.data() + name.size(), number);
  if (failed == std::errc() && end == name.data() + name.size() &&
      number >= 1 && number <= sources_.size())
    return number - 1;
  throw usage_error({}, "--take '{}': '{}' is none of the {} sources", text,
                    name, sources_.size())
      .with_hint(
          "after the last = stands a source as it was given, or its "
          "number from 1");
}

MergeTake Merge::parse_take(const std::string& text) const {
  const size_t sign = text.rfind('=');
  if (sign == 0 || sign == text.npos || sign + 1 == text.size())
    throw usage_error({}, "--take '{}': not GLOB=SRC", text)
        .with_hint("--take 'lm_head.*=B', where B is one of the sources");
  return {text.substr(0, sign), source_of(text.substr(sign + 1), text)};
}

MergeOptions Merge::method_options() const {
  MergeOptions options;
  const bool weighted =
      !weights_.empty() || decay_ || normalize_ || no_normalize_ || exact_;
  if (!method_.empty())
    options.method = merge_method(method_);
  else if (!takes_.empty() && !weighted)
    options.method.reset();
  if (!base_.empty()) options.base = sources_.size() - 1;
  options.weights = weights_;
  options.decay = decay_;
  options.densities = densities_;
  options.lambda = factor_.value_or(1);
  options.t = between_.value_or(0.5);
  if (normalize_ || no_normalize_) options.normalize = normalize_;
  if (no_rescale_) options.rescale = false;
  for (const std::string& text : takes_)
    options.takes.push_back(parse_take(text));
  return options;
}

MergeOptions Merge::merge_options() const {
  MergeOptions options = file_ ? file_->options : method_options();
  options.seed = seed_.value_or(0);
  options.exact = exact_;
  options.dtype = request_.write.dtype;
  options.allow_nonfinite = allow_nonfinite_;
  options.with_optimizer = with_optimizer_;
  options.family = request_.source.read.family;
  options.threads = request_.engine.threads;
  options.max_mem = request_.engine.max_mem;
  options.only_planned = request_.write.dry_run || request_.counted != nullptr;
  options.ignore_checksums = request_.write.ignore_checksums;
  options.note = [](const std::string& line) { say_note(line); };
  return options;
}

ExitCode Merge::run() {
  if (request_.target_path.empty())
    throw usage_error({}, "SRC and DST are required: {} given",
                      text::counted(given_.size(), "path"))
        .with_hint("ckpt merge A B DST");
  library::check_target_name(request_.target_path);
  if (target_.to.empty()) target_.to = file_format(request_.target_path);
  check_target_options(target_);
  request_.command = "merge";
  request_.output = output;
  request_.source.read.set = numbers_of(dialect_);
  take_paths();
  request_.source_path = sources_.front();
  return within_memory(request_, [this] { return write(); });
}

std::vector<Catalog> Merge::open_sources() {
  std::vector<Catalog> sources;
  uint64_t left_out = 0;
  for (size_t i = sources_.size(); i-- > 0;) {
    WriteRequest one = request_;
    one.source_path = sources_[i];
    sources.push_back(open_for_write(one));
    if (!with_optimizer_) left_out += leave_state(sources.back());
    if (i != 0) continue;
    request_.edits = one.edits;
    request_.part = one.part;
    request_.renamed = one.renamed;
  }
  std::ranges::reverse(sources);
  if (left_out != 0)
    say_note(fmt::format(
        "the optimizer's state is left out ({}): --with-optimizer merges "
        "moments and main weights, too",
        text::counted(left_out, "tensor")));
  return sources;
}

// The base stands last.
const Catalog& Merge::last_model(const std::vector<Catalog>& sources) const {
  return sources[sources.size() - (base_.empty() ? 1 : 2)];
}

// Of sources with different dtypes mergekit's result has what torch makes of
// them; the command's has the first one's.
void Merge::choose_dtype(const std::vector<Catalog>& sources) {
  if (request_.write.dtype || (!file_ && method_.empty() && !takes_.empty()))
    return;
  std::set<DType> all;
  for (const Catalog& source : sources) {
    const std::set<DType> own = float_dtypes(source);
    if (own.size() != 1) return;  // each tensor as the first source has it
    all.insert(own.begin(), own.end());
  }
  if (all.size() < 2) return;
  const DType widest = all.contains(DType::f64) ? DType::f64 : DType::f32;
  if (file_) {
    request_.write.dtype = widest;
    return say_note(fmt::format(
        "the sources have different dtypes, and the file names none: the "
        "result is {}, as torch makes it",
        ckpt::name(widest)));
  }
  const DType first = *float_dtypes(sources.front()).begin();
  if (first != widest)
    say_note(fmt::format(
        "the result is {} like the first source; another has {}: --dtype {}",
        ckpt::name(first), ckpt::name(widest), ckpt::name(widest)));
}

ExitCode Merge::write() {
  std::vector<Catalog> sources = open_sources();
  if (!with_optimizer_) request_.select.model_only = true;
  choose_dtype(sources);
  const MergeOptions options = merge_options();
  // Names may become others' on the way.
  const Catalog& frame =
      with_optimizer_ && options.method ? last_model(sources) : sources.front();
  if (target_.to.empty()) target_.to = own_container(request_, frame);
  Catalog merged = merge_models(std::move(sources), options);
  dialect_.renamed = !request_.write.rename_file.empty();
  dialect_.with_optimizer = with_optimizer_;
  merged = into_dialect(
      std::move(merged), dialect_, request_.source.read.family, target_.to,
      target_.vocab_size, request_.write.dtype, request_.part);
  const Layout layout = make_layout(request_, target_, merged);
  merged = with_state_as_asked(request_, std::move(merged), layout);
  return write_checkpoint(request_, std::move(merged), layout);
}

}  // namespace

std::unique_ptr<Command> make_merge() { return std::make_unique<Merge>(); }

}  // namespace ckpt::app
