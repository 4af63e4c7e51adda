// SPDX-License-Identifier: Apache-2.0
#include "app/commands/write.h"

#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <unordered_map>

#include "api/check/read_all.h"
#include "api/deltas.h"
#include "api/edit/config_edit.h"
#include "api/edit/layer_order.h"
#include "api/edit/layers.h"
#include "api/edit/model_alone.h"
#include "api/edit/rename.h"
#include "api/edit/select.h"
#include "api/places.h"
#include "api/rank_part.h"
#include "api/write/decoded.h"
#include "api/write/write.h"
#include "app/commands/engine.h"
#include "app/commands/plan_file.h"
#include "app/commands/source.h"
#include "app/commands/within.h"
#include "app/keep.h"
#include "app/options/target_name.h"
#include "app/print/console.h"
#include "app/print/html_flow.h"
#include "app/print/html_page.h"
#include "app/print/json_writer.h"
#include "app/print/progress.h"
#include "app/print/write_report.h"
#include "containers/assume.h"
#include "convert/quantized/dequantize.h"
#include "convert/quantized/gguf_quantize.h"
#include "convert/quantized/quantize.h"
#include "convert/quantized/quantized.h"
#include "formats/format.h"
#include "formats/run_state.h"
#include "formats/traits.h"
#include "formats/unsharded.h"
#include "lib/ggml.h"
#include "lib/heap.h"
#include "lib/io/file.h"
#include "lib/io/read_count.h"
#include "lib/manifest.h"
#include "lib/session.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"
#include "reshard/cuda/load.h"
#include "reshard/plan/plan_size.h"

namespace ckpt::app {
namespace {

SaveOptions save_options(const WriteRequest& request) {
  return {.threads = request.engine.threads,
          .max_mem = request.engine.max_mem,
          .overwrite = request.write.overwrite ||
                       request.write.if_exists == IfExists::kReplace,
          .resume = request.write.resume,
          .trust_staging = request.write.trust_staging,
          .sync = request.write.sync,
          .manifest = request.write.manifest,
          .allow_replica_mismatch = request.write.allow_replica_mismatch,
          .ignore_checksums = request.write.ignore_checksums,
          .dtype = request.write.dtype,
          .overflow = request.write.overflow,
          .keep_unknown_globals = request.write.keep_unknown_globals,
          .cuda = request.engine.cuda,
          .io = request.engine.io,
          .progress = {},
          .note = [](const std::string& line) { spdlog::warn("{}", line); }};
}

// True with --if-exists skip if something exists; an empty directory is filled.
bool is_skipped(const WriteRequest& request) {
  const std::string& target = request.target_path;
  if (request.write.if_exists != IfExists::kSkip) return false;
  if (!io::is_file(target) &&
      !(io::is_directory(target) && !io::list_directory(target).empty()))
    return false;
  say(text::printable(target) +
      ": already exists; nothing was written (--if-exists skip)");
  if (request.output.json) {
    JsonWriter json;
    json.begin_document(request.command);
    json.member("command", request.command);
    json.member("path", target);
    json.member("skipped", true);
    json.end_object();
    print(std::move(json).text());
  }
  return true;
}

// Adds the digests of all tensors at `path`, by name.
void read_back(const WriteRequest& request, const std::string& path,
               std::string_view format,
               std::unordered_map<std::string, Digest>& by_name) {
  formats::ReadOptions options = request.source.read;
  // These concern the source; a configuration that was just written may be a
  // class.
  options.flat_params_file.clear();
  options.restrict_globals = false;
  Catalog written = formats::open(path, std::string(format), options);
  const std::vector<Digest> found =
      library::read_all(written, engine_of(request.engine, request.output))
          .digests;
  for (size_t i = 0; i < found.size(); ++i)
    by_name[written.tensors[i].name] = found[i];
}

// --verify: opens and reads the target like any checkpoint, a directory of
// unlike files file by file.
void verify_written(const WriteRequest& request, const Layout& layout,
                    const Target& target, const reshard::RunResult& result) {
  std::unordered_map<std::string, Digest> by_name;
  if (formats::is_unsharded(layout)) {
    for (const File& file : target.catalog.files)
      read_back(request, io::join(request.target_path, file.path),
                file_format(file.path), by_name);
  } else {
    read_back(request, request.target_path, target.catalog.format, by_name);
  }
  for (size_t i = 0; i < target.catalog.tensors.size(); ++i) {
    const std::string& tensor = target.catalog.tensors[i].name;
    const auto same = by_name.find(tensor);
    if (same == by_name.end() || same->second != result.target[i])
      throw Error(ExitCode::kIo, {request.target_path, tensor},
                  "what was read back is not what was written",
                  "the disk or its memory may be faulty; write it again");
  }
}

// A cast that makes zeros of more than this share of a tensor has changed it.
constexpr double kMostZeroed = 0.001;

// Says what the casts lost: what became too large, and what became zero where
// that is more than a thousandth of a tensor; less of it with -v.
void say_losses(const reshard::Plan& plan, const reshard::RunResult& result) {
  const reshard::PlannedTensor* worst = nullptr;
  double most = kMostZeroed;
  size_t many = 0;
  for (const auto& [index, loss] : result.losses) {
    const reshard::PlannedTensor& tensor = plan.tensors[index];
    const std::string shown = text::printable(tensor.name);
    if (loss.overflowed != 0)
      spdlog::warn("{}: {} too large for {}, the largest {:g}", shown,
                   text::counted(loss.overflowed, "value"),
                   name(tensor.target_dtype), loss.largest);
    if (loss.zeroed == 0) continue;
    spdlog::info("{}: {} rounded to zero in {}", shown,
                 text::counted(loss.zeroed, "value"),
                 name(tensor.target_dtype));
    const auto all = static_cast<double>(
        std::max<uint64_t>(element_count(tensor.shape).value_or(1), 1));
    const double share = static_cast<double>(loss.zeroed) / all;
    if (share <= kMostZeroed) continue;
    ++many;
    if (share < most) continue;
    most = share;
    worst = &tensor;
  }
  if (worst)
    spdlog::warn(
        "{}: {:.1f} % of its values became 0 in {}{}; -v lists all tensors",
        text::printable(worst->name), 100 * most, name(worst->target_dtype),
        many == 1
            ? std::string()
            : fmt::format(", and more than 0.1 % in {} others", many - 1));
}

// A plan that is only shown need not know where each item is.
void find_places(Catalog& source, bool dry_run) {
  if (dry_run)
    formats::assume_places(source);
  else
    locate(source);
}

// True if tensors were selected: the user knows that others are not written.
bool is_chosen(const Selection& select) {
  return !select.keys.empty() || !select.exclude.empty() ||
         !select.layers.empty() || !select.blocks.empty();
}

// What a step found in the source since it had so many problems.
void log_since(const Catalog& source, size_t before) {
  const std::vector<Problem>& all = source.problems;
  log_problems({all.begin() + static_cast<ptrdiff_t>(before), all.end()});
}

void quantize(const WriteRequest& request, Catalog& source,
              const Layout& layout) {
  const std::string& kind = request.write.quantize;
  const GgmlInfo* type = ggml_from_name(kind);
  if (type ? !families::holds_ggml(layout.format)
           : !formats::traits_of(layout.format).is_container)
    throw unfaithful_error(
        {request.target_path, {}}, "--quantize {}: {}, not {}", kind,
        type ? "blocks of this type are GGUF's"
             : "fp8 checkpoints are safetensors or torch files",
        layout.format)
        .with_hint(type ? "name the target DST.gguf"
                        : "write them with --to safetensors first");
  find_places(source, request.write.dry_run);
  const size_t before = source.problems.size();
  if (type)
    families::quantize_ggml(source, type->type, request.write.dtype);
  else
    families::quantize_fp8(source);
  log_since(source, before);
  spdlog::info("{}", source.assumptions.back());
}

// Only for --html.
library::PlanSeen plan_seen(const WriteRequest& request, FlowSums& flow) {
  if (request.write.html_file.empty()) return {};
  return [&flow](const reshard::Plan& part, const Catalog& source,
                 const Catalog& target) { flow.add(part, source, target); };
}

// What the process takes besides buffers, catalogs and plan. Where those are
// small it is a figure that does not vary from run to run; where they are large
// it is measured, for free space between blocks then counts.
uint64_t program_bytes(const library::Prepared& prepared) {
  constexpr uint64_t kProgram = uint64_t{16} << 20;
  constexpr uint64_t kLarge = uint64_t{4} << 20;
  const uint64_t shown = reshard::held_bytes(prepared.source) +
                         reshard::held_bytes(prepared.target);
  if (shown < kLarge) return kProgram;
  constexpr uint64_t kThreads = uint64_t{4} << 20;  // stacks, files of a run
  const uint64_t process = heap::process_bytes();
  return process - std::min(process, shown) + kThreads;
}

// The plan and a page of it, if requested.
void finish_dry_run(const WriteRequest& request,
                    const library::Prepared& prepared,
                    const SaveOptions& options, const FlowSums& flow,
                    WriteReport& report) {
  library::check_target(prepared, options);
  library::run_options(prepared, options);  // refused as a run would be
  report.peak_memory =
      library::peak_memory(prepared, options) + program_bytes(prepared);
  report.time = estimate(report);
  if (!request.write.plan_file.empty())
    write_plan(request.write.plan_file, request.source_path, report,
               request.output);
  if (!request.write.html_file.empty())
    save_html(request.write.html_file, flow.page(report), request.output);
}

size_t count_weights(const Catalog& source) {
  return static_cast<size_t>(
      std::ranges::count(source.tensors, Kind::model, &Tensor::kind));
}

bool is_chosen_by_name(const Selection& select) {
  return !select.keys.empty() || !select.exclude.empty() ||
         !select.blocks.empty();
}

// Layers that an ascending list names keep their numbers: without the first
// ones they are a part of a model, whatever is written of it.
bool leaves_gaps(const std::string& layers) {
  if (layers.empty() || library::last_layers(layers)) return false;
  const auto order = library::parse_layer_order(layers);
  return !library::counts_anew(order) && order.back() + 1 != order.size();
}

void warn_of_gaps(const Catalog& source, const std::string& layers) {
  if (!leaves_gaps(layers)) return;
  if (std::ranges::none_of(source.sidecars, library::is_config_file) &&
      std::ranges::none_of(source.objects, library::is_config_object))
    return;
  spdlog::warn(
      "--layers {}: layer numbers and the configuration's number of layers "
      "are unchanged, so the target is a part of the model (last:N renumbers "
      "the last N from 0)",
      layers);
}

// A trainer's step becomes a directory of weights, and the warning about its
// optimizer says that training stays behind: its values and files are notes.
void say_training_once(const Catalog& source, const Layout& layout,
                       std::vector<Problem>& problems) {
  const bool told =
      std::ranges::any_of(source.problems, [](const Problem& problem) {
        return problem.kind == "optimizer_left_out";
      });
  if (!source.run || !told || !formats::traits_of(layout.format).is_container)
    return;
  for (Problem& problem : problems)
    if (problem.severity == Problem::Severity::kWarning &&
        (problem.kind == "object_left_out" || problem.kind == "files_left_out"))
      problem.severity = Problem::Severity::kNote;
}

}  // namespace

void check_apart(const std::string& source, const std::string& target) {
  if (target.empty())
    throw usage_error({}, "the name of the target is empty")
        .with_hint("is a variable of the script not set?");
  const auto real = [](const std::string& path) {
    std::error_code failed;
    const auto found = std::filesystem::weakly_canonical(path, failed);
    // Whoever opens it will say why it can't be examined.
    return failed ? std::filesystem::absolute(path).lexically_normal().string()
                  : found.string();
  };
  const std::string from = real(source), to = real(target);
  const bool replaces = (from + "/").starts_with(to + "/");
  if (!replaces && !(to + "/").starts_with(from + "/")) return;
  throw usage_error({target, {}}, "the target {} the source {}",
                    replaces ? "would replace" : "is inside", source)
      .with_hint("write beside it, check the result, then rename it");
}

bool same_grid(std::string_view source, std::string_view target) {
  using Ranks = formats::Traits::Ranks;
  const formats::Traits& traits = formats::traits_of(target);
  if (traits.target_ranks != Ranks::kAsAsked)
    return traits.target_ranks == Ranks::kSources;
  if (traits.is_container) return false;
  return source == target || (!traits.grid.empty() &&
                              formats::traits_of(source).grid == traits.grid);
}

void add_request_options(CLI::App& app, WriteRequest& request,
                         const std::string& target_help) {
  app.add_option("SRC", request.source_path, "The checkpoint")
      ->required()
      ->group("Arguments");
  app.add_option("DST", request.target_path, target_help)
      ->required()
      ->group("Arguments");
  add_select_options(app, request.select);
  add_source_options(app, request.source);
  add_write_options(app, request.write);
  add_engine_options(app, request.engine);
}

Catalog with_state_as_asked(const WriteRequest& request, Catalog source,
                            const Layout& layout) {
  if (request.write.with_optimizer && !layout.single_file)
    throw usage_error({request.target_path, {}},
                      "--with-optimizer is for one .safetensors file")
        .with_hint(
            "without --with-optimizer, --to dcp and --to torch keep the "
            "optimizer's state");
  const formats::Traits& target = formats::traits_of(layout.format);
  if (request.select.model_only && !target.is_container && !target.any_tensors)
    library::leave_random_state(source);
  else if (request.select.model_only) {
    const size_t said = source.assumptions.size();
    library::keep_model_alone(source, !request.write.rename_file.empty());
    for (size_t i = said; i < source.assumptions.size(); ++i)
      spdlog::info("{}", text::printable(source.assumptions[i]));
  }
  if (!layout.single_file || request.write.with_optimizer) return source;
  const size_t before = source.problems.size();
  source = runs::for_one_file(std::move(source), layout.format,
                              request.command == "convert");
  log_since(source, before);
  return source;
}

Catalog open_for_write(WriteRequest& request) {
  library::check_target_name(request.target_path);
  check_apart(request.source_path, request.target_path);
  Session::current()->watch.begin();
  Catalog source = open_source(request.source_path, request.source);
  if (library::is_lossless_delta(source))
    throw usage_error({request.source_path, {}}, "{}",
                      library::delta_text(source))
        .with_hint("ckpt convert BASE DST --delta " +
                   text::shell_path(request.source_path) +
                   " restores its files, BASE being A of `ckpt diff A B`");
  library::apply_rules(source, request.source.read);
  const auto quantized = families::quantized_weights(source);
  const size_t weights = count_weights(source);
  const library::Chosen selection = library::choose(source, request.select);
  request.part =
      leaves_gaps(request.select.layers) ||
      (is_chosen_by_name(request.select) && count_weights(source) < weights);
  if (is_chosen(request.select)) library::accept_lost_layers(source);
  request.edits = selection.edits;
  families::check_scales(quantized, source);
  if (request.write.dtype && families::may_be_quantized(source)) {
    find_places(source, request.write.dry_run);
    const size_t before = source.problems.size();
    families::dequantize(source, *request.write.dtype);
    log_since(source, before);
  }
  for (const std::string& note : selection.notes) spdlog::info("{}", note);
  if (!selection.warning.empty())
    spdlog::warn("{}", selection.warning);
  else
    warn_of_gaps(source, request.select.layers);
  if (!request.write.rename_file.empty()) {
    const auto codes = families::quantized_weights(source);
    request.renamed = library::rename(source, request.write.rename_file);
    if (!codes.empty()) families::check_together(codes, source);
  }
  return source;
}

ExitCode write_checkpoint(const WriteRequest& request, Catalog source,
                          Layout layout) {
  if (is_skipped(request)) return ExitCode::kDone;
  if (request.engine.cuda) reshard::CudaModule::get();  // or says why not
  if (!request.write.plan_file.empty() && !request.write.dry_run)
    throw usage_error({}, "-o writes a plan: it goes with --dry-run")
        .with_hint("the target is the second argument: ckpt " +
                   request.command + " SRC DST");
  if (!request.write.html_file.empty() && !request.write.dry_run)
    throw usage_error({}, "--html shows a plan: it goes with --dry-run")
        .with_hint("ckpt inspect --html shows what was written");
  check_page_path(request.write.html_file, request.output.json);
  const auto begin = std::chrono::steady_clock::now();
  SaveOptions options = save_options(request);
  layout.max_shard_size = request.write.max_shard_size;
  if (layout.max_shard_size != 0 && layout.single_file)
    spdlog::warn("--max-shard-size has no effect: {} is one file",
                 text::printable(request.target_path));
  if (!request.write.quantize.empty()) quantize(request, source, layout);
  if (request.counted) {
    count_part(std::move(source), layout, request.target_path, options,
               *request.counted);
    return ExitCode::kDone;
  }
  FlowSums flow;
  library::Prepared& prepared = keep(library::prepare(
      std::move(source), layout, request.target_path, options,
      request.write.dry_run ? library::Use::kShow : library::Use::kRunAlone,
      plan_seen(request, flow)));
  heap::lift_bound();  // the run counts its buffers itself
  if (!formats::is_one_checkpoint(layout) &&
      prepared.target.catalog.files.size() > 1) {
    // It would list what no single file holds.
    options.manifest = false;
    spdlog::info("no manifest: the files are not one checkpoint");
  }
  if (library::is_delta(prepared.source) &&
      !(layout.single_file && formats::traits_of(layout.format).is_container))
    spdlog::warn(
        "{}: {}, and what is written is none either: `ckpt merge BASE {} DST` "
        "adds it to one",
        text::printable(request.source_path),
        text::printable(library::delta_text(prepared.source)),
        text::shell_path(request.source_path));
  say_training_once(prepared.source, layout, prepared.target.problems);
  log_problems(prepared.target.problems);
  for (const std::string& line : prepared.target.assumptions)
    spdlog::info("{}", line);
  for (const FileFate& file : prepared.target.fates)
    if (file.fate == Fate::kLeftOut)
      spdlog::info("left out: {}: {}", text::printable(file.path), file.reason);
  prepared.sums = request.write.verify;
  prepared.edits = request.edits;
  const uint64_t header_bytes = io::bytes_read();
  const Progress progress = make_progress(request.output);
  library::prove(prepared, options, progress);
  WriteReport report{.command = request.command,
                     .source = &prepared.source,
                     .target = &prepared.target,
                     .target_path = request.target_path,
                     .single_file = prepared.single_file,
                     .part_of_model = request.part,
                     .dry_run = request.write.dry_run,
                     .bytes_read = library::bytes_to_read(
                         prepared.source, prepared.plan.bytes_read),
                     .header_bytes = header_bytes,
                     .bytes_written = prepared.file_bytes()};
  if (request.write.dry_run) {
    finish_dry_run(request, prepared, options, flow, report);
  } else {
    const reshard::RunResult result =
        library::execute(prepared, options, progress);
    report.bytes_read = result.bytes_read;
    for (const auto* some :
         {&prepared.unproven.tensors, &prepared.unproven.files})
      for (const auto& [name, why] : *some) report.unproven.push_back(name);
    say_losses(prepared.plan, result);
    if (request.write.verify)
      verify_written(request, layout, prepared.target, result);
    report.verified = request.write.verify;
    if (prepared.manifest_bytes)
      report.manifest = {
          (prepared.single_file ? io::base_name(request.target_path)
                                : std::string()) +
              std::string(kManifestName),
          *prepared.manifest_bytes};
    report.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
  }
  show(report, request.output);
  return ExitCode::kDone;
}

}  // namespace ckpt::app
