// SPDX-License-Identifier: Apache-2.0
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>

#include "api/check/facts.h"
#include "api/check/fingerprint.h"
#include "api/check/read_all.h"
#include "api/check/spectra.h"
#include "api/edit/select.h"
#include "app/command.h"
#include "app/commands/engine.h"
#include "app/commands/source.h"
#include "app/commands/within.h"
#include "app/keep.h"
#include "app/print/console.h"
#include "app/print/contents.h"
#include "app/print/facts.h"
#include "app/print/html.h"
#include "app/print/html_page.h"
#include "app/print/plot.h"
#include "app/print/report.h"
#include "app/print/steps.h"
#include "app/print/view.h"
#include "lib/decoding.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

constexpr std::string_view kInspectExamples =
    "ckpt inspect step_5000\n"
    "ckpt inspect step_5000 --keys '*.q_proj.*' --shards\n"
    "ckpt inspect model.pt --objects\n"
    "ckpt inspect step_5000 --json | jq '.tensors[].name'";

// Logs why formats tried earlier were rejected. open_source reports what is not
// a checkpoint.
void log_detection(const std::string& path) {
  formats::Detection detection;
  try {
    detection = formats::detect(path);
  } catch (const Error&) {
    return;
  }
  // The one that was chosen is among the catalog's assumptions.
  for (const auto& [name, why] : detection.tried)
    if (detection.format == nullptr || detection.format->name != name)
      spdlog::info("not {}: {}", name, why);
}

class Inspect : public Command {
 public:
  std::string_view name() const override { return "inspect"; }
  std::string_view help() const override {
    return "say what a checkpoint holds, from its headers alone";
  }
  std::string_view examples() const override { return kInspectExamples; }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  ExitCode look();
  ExitCode look_at_all() const;
  // True if tensors are read, not only headers.
  bool reads() const {
    return digest_ || stats_ || spectral_ || !plot_.empty() ||
           (all_ && !html_.empty());
  }
  void print_text(const Catalog& catalog) const;

  std::string path_;
  SourceOptions source_;
  Selection select_;
  EngineOptions engine_;
  bool all_ = false;
  bool shards_ = false;
  bool objects_ = false;
  bool tree_ = false;
  bool stats_ = false;
  bool spectral_ = false;
  bool digest_ = false;
  std::string html_, plot_;
};

void Inspect::add_options(CLI::App& app) {
  app.add_option("PATH", path_, "A file, a directory or a training root")
      ->required()
      ->group("Arguments");
  const std::string group = "What to show";
  app.add_flag("--all", all_, "The steps of a training root, side by side")
      ->group(group);
  app.add_flag("--tree", tree_, "Names as a tree, with sums")->group(group);
  app.add_flag("--shards", shards_, "Location of each shard")->group(group);
  app.add_flag("--objects", objects_, "Non-tensor values")->group(group);
  app.add_flag("--stats", stats_,
               "Range, norm, NaNs of every tensor (reads it)")
      ->group(group);
  app.add_flag("--spectral", spectral_,
               "Spectral norm, ranks of each matrix (reads it)")
      ->group(group);
  app.add_flag("--digest", digest_,
               "Fingerprint of all, digest of each (reads it)")
      ->group(group);
  app.add_option("--html", html_, "Write a page to look at in a browser")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--plot", plot_, "Write a picture (SVG) of norms (reads it)")
      ->type_name("FILE")
      ->group(group);
  add_select_options(app, select_);
  add_source_options(app, source_);
  add_engine_options(app, engine_);
}

void Inspect::print_text(const Catalog& catalog) const {
  const size_t width = stdout_is_terminal() ? stdout_width() : 0;
  // All that takes memory is made before any of it is printed.
  std::string tensors;
  if (tree_)
    tensors = tree_text(catalog, width);
  else if (!shards_)
    tensors = pattern_text(catalog, width);
  print(summary_text(catalog, width));
  if (output.verbosity > 0)
    print_facts(library::known_facts(catalog, engine_of(engine_, output)));
  print(tensors);
  if (shards_ && !tree_)
    for (const Tensor& tensor : catalog.tensors)
      print(shards_text(catalog, tensor, width));
  if (objects_) print(objects_text(catalog, width));
}

ExitCode Inspect::run() {
  return within_memory(engine_, source_, {path_}, reads(),
                       [this] { return look(); });
}

ExitCode Inspect::look_at_all() const {
  if (tree_ || shards_ || objects_ || spectral_ || digest_)
    throw usage_error({}, "--all goes with --stats, --html and --plot alone");
  const library::Engine engine = engine_of(engine_, output);
  const StepsShown shown =
      compare_steps(path_, source_, reads() ? &engine : nullptr, output.json);
  if (!html_.empty()) save_html(html_, steps_html(path_, shown.values), output);
  if (!plot_.empty())
    save_html(plot_, plot_svg(path_, shown.values, true), output, "--plot");
  if (output.json || (html_.empty() && plot_.empty())) print(shown.text);
  return ExitCode::kDone;
}

ExitCode Inspect::look() {
  check_page_path(html_, output.json);
  check_page_path(plot_, output.json, "--plot");
  if (html_ == "-" && plot_ == "-")
    throw usage_error({}, "--html - and --plot - both write to standard output")
        .with_hint("give one of them the name of a file");
  if (all_) return look_at_all();
  if (output.verbosity > 0 && source_.from.empty()) log_detection(path_);
  Catalog& catalog = keep(open_source(path_, source_));
  const library::Chosen selection = library::choose(catalog, select_);
  for (const std::string& note : selection.notes) spdlog::info("{}", note);
  if (!selection.warning.empty()) spdlog::warn("{}", selection.warning);
  if (objects_ || output.json || !html_.empty()) load_objects(catalog);
  library::Reading reading;
  const bool stats = stats_ || !plot_.empty();
  if (digest_ || stats)
    reading = library::read_all(catalog, engine_of(engine_, output),
                                {.stats = stats});
  if (digest_ && has_blocks(catalog)) {
    Catalog stored = catalog;
    take_stored(stored);
    reading.digests =
        library::read_all(stored, engine_of(engine_, output), {}).digests;
  }
  std::vector<library::SpectrumOf> spectra;
  if (spectral_)
    spectra = library::spectra(catalog, engine_of(engine_, output));
  if (!html_.empty())
    save_html(html_, inspect_html(catalog, reading.stats), output);
  if (!plot_.empty())
    save_html(
        plot_,
        plot_svg(catalog.path, plotted_stats(catalog, reading.stats), true),
        output, "--plot");
  std::optional<uint64_t> bytes_read, header_bytes;
  if (digest_ || stats) {
    bytes_read = reading.bytes;
    header_bytes = reading.header_bytes;
  }
  if (!digest_) reading.digests.clear();
  const bool whole = !selection.dropped && selection.edits.empty();
  const std::string fingerprint =
      whole ? library::fingerprint(catalog, reading.digests) : "";
  if (output.json) {
    print(inspect_json(catalog, {.digests = reading.digests,
                                 .stats = reading.stats,
                                 .spectra = spectra,
                                 .facts = library::known_facts(
                                     catalog, engine_of(engine_, output)),
                                 .shards = shards_,
                                 .fingerprint = fingerprint,
                                 .bytes_read = bytes_read,
                                 .header_bytes = header_bytes}));
  } else if (html_.empty() && plot_.empty()) {
    print_text(catalog);
    const size_t width = stdout_is_terminal() ? stdout_width() : 0;
    if (digest_ || stats_) print(contents_text(catalog, reading, width));
    if (spectral_) print(spectra_text(catalog, spectra, width));
    if (!fingerprint.empty()) {
      print("\n");
      print_folded("fingerprint " + fingerprint + "\n");
    }
  }
  return ExitCode::kDone;
}

}  // namespace

std::unique_ptr<Command> make_inspect() { return std::make_unique<Inspect>(); }

}  // namespace ckpt::app
