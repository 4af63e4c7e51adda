// SPDX-License-Identifier: Apache-2.0
// Changes the metadata in headers.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/table.h"
#include "ckpt/keep.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

constexpr std::string_view kEditExamples =
    "ckpt edit model.safetensors --set license=apache-2.0\n"
    "ckpt edit model --unset modelspec.author -n\n"
    "ckpt edit model.gguf --set general.name='My model'\n"
    "ckpt edit model.gguf --set my.scale:f32=0.5";

class EditCommand : public Command {
 public:
  std::string_view name() const override { return "edit"; }
  std::string_view help() const override {
    return "change metadata in safetensors and GGUF headers, in place";
  }
  std::string_view examples() const override { return kEditExamples; }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  std::string json(const Edited& done) const;
  std::string text(const Edited& done) const;

  std::string path_;
  EditOptions options_;
};

void EditCommand::add_options(CLI::App& app) {
  app.add_option("PATH", path_, "A file, or the folder of a model")
      ->required()
      ->group("Arguments");
  const std::string group = "What to change";
  // A value may begin with anything, and take no word after it.
  app.add_option("--set", options_.set,
                 "Give a key this value; a key of GGUF keeps its type, a new "
                 "one needs KEY:TYPE=VALUE (u32, f32, bool, str, arr:str ...)")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE")
      ->group(group);
  app.add_option("--unset", options_.unset, "Remove a key")
      ->allow_extra_args(false)
      ->type_name("KEY")
      ->group(group);
  const std::string how = "How";
  app.add_flag("-n,--dry-run", options_.dry_run, "Only say what would change")
      ->group(how);
  app.add_option("--from", options_.open.format,
                 "Format of the folder, instead of detecting it")
      ->type_name("FORMAT")
      ->group(how);
  app.add_flag_callback(
         "--no-fsync", [this] { options_.sync = false; },
         "Do not wait for the disk")
      ->group(how);
}

std::string EditCommand::json(const Edited& done) const {
  JsonWriter json;
  json.begin_document("edit").member("path", path_);
  json.text_or_null("step", done.step);
  json.member("dry_run", options_.dry_run);
  json.key("files").begin_array();
  for (const Edited::OneFile& file : done.files) {
    json.begin_object().member("path", file.path);
    json.member("bytes", file.bytes);
    json.key("changes").begin_array();
    for (const Edited::Change& change : file.changes) {
      const auto value = [&](std::string_view name,
                             const std::optional<std::string>& text) {
        json.key(name);
        if (text)
          json.value(*text);
        else
          json.null();
      };
      json.begin_object().member("key", change.key);
      value("before", change.before);
      value("after", change.after);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().key("written").begin_array();
  const auto written = [&](const std::string& path, uint64_t bytes) {
    json.begin_object().member("path", path).member("bytes", bytes);
    json.end_object();
  };
  for (const Edited::OneFile& file : done.files)
    if (file.written) written(file.path, file.bytes);
  for (const auto& [path, bytes] : done.manifests) written(path, bytes);
  json.end_array().end_object();
  return std::move(json).text();
}

std::string EditCommand::text(const Edited& done) const {
  constexpr size_t kWide = 60;
  const auto shown = [](const std::optional<std::string>& text) {
    return text ? "'" + cut_end(text::printable(*text), kWide) + "'"
                : std::string("nothing");
  };
  std::string said;
  size_t changed = 0;
  for (const Edited::OneFile& file : done.files) {
    changed += !file.changes.empty();
    for (const Edited::Change& change : file.changes)
      said += fmt::format("{}: {}: {}, was {}\n", text::printable(file.path),
                          text::printable(change.key), shown(change.after),
                          shown(change.before));
  }
  std::string count = fmt::format("{} of {}", changed,
                                  text::counted(done.files.size(), "file"));
  if (!done.step.empty()) count += " of " + text::printable(done.step);
  if (changed == 0) return said + "nothing to change\n";
  if (options_.dry_run)
    return said + count + " would change; dry run: nothing was written\n";
  return said + count + " changed\n";
}

ExitCode EditCommand::run() {
  options_.note = [this](const std::string& text) {
    if (output.verbosity >= 0) say_note(text);
  };
  const Edited done = edit(path_, options_);
  if (output.json)
    print(json(done));
  else if (output.verbosity >= 0)
    print_folded(text(done));
  return ExitCode::kDone;
}

}  // namespace

std::unique_ptr<Command> make_edit() { return std::make_unique<EditCommand>(); }

}  // namespace ckpt::app
