// SPDX-License-Identifier: Apache-2.0
#include "app/options/written.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/trace.h"

namespace ckpt::app {
namespace {

namespace fs = std::filesystem;

struct WrittenOption {
  std::string_view name;
  std::string_view kind;
  std::string_view mark;  // see io::NoteRules
};

constexpr WrittenOption kWritten[] = {
    {"--trace", "trace", trace::kMark},    {"--html", "page", kPageMark},
    {"--plan-file", "plan", kPlanMark},    {"--draft", "draft", ""},
    {"--dir", "manual page", kManualMark}, {"--plot", "picture", kPlotMark},
};

// The targets of commands.
constexpr std::string_view kTargets[] = {"DST", "DIR"};

const WrittenOption& row_of(std::string_view option) {
  const auto* const found =
      std::ranges::find(kWritten, option, &WrittenOption::name);
  if (found == std::end(kWritten))
    throw bug_error({}, "{} is not in the list of what is written", option);
  return *found;
}

bool is_written(const CLI::Option& option) {
  return std::ranges::any_of(kWritten, [&](const WrittenOption& row) {
    return option.check_name(std::string(row.name));
  });
}

bool is_target(const CLI::Option& option) {
  return option.get_positional() &&
         std::ranges::find(kTargets, option.get_name(true)) !=
             std::end(kTargets);
}

std::string resolved(const std::string& path) {
  std::error_code failed;
  const fs::path found = fs::weakly_canonical(path, failed);
  return failed ? path : found.string();
}

// Two outputs of one run must not meet: the second would replace the first.
void check_apart(const std::vector<std::string>& targets,
                 const std::string& path, std::string_view option) {
  const std::string note = resolved(path);
  for (const std::string& target : targets) {
    const std::string other = resolved(target);
    if (note != other && !(note + "/").starts_with(other + "/")) continue;
    throw usage_error({path, {}}, "{}: another output of this run is there",
                      option)
        .with_hint("give " + std::string(option) + " a name of its own");
  }
}

}  // namespace

void add_overwrite(CLI::App& app, OutputOptions& output) {
  const auto options = app.get_options();
  const bool writes =
      std::ranges::any_of(options, [](const CLI::Option* option) {
        return is_written(*option) || is_target(*option);
      });
  if (!writes || app.get_option_no_throw("--overwrite")) return;
  app.add_flag("--overwrite", output.written->overwrite,
               "Replace a file that is in the way of one that is written")
      ->group("Output");
}

void guard_written(const CLI::App& app, OutputOptions& output) {
  WrittenFiles& written = *output.written;
  if (const CLI::Option* const flag = app.get_option_no_throw("--overwrite"))
    written.overwrite = flag->count() != 0;
  std::string traced;
  std::vector<std::string> taken;
  for (const CLI::Option* option : app.get_options()) {
    if (is_written(*option)) continue;
    const bool target = is_target(*option);
    for (const std::string& value : option->results()) {
      std::error_code failed;
      if (target)
        taken.push_back(value);
      else if (fs::exists(value, failed))
        written.sources.push_back(value);
    }
  }
  for (const WrittenOption& row : kWritten) {
    const CLI::Option* const option =
        app.get_option_no_throw(std::string(row.name));
    if (!option || option->count() == 0) continue;
    const std::string path = option->as<std::string>();
    if (path == "-") continue;  // standard output
    check_note(path, std::string(row.name));
    check_apart(taken, path, row.name);
    taken.push_back(path);
    if (row.mark != kManualMark)
      io::check_note_place(path, note_rules(row.name, output));
    if (row.mark == trace::kMark) traced = path;
  }
  // It makes a file: none that is left of a command line that is refused.
  if (!traced.empty()) trace::start(traced, note_rules("--trace", output));
}

io::NoteRules note_rules(std::string_view option, const OutputOptions& output) {
  const WrittenOption& row = row_of(option);
  return {.option = std::string(row.name),
          .kind = std::string(row.kind),
          .mark = row.mark,
          .overwrite = output.written->overwrite,
          .sources = output.written->sources};
}

void write_output(const std::string& path, std::string_view option,
                  const OutputOptions& output, std::string_view text) {
  io::write_note(path, note_rules(option, output), text);
  output.written->files.emplace_back(path, text.size());
}

void end_trace(const OutputOptions& output) {
  const auto [path, bytes] = trace::finish();
  if (!path.empty()) output.written->files.emplace_back(path, bytes);
}

}  // namespace ckpt::app
