// SPDX-License-Identifier: Apache-2.0
#include "app/print/write_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "app/options/written.h"
#include "app/print/console.h"
#include "app/print/progress.h"
#include "app/print/ranks.h"
#include "app/print/table.h"
#include "convert/config/facts.h"
#include "convert/quantized/gguf_quantize.h"
#include "lib/io/file.h"
#include "lib/io/probe.h"
#include "lib/io/remote.h"
#include "lib/io/upload.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"

namespace ckpt::app {
namespace {

void write_topology(JsonWriter& json, const Topology& topology) {
  json.key("topology").begin_object();
  json.member("tp", topology.tp);
  json.member("pp", topology.pp);
  json.member("dp", topology.dp);
  json.member("ep", topology.ep);
  json.end_object();
}

void write_side(JsonWriter& json, std::string_view key, std::string_view path,
                const Catalog& catalog) {
  json.key(key).begin_object();
  json.member("path", path);
  json.member("format", catalog.format);
  write_topology(json, catalog.topology);
  json.end_object();
}

void write_lines(JsonWriter& json, const WriteReport& report) {
  json.key("assumptions").begin_array();
  for (const std::string& line : report.source->assumptions) json.value(line);
  for (const std::string& line : report.target->assumptions)
    if (!std::ranges::count(report.source->assumptions, line)) json.value(line);
  json.end_array();
  json.key("problems").begin_array();
  for (const auto* problems :
       {&report.source->problems, &report.target->problems})
    for (const Problem& problem : *problems) {
      json.begin_object();
      json.member("kind", problem.kind);
      json.member("file", problem.file);
      json.member("tensor", problem.tensor);
      json.member("message", problem.message);
      json.end_object();
    }
  json.end_array();
}

struct Sending {
  uint64_t parts = 0;
  uint64_t part = 0;  // bytes of the largest one
  uint64_t requests = 0;
};

// Includes two checks of the target, the claim, its end, and the manifest.
Sending sending(const WriteReport& report) {
  Sending all{.requests = 6};
  for (const TargetFile& file : report.target->files) {
    const io::UploadCost cost = io::upload_cost(file.size);
    all.parts += cost.parts;
    all.part = std::max(all.part, std::min(cost.part, file.size));
    all.requests += cost.requests;
  }
  return all;
}

// "norm_placement (behind attention and MLP), …"
std::string lacking(const families::MegatronModel& model) {
  std::string list;
  for (const families::FactDifference& one : model.lacks)
    list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", one.name,
                        families::shown_fact(one.a));
  return list;
}

void say_loading(const WriteReport& report) {
  const Catalog& target = report.target->catalog;
  const families::MegatronModel model = families::megatron_model(target);
  if (!model.program.empty() && model.program != "GPTModel")
    say(text::printable(
        model.lacks.empty()
            ? fmt::format("load into {}, not into GPTModel", model.program)
            : fmt::format("load into {}: GPTModel lacks {}", model.program,
                          lacking(model))));
  std::vector<std::string> flags = families::load_flags(target);
  std::ranges::transform(flags, flags.begin(), text::shell_word);
  if (!flags.empty())
    say(text::printable(fmt::format("load with --use-checkpoint-args {}",
                                    fmt::join(flags, " "))));
  const families::Json code = families::load_code(target);
  std::string list;
  for (const auto& [name, value] : code.items())
    list += fmt::format("{}{} {}", list.empty() ? "" : ", ", name,
                        families::shown_fact(value));
  if (!list.empty())
    say(text::printable(
        fmt::format("no flag of Megatron-LM says it to {}: {}",
                    model.program == "BertModel" || model.program == "T5Model"
                        ? model.program
                        : "GPTModel",
                    list)));
}

// What is another program's work, as the last line.
void say_next(const WriteReport& report) {
  const std::string command =
      families::next_step(report.target->catalog, report.target_path);
  if (!command.empty()) say("next: " + text::printable(command));
}

struct FreeSpace {
  std::string directory;
  uint64_t bytes = 0;
};

// Where the target would be written: the nearest existing directory. Nothing
// for a URL, or if it can't be determined.
std::optional<FreeSpace> free_space(const std::string& target) {
  if (io::is_target_url(target)) return std::nullopt;
  std::string directory = target;
  while (!io::is_directory(directory)) {
    std::string above = io::parent(directory);
    if (above == directory) return std::nullopt;
    directory = std::move(above);
  }
  const std::optional<uint64_t> free = io::free_bytes(directory);
  if (!free) return std::nullopt;
  return FreeSpace{std::move(directory), *free};
}

// "40 s", "12 min", "3 h 20 min"
std::string rough_time(double seconds) {
  const auto minutes = std::lround(std::min(seconds, 1e9) / 60);
  if (minutes < 2) return fmt::format("{:.0f} s", std::max(seconds, 1.0));
  if (minutes < 120) return fmt::format("{} min", minutes);
  return fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

void write_plan_facts(JsonWriter& json, const WriteReport& report) {
  json.member("peak_memory", report.peak_memory);
  if (const auto free = free_space(report.target_path))
    json.member("free_space", free->bytes);
  if (const auto& time = report.time) {
    json.key("estimate").begin_object();
    json.member("seconds", time->seconds);
    json.member("read_rate", static_cast<uint64_t>(time->reads));
    json.member("write_rate", static_cast<uint64_t>(time->writes));
    json.end_object();
  }
  if (!io::is_target_url(report.target_path)) return;
  const Sending all = sending(report);
  json.key("upload").begin_object();
  json.member("objects", uint64_t{report.target->files.size()});
  json.member("parts", all.parts);
  json.member("part_bytes", all.part);
  json.member("requests", all.requests);
  json.end_object();
}

void write_program(JsonWriter& json, const families::MegatronModel& model) {
  if (model.program.empty()) return;
  json.key("load_into").begin_object();
  json.member("program", model.program);
  json.key("lacks").begin_object();
  for (const families::FactDifference& one : model.lacks)
    json.member(one.name, families::shown_fact(one.a));
  json.end_object();
  json.end_object();
}

std::string as_json(const WriteReport& report, const OutputOptions& output) {
  JsonWriter json;
  json.begin_document(report.command);
  write_members(json, report, &output);
  json.end_object();
  return std::move(json).text();
}

// A dry run may leave a plan, a page and a trace.
std::string but_notes(const OutputOptions& output) {
  std::vector<std::string> names;
  for (const auto& [path, bytes] : output.written->files) names.push_back(path);
  if (names.empty()) return {};
  return text::printable(fmt::format(" but {}", fmt::join(names, ", ")));
}

std::string dry_run_text(const WriteReport& report,
                         const OutputOptions& output) {
  std::string text = fmt::format(
      "{} {} ({}) -> {} {} ({})\n", report.source->format, report.source->path,
      to_string(report.source->topology), report.target->catalog.format,
      report.target_path, to_string(report.target->catalog.topology));
  Table files({Align::kLeft, Align::kRight, Align::kRight}, 2);
  for (const TargetFile& file : report.target->files)
    files.row(
        {text::printable(file.path.empty() ? io::base_name(report.target_path)
                                           : file.path),
         grouped(file.size), text::iec_size(file.size)});
  text += files.text(stdout_is_terminal() ? stdout_width() : 0);
  text += fmt::format(
      "{} in {}; reads {} ({} bytes), writes {} ({} bytes); "
      "at most {} of memory\n",
      text::counted(report.target->catalog.tensors.size(), "tensor"),
      text::counted(report.target->files.size(), "file"),
      text::iec_size(report.bytes_read), report.bytes_read,
      text::iec_size(report.bytes_written), report.bytes_written,
      text::iec_size(report.peak_memory));
  if (io::is_target_url(report.target_path)) {
    const Sending all = sending(report);
    text += fmt::format(
        "uploads {}, {} of at most {}, in about {} requests, as they are "
        "written\n",
        text::counted(report.target->files.size(), "object"),
        text::counted(all.parts, "part"), text::iec_size(all.part),
        all.requests);
  }
  if (const auto free = free_space(report.target_path))
    text += fmt::format(
        "{}: {} free{}\n", text::printable(free->directory),
        text::iec_size(free->bytes),
        free->bytes < report.bytes_written ? ", which is too little" : "");
  if (const auto& time = report.time)
    text += fmt::format(
        "takes about {} by the speed of the disks, which read {}/s and write "
        "{}/s now\n",
        rough_time(time->seconds),
        text::iec_size(static_cast<uint64_t>(time->reads)),
        text::iec_size(static_cast<uint64_t>(time->writes)));
  for (const std::string& line : report.source->assumptions)
    text += "assumed: " + text::printable(line) + "\n";
  for (const std::string& line : report.target->assumptions)
    if (!std::ranges::count(report.source->assumptions, line))
      text += "assumed: " + text::printable(line) + "\n";
  return text + "dry run: nothing was written" + but_notes(output) + "\n";
}

// "; beside it config.json, x.safetensors.ckpt-manifest.json": what a single
// file brings with it, and what was asked for besides.
std::string beside_text(const WriteReport& report,
                        const OutputOptions& output) {
  std::vector<std::string> names;
  const auto& files = report.target->files;
  const bool single = files.size() != 0 && report.single_file;
  const std::string own = io::base_name(report.target_path);
  for (const TargetFile& file : files)
    if (single && !file.path.empty() && file.path != own)
      names.push_back(file.path);
  if (single && report.manifest) names.push_back(report.manifest->first);
  for (const auto& [path, bytes] : output.written->files) names.push_back(path);
  const std::string part = report.part_of_model ? "; a part of the model" : "";
  if (names.empty()) return part;
  return part +
         text::printable(fmt::format("; {} {}", single ? "beside it" : "and",
                                     fmt::join(names, ", ")));
}

}  // namespace

std::optional<Estimate> estimate(const WriteReport& report) {
  constexpr uint64_t kWorthIt = uint64_t{1} << 30;
  constexpr double kLook = 0.3;  // seconds for each
  const auto free = free_space(report.target_path);
  if (report.bytes_read + report.bytes_written < kWorthIt || !free)
    return std::nullopt;
  std::vector<std::string> files;
  for (const File& file : report.source->files)
    if (!io::is_url(file.path) && file.codec == Codec::kRaw)
      files.push_back(file.path);
  const auto reads = io::probe_reads(files, kLook);
  const auto writes = io::probe_writes(free->directory, kLook);
  if (!reads || !writes) return std::nullopt;
  const double reading = static_cast<double>(report.bytes_read) / *reads;
  const double writing = static_cast<double>(report.bytes_written) / *writes;
  // Both happen at once; on one disk they share it.
  const double seconds = io::on_one_disk(files[0], free->directory)
                             ? reading + writing
                             : std::max(reading, writing);
  return Estimate{seconds, *reads, *writes};
}

void write_notes(JsonWriter& json, const OutputOptions& output) {
  for (const auto& [path, bytes] : output.written->files)
    json.begin_object()
        .member("path", path)
        .member("bytes", bytes)
        .end_object();
}

void write_members(JsonWriter& json, const WriteReport& report,
                   const OutputOptions* output) {
  json.member("command", report.command);
  json.member("dry_run", report.dry_run);
  write_side(json, "source", report.source->path, *report.source);
  write_side(json, "target", report.target_path, report.target->catalog);
  json.member("tensors", uint64_t{report.target->catalog.tensors.size()});
  json.member("part_of_model", report.part_of_model);
  json.member("bytes_read", report.bytes_read);
  json.member("header_bytes_read", report.header_bytes);
  json.member("bytes_written", report.bytes_written);
  if (report.dry_run)
    write_plan_facts(json, report);
  else
    json.member("seconds", report.seconds)
        .member("peak_memory", peak_memory())
        .member("verified", report.verified);
  json.key("files").begin_array();
  for (const FileFate& file : report.target->fates) {
    json.begin_object();
    json.member("path", file.path);
    json.member("fate", name(file.fate));
    json.member("reason", file.reason);
    json.end_object();
  }
  json.end_array();
  json.key("written").begin_array();
  for (const TargetFile& file : report.target->files) {
    json.begin_object();
    json.member("path", file.path.empty() ? io::base_name(report.target_path)
                                          : file.path);
    json.member("bytes", file.size);
    json.end_object();
  }
  if (report.manifest)
    json.begin_object()
        .member("path", report.manifest->first)
        .member("bytes", report.manifest->second)
        .end_object();
  if (output) write_notes(json, *output);
  json.end_array();
  const Catalog& target = report.target->catalog;
  json.key("load_with").begin_array();
  for (const std::string& flag : families::load_flags(target)) json.value(flag);
  json.end_array();
  json.key("load_in_code");
  json.tree(nlohmann::ordered_json(families::load_code(target)));
  write_program(json, families::megatron_model(target));
  if (!report.unproven.empty()) {
    json.key("unproven").begin_array();
    for (const std::string& name : report.unproven) json.value(name);
    json.end_array();
  }
  write_lines(json, report);
  write_ranks(json);
}

namespace {

// "; unproven: a, b and 3 others"
std::string unproven_text(const std::vector<std::string>& names) {
  constexpr size_t kNamed = 3;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamed); ++i)
    text += (i == 0 ? "; unproven: " : ", ") + text::printable(names[i]);
  if (names.size() > kNamed)
    text +=
        fmt::format(" and {}", text::counted(names.size() - kNamed, "other"));
  return text;
}

}  // namespace

void show(const WriteReport& report, const OutputOptions& output) {
  end_trace(output);
  if (output.json) {
    print(as_json(report, output));
  } else if (report.dry_run) {
    print_folded(dry_run_text(report, output));
  } else if (output.verbosity >= 0) {
    const double rate = static_cast<double>(report.bytes_written) /
                        std::max(report.seconds, 1e-6);
    say(fmt::format(
        "wrote {}: {} ({}), {} in {}, {} in {:.{}f} s ({}/s), peak memory "
        "{}{}{}{}{}",
        text::printable(report.target_path), report.target->catalog.format,
        to_string(report.target->catalog.topology),
        text::counted(report.target->catalog.tensors.size(), "tensor"),
        text::counted(report.target->files.size(), "file"),
        text::iec_size(report.bytes_written), report.seconds,
        report.seconds < 1 ? 2 : 1, text::iec_size(static_cast<uint64_t>(rate)),
        text::iec_size(peak_memory()), beside_text(report, output),
        report.verified ? ", verified; next: ckpt inspect "
                        : "; next: ckpt verify ",
        text::shell_path(report.target_path), unproven_text(report.unproven)));
    say_loading(report);
    say_next(report);
  }
}

}  // namespace ckpt::app
