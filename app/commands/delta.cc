// SPDX-License-Identifier: Apache-2.0
#include "app/commands/delta.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <utility>

#include "api/delta/lossless.h"
#include "api/delta/write.h"
#include "api/places.h"
#include "app/commands/engine.h"
#include "app/commands/source.h"
#include "app/commands/write.h"
#include "app/options/target_name.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/progress.h"
#include "app/print/table.h"
#include "formats/options.h"
#include "lib/session.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"

namespace ckpt::app {
namespace {

std::string percent(uint64_t part, uint64_t whole) {
  return fmt::format("{:.3g}%",
                     100 * static_cast<double>(part) /
                         static_cast<double>(whole == 0 ? 1 : whole));
}

}  // namespace

void add_delta_options(CLI::App& app, DeltaOptions& options) {
  const std::string group = "Writing";
  app.add_option("--write", options.path,
                 "Write B - A, as a checkpoint, and exit with 0")
      ->type_name("DELTA")
      ->group(group);
  app.add_option("--as-lora", options.rank,
                 "Write it as a LoRA of that rank: a folder of PEFT's")
      ->check(CLI::Range(uint64_t{1}, uint64_t{65536}))
      ->type_name("R")
      ->group(group);
  app.add_flag("--lossless", options.lossless,
               "Write what makes B's files again, byte for byte, from A")
      ->group(group);
  app.add_option("--to", options.to,
                 "Format of DELTA (default: by its ending, or safetensors)")
      ->type_name("FORMAT")
      ->group(group);
  app.add_option_function<std::string>(
         "--dtype",
         [&](const std::string& text) { options.dtype = cast_type(text); },
         "Dtype of DELTA: f32 (default), bf16, f16, f64")
      ->type_name("DTYPE")
      ->group(group);
  app.add_flag("--overwrite", options.overwrite,
               "Replace DELTA, once the new one is whole, and files in the way")
      ->group(group);
  app.add_flag("-n,--dry-run", options.dry_run,
               "Say what would be written; write nothing")
      ->group(group);
  app.add_flag_callback(
         "--no-fsync", [&] { options.sync = false; }, "Don't wait for the disk")
      ->group(group);
}

void check_delta_options(const DeltaOptions& options, const Selection& select) {
  const auto needs = [&](bool given, const char* option) {
    if (given && options.path.empty())
      throw usage_error({}, "{} goes with --write DELTA", option)
          .with_hint("ckpt diff A B --write DELTA");
  };
  needs(options.rank != 0, "--as-lora");
  needs(options.lossless, "--lossless");
  needs(!options.to.empty(), "--to");
  needs(options.dtype.has_value(), "--dtype");
  needs(options.dry_run, "--dry-run");
  if (options.path.empty()) return;
  library::check_target_name(options.path);
  const auto excludes = [](bool both, const char* one, const char* other) {
    if (both) throw usage_error({}, "{} and {} exclude each other", one, other);
  };
  excludes(options.lossless && options.rank != 0, "--lossless", "--as-lora");
  excludes(options.lossless && options.dtype, "--lossless", "--dtype");
  excludes(options.lossless && !options.to.empty(), "--lossless", "--to");
  excludes(options.rank != 0 && !options.to.empty(), "--as-lora", "--to");
  const std::string ending = file_format(options.path);
  if (options.rank != 0 && !ending.empty())
    throw usage_error({options.path, {}},
                      "a LoRA is a folder of PEFT's, not one file")
        .with_hint(
            "name it without an ending: --write " +
            text::shell_path(options.path.substr(0, options.path.rfind('.'))));
  const bool plain = !options.lossless && options.rank == 0;
  const std::string usual(formats::usual_container());
  if (plain && ((!ending.empty() && ending != usual) ||
                (!options.to.empty() && options.to != usual)))
    throw usage_error({options.path, {}}, "a difference is written as {}",
                      usual)
        .with_hint("name it DELTA." + usual + ", and `ckpt convert` it");
  if (options.lossless && select != Selection())
    throw usage_error({}, "--lossless is of all files of B")
        .with_hint("leave the selection out");
}

namespace {

ckpt::DeltaOptions library_options(const DeltaOptions& options,
                                   const Selection& select,
                                   const std::string& family,
                                   const std::string& base) {
  ckpt::DeltaOptions made{
      .rank = options.rank,
      .dtype = options.dtype.value_or(DType::f32),
      .selection = select,
      .family = family,
      .base = base,
      .overwrite = options.overwrite,
      .sync = options.sync,
      .dry_run = options.dry_run,
      .note = [](const std::string& line) { spdlog::info("{}", line); }};
  if (options.lossless) made.form = DeltaForm::kLossless;
  if (options.rank != 0) made.form = DeltaForm::kLora;
  return made;
}

std::string delta_json(const DeltaPaths& paths, const DeltaOptions& options,
                       const DeltaReport& report) {
  JsonWriter json;
  json.begin_document("diff");
  json.member("a", paths.a);
  json.member("b", paths.b);
  json.member("path", options.path);
  json.member("dry_run", options.dry_run);
  json.key("written").begin_array();
  for (const auto& [path, bytes] : report.written)
    json.begin_object()
        .member("path", path)
        .member("bytes", bytes)
        .end_object();
  json.end_array();
  if (options.lossless) {
    json.key("lossless").begin_object();
    json.member("files", report.files);
    json.member("bytes", report.bytes);
    json.member("xored", report.xored);
    json.end_object();
  } else if (options.rank != 0) {
    json.key("lora").begin_object();
    json.member("rank", options.rank);
    json.key("modules").begin_array();
    for (const LoraModule& module : report.modules) {
      json.begin_object().member("name", module.name);
      json.member("rank", module.rank);
      if (!options.dry_run)
        json.member("norm", module.norm).member("error", module.error());
      json.end_object();
    }
    json.end_array().key("saved").begin_array();
    for (const std::string& module : report.saved) json.value(module);
    json.end_array().end_object();
  } else {
    json.member("tensors", report.tensors);
  }
  json.end_object();
  return std::move(json).text();
}

// Of a LoRA: what is left of each module.
std::string modules_text(const DeltaReport& report, bool computed) {
  Table table({Align::kLeft, Align::kRight, Align::kRight, Align::kRight});
  if (computed)
    table.row({"module", "rank", "norm", "error left"});
  else
    table.row({"module", "rank", "", ""});
  for (const LoraModule& module : report.modules)
    table.row({text::printable(module.name), fmt::format("{}", module.rank),
               computed ? fmt::format("{:.3g}", module.norm) : "",
               computed ? fmt::format("{:.3g}", module.error()) : ""});
  std::string text = report.modules.empty() ? "" : table.text(0);
  for (const std::string& module : report.saved)
    text += text::printable(module) + "  whole\n";
  return text;
}

// "B - A of 21 tensors in f32, 62.6 KiB"
std::string delta_line(const DeltaPaths& paths, const DeltaOptions& options,
                       const DeltaReport& report) {
  const std::string a = text::shell_path(paths.a);
  const std::string delta = text::shell_path(options.path);
  if (options.lossless) {
    const uint64_t packed = report.written.front().second;
    return fmt::format(
        "{} of {} in {}{} ({}), {} of them against A{}", text::iec_size(packed),
        text::iec_size(report.bytes), text::counted(report.files, "file"),
        options.dry_run ? " at most" : "", percent(packed, report.bytes),
        percent(report.xored, report.bytes),
        options.dry_run
            ? ""
            : fmt::format("; restore: ckpt convert {} DST --delta {}", a,
                          delta));
  }
  if (options.rank != 0)
    return fmt::format(
        "a LoRA of rank {}, {}{}{}", options.rank,
        text::counted(report.modules.size(), "module"),
        report.saved.empty()
            ? ""
            : fmt::format(" and {} whole", report.saved.size()),
        options.dry_run
            ? ""
            : fmt::format(
                  "; next: ckpt convert {} DST --to safetensors --adapter {}",
                  a, delta));
  return fmt::format("B - A of {} in {}, {}",
                     text::counted(report.tensors, "tensor"),
                     ckpt::name(options.dtype.value_or(DType::f32)),
                     text::iec_size(report.written.front().second));
}

}  // namespace

ExitCode write_delta(Catalog a, Catalog b, const DeltaPaths& paths,
                     const DeltaOptions& options, const Selection& select,
                     const std::string& family, const EngineOptions& engine,
                     const OutputOptions& output) {
  for (const std::string& source : {paths.a, paths.b})
    check_apart(source, options.path);
  const DeltaReport report =
      library::write_delta(std::move(a), std::move(b), options.path,
                           library_options(options, select, family, paths.a),
                           engine_of(engine, output));
  if (output.json) {
    print(delta_json(paths, options, report));
    return ExitCode::kDone;
  }
  if (options.rank != 0) print(modules_text(report, !options.dry_run));
  const std::string line = delta_line(paths, options, report);
  if (options.dry_run) {
    std::string files;
    for (const auto& [path, bytes] : report.written)
      files += fmt::format("  {}: {}{} bytes\n", text::printable(path),
                           options.lossless ? "at most " : "", bytes);
    print_folded(fmt::format("{}: {}\n", text::printable(options.path), line));
    print(files + "dry run: nothing was written\n");
  } else if (output.verbosity >= 0) {
    say(fmt::format("wrote {}: {}", text::printable(options.path), line));
  }
  return ExitCode::kDone;
}

ExitCode restore_delta(const WriteRequest& request, const std::string& delta) {
  check_apart(request.source_path, request.target_path);
  check_apart(delta, request.target_path);
  if (!library::is_lossless(delta))
    throw usage_error({delta, {}}, "--delta: not a lossless delta")
        .with_hint(
            "`ckpt diff A B --write DELTA --lossless` writes one; --adapter "
            "adds a LoRA");
  Session::current()->watch.begin();
  Catalog base = open_source(request.source_path, request.source);
  const library::LosslessResult result = library::restore_lossless(
      std::move(base), delta, request.target_path,
      {.threads = request.engine.threads,
       .max_mem = request.engine.max_mem,
       .overwrite = request.write.overwrite ||
                    request.write.if_exists == IfExists::kReplace,
       .sync = request.write.sync,
       .dry_run = request.write.dry_run},
      make_progress(request.output));
  const std::string what = fmt::format("{} in {}", text::iec_size(result.bytes),
                                       text::counted(result.files, "file"));
  if (request.output.json) {
    JsonWriter json;
    json.begin_document(request.command);
    json.member("command", request.command);
    json.member("dry_run", request.write.dry_run);
    json.key("written").begin_array();
    for (const auto& [path, bytes] : result.written)
      json.begin_object()
          .member("path", path)
          .member("bytes", bytes)
          .end_object();
    json.end_array().end_object();
    print(std::move(json).text());
  } else if (request.write.dry_run) {
    print_folded(fmt::format("{}: {}\ndry run: nothing was written\n",
                             text::printable(request.target_path), what));
  } else if (request.output.verbosity >= 0) {
    say(fmt::format("wrote {}: {}, each with its SHA-256; next: ckpt verify {}",
                    text::printable(request.target_path), what,
                    text::shell_path(request.target_path)));
  }
  return ExitCode::kDone;
}

}  // namespace ckpt::app
