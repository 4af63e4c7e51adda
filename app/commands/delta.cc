// SPDX-License-Identifier: Apache-2.0
#include "app/commands/delta.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <utility>

#include "api/lora.h"
#include "api/lossless.h"
#include "api/places.h"
#include "api/tensor_file.h"
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

using Written = std::vector<std::pair<std::string, uint64_t>>;

JsonWriter delta_document(const DeltaPaths& paths, const DeltaOptions& options,
                          const Written& written) {
  JsonWriter json;
  json.begin_document("diff");
  json.member("a", paths.a);
  json.member("b", paths.b);
  json.member("path", options.path);
  json.key("written").begin_array();
  for (const auto& [path, bytes] : written)
    json.begin_object()
        .member("path", path)
        .member("bytes", bytes)
        .end_object();
  json.end_array();
  return json;
}

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

ExitCode write_lossless_delta(Catalog a, Catalog b, const DeltaPaths& paths,
                              const DeltaOptions& options,
                              const EngineOptions& engine,
                              const OutputOptions& output) {
  for (const std::string& source : {paths.a, paths.b})
    check_apart(source, options.path);
  const library::LosslessResult result =
      library::write_lossless(std::move(a), std::move(b), options.path,
                              {.threads = engine.threads,
                               .max_mem = engine.max_mem,
                               .overwrite = options.overwrite,
                               .sync = options.sync},
                              make_progress(output));
  if (output.json) {
    JsonWriter json =
        delta_document(paths, options, {{options.path, result.packed}});
    json.key("lossless").begin_object();
    json.member("files", result.files);
    json.member("bytes", result.bytes);
    json.member("xored", result.xored);
    json.end_object().end_object();
    print(std::move(json).text());
  } else if (output.verbosity >= 0) {
    say(fmt::format(
        "wrote {}: {} of {} in {} ({}), {} of them against A; restore: ckpt "
        "convert {} DST --delta {}",
        text::printable(options.path), text::iec_size(result.packed),
        text::iec_size(result.bytes), text::counted(result.files, "file"),
        percent(result.packed, result.bytes),
        percent(result.xored, result.bytes), text::shell_path(paths.a),
        text::shell_path(options.path)));
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

ExitCode write_plain_delta(Catalog a, Catalog b,
                           const std::vector<std::string>& differing,
                           const DeltaPaths& paths, const DeltaOptions& options,
                           const EngineOptions& engine,
                           const OutputOptions& output) {
  for (const std::string& source : {paths.a, paths.b})
    check_apart(source, options.path);
  const bool folder = file_format(options.path).empty();
  const size_t tensors = b.tensors.size();
  const auto written = library::write_difference(
      std::move(a), std::move(b), differing, options.path, folder,
      {.dtype = options.dtype.value_or(DType::f32),
       .base = paths.a,
       .threads = engine.threads,
       .max_mem = engine.max_mem,
       .overwrite = options.overwrite,
       .sync = options.sync},
      make_progress(output));
  if (output.json) {
    JsonWriter json = delta_document(paths, options, written);
    json.member("tensors", uint64_t{tensors}).end_object();
    print(std::move(json).text());
  } else if (output.verbosity >= 0) {
    say(fmt::format("wrote {}: B - A of {} in {}, {}",
                    text::printable(options.path),
                    text::counted(tensors, "tensor"),
                    ckpt::name(options.dtype.value_or(DType::f32)),
                    text::iec_size(written.front().second)));
  }
  return ExitCode::kDone;
}

ExitCode write_lora_delta(Catalog a, Catalog b,
                          const std::vector<std::string>& differing,
                          const DeltaPaths& paths, const DeltaOptions& options,
                          const EngineOptions& engine,
                          const OutputOptions& output) {
  for (const std::string& source : {paths.a, paths.b})
    check_apart(source, options.path);
  const library::LoraResult result =
      library::write_lora(std::move(a), std::move(b), differing, options.path,
                          {.rank = options.rank,
                           .dtype = options.dtype.value_or(DType::f32),
                           .base = paths.a,
                           .threads = engine.threads,
                           .max_mem = engine.max_mem,
                           .overwrite = options.overwrite,
                           .sync = options.sync},
                          make_progress(output));
  if (output.json) {
    JsonWriter json = delta_document(paths, options, result.written);
    json.key("lora").begin_object();
    json.member("rank", options.rank);
    json.key("modules").begin_array();
    for (const library::LoraModule& module : result.modules)
      json.begin_object()
          .member("name", module.name)
          .member("rank", module.rank)
          .member("norm", module.norm)
          .member("error", module.error())
          .end_object();
    json.end_array().key("saved").begin_array();
    for (const std::string& module : result.saved) json.value(module);
    json.end_array().end_object().end_object();
    print(std::move(json).text());
    return ExitCode::kDone;
  }
  Table table({Align::kLeft, Align::kRight, Align::kRight, Align::kRight});
  table.row({"module", "rank", "norm", "error left"});
  for (const library::LoraModule& module : result.modules)
    table.row({text::printable(module.name), fmt::format("{}", module.rank),
               fmt::format("{:.3g}", module.norm),
               fmt::format("{:.3g}", module.error())});
  if (!result.modules.empty()) print(table.text(0));
  for (const std::string& module : result.saved)
    print(text::printable(module) + "  whole\n");
  if (output.verbosity >= 0)
    say(
        fmt::format("wrote {}: a LoRA of rank {}, {}{}; next: ckpt convert {} "
                    "DST --to safetensors --adapter {}",
                    text::printable(options.path), options.rank,
                    text::counted(result.modules.size(), "module"),
                    result.saved.empty()
                        ? std::string()
                        : fmt::format(" and {} whole", result.saved.size()),
                    text::shell_path(paths.a), text::shell_path(options.path)));
  return ExitCode::kDone;
}

}  // namespace ckpt::app
