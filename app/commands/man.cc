// SPDX-License-Identifier: Apache-2.0
// The manual, generated from the options themselves.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "app/command.h"
#include "app/commands/option_table.h"
#include "app/options/options.h"
#include "app/options/settings.h"
#include "app/options/written.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "formats/format.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/suggest.h"

namespace ckpt::app {
namespace {

// Pages for man(1): one for each command, and one that lists them.

struct Variable {
  std::string_view name;
  std::string_view what;
};

constexpr Variable kVariables[] = {
    {"CKPT_MODULE_PATH",
     "Directories, separated by colons, with the modules libckpt_mpi.so, "
     "libckpt_cuda.so and libckpt_torch.so, where they are not beside ckpt "
     "or in the lib directory next to it, and formats of others: "
     "libckpt_format_NAME.so."},
    {"CKPT_FAMILY_PATH",
     "Directories, separated by colons, with families of one's own, "
     "NAME.json each."},
    {"CKPT_TRAINER_PATH",
     "Directories, separated by colons, with JSON files of trainers of one's "
     "own."},
    {"CKPT_LAUNCHER",
     "none: a process that srun or mpirun started runs by itself."},
    {"NO_COLOR, CLICOLOR_FORCE, FORCE_COLOR",
     "Colours never, or always, unless --color is given."},
    {"CKPT_NET_RETRIES, CKPT_NET_BACKOFF_MS, CKPT_NET_STALL, "
     "CKPT_NET_CONNECTIONS",
     "How often a request is tried again, the first pause, the seconds "
     "without a byte after which it counts as lost, and how many run at once."},
    {"CKPT_NET_PART_MIB",
     "The size of the parts that an upload is sent in, MiB (16)."},
    {"CKPT_SPOOL",
     "Where a target on another machine is written before it is uploaded "
     "(default: TMPDIR, else /var/tmp)."},
    {"CKPT_NET_FORBIDDEN",
     "absent: 403 for what is looked for beside a file means that it is not "
     "there."},
    {"CKPT_NET_ALLOW_HTTP", "1: http:// too, which nothing protects."},
    {"HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE",
     "As huggingface_hub has them, for paths that begin with hf://."},
    {"AWS_PROFILE, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
     "AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL",
     "As the AWS tools have them, for paths that begin with s3://."},
    {"GOOGLE_OAUTH_ACCESS_TOKEN", "For paths that begin with gs://."},
};

// Text for roff: backslashes and hyphens as themselves. A dot or quote at the
// start of a line would be a request.
std::string roff(std::string_view text) {
  std::string out;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
    begins = c == '\n';
  }
  return out;
}

// No date, so the same binary makes the same pages.
std::string title(std::string_view name) {
  std::string upper;
  for (const char c : name)
    upper += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return fmt::format(".TH {} 1 \"\" \"ckpt {}\" \"Checkpoints\"\n", roff(upper),
                     CKPT_VERSION);
}

std::string section(std::string_view name) {
  return fmt::format(".SH {}\n", name);
}

std::string entry(const std::string& term, std::string_view text) {
  return fmt::format(".TP\n{}\n{}\n", term, roff(text));
}

std::string option_entry(const OptionRow& row) {
  std::string term;
  if (!row.short_name.empty())
    term = fmt::format("\\fB{}\\fR, ", roff(row.short_name));
  term += fmt::format("\\f{}{}\\fR", row.positional ? 'I' : 'B',
                      roff(row.long_name));
  if (!row.value.empty()) term += fmt::format(" \\fI{}\\fR", roff(row.value));
  std::string text = row.help;
  if (text.empty() || text.back() != '.') text += '.';
  if (row.kind == ValueKind::kWords)
    text += fmt::format(" One of: {}.", fmt::join(row.words, ", "));
  return entry(term, text);
}

std::string lines_as_they_are(std::string_view text) {
  std::string out = ".nf\n" + roff(text);
  if (out.back() != '\n') out += '\n';
  return out + ".fi\n";
}

std::string environment() {
  std::string text = section("ENVIRONMENT");
  for (const Variable& variable : kVariables)
    text +=
        entry(fmt::format("\\fB{}\\fR", roff(variable.name)), variable.what);
  std::vector<std::string> settings;
  for (const std::string_view name : setting_names())
    settings.push_back(setting_variable(name));
  text += entry(
      fmt::format("\\fB{}\\fR",
                  roff(fmt::format("{}", fmt::join(settings, ", ")))),
      "What --" + std::string(setting_names().back()) +
          " and the other options of these names are, where a command line "
          "doesn't say.");
  return text + entry("\\fBCKPT_CONFIG\\fR",
                      "The configuration file; empty: none is read.");
}

// ckpt-inspect(1)
std::string command_page(const CommandRow& row) {
  const std::string page = "ckpt-" + row.name;
  std::string text = title(page) + section("NAME");
  text += fmt::format("{} \\- {}\n", roff(page), roff(row.help));
  text += section("SYNOPSIS") + roff(row.usage) + "\n";
  text += section("OPTIONS");
  std::vector<std::string> groups;
  for (const OptionRow& option : row.options)
    if (std::ranges::find(groups, option.group) == groups.end())
      groups.push_back(option.group);
  for (const std::string& group : groups) {
    text += fmt::format(".SS {}\n", roff(group));
    for (const OptionRow& option : row.options)
      if (option.group == group) text += option_entry(option);
  }
  text += section("EXAMPLES") + lines_as_they_are(row.examples);
  text += section("EXIT STATUS") + lines_as_they_are(exit_statuses());
  return text + section("SEE ALSO") + "\\fBckpt\\fR(1)\n";
}

// ckpt(1)
std::string main_page(const std::vector<CommandRow>& table) {
  std::string text = title("ckpt") + section("NAME");
  text += "ckpt \\- open, verify and rewrite checkpoints of large models\n";
  text += section("SYNOPSIS");
  text += "\\fBckpt\\fR \\fICOMMAND\\fR ... [\\fIoptions\\fR]\n";
  text += section("DESCRIPTION");
  text +=
      "Opens any training checkpoint of a large model, says what is in it,\n"
      "verifies it and rewrites it for another topology or framework.\n"
      "The source is never changed, and nothing in it is executed.\n";
  text += section("COMMANDS");
  for (const CommandRow& row : table)
    text += entry(fmt::format("\\fBckpt\\-{}\\fR(1)", roff(row.name)),
                  row.help + ".");
  text += section("FORMATS");
  for (const formats::Format& format : formats::all_formats())
    text += entry(fmt::format("\\fB{}\\fR", roff(format.name)),
                  fmt::format("{} ({}).", format.what,
                              format.reader && format.writer ? "read, write"
                              : format.reader                ? "read"
                                                             : "write"));
  text += section("EXIT STATUS") + lines_as_they_are(exit_statuses());
  text += environment();
  text += section("FILES");
  text += entry("\\fB.ckpt\\-manifest.json\\fR",
                "Beside what was written: digests that ckpt verify holds it "
                "against.");
  text += entry("\\fI~/.config/ckpt/config\\fR",
                "Lines \"max-mem = 8GiB\" for the options that the environment "
                "can set, which comes before the file.");
  text += section("SEE ALSO");
  for (const CommandRow& row : table)
    text += fmt::format("\\fBckpt\\-{}\\fR(1){}\n", roff(row.name),
                        &row == &table.back() ? "" : ",");
  return text;
}

class Man : public Command {
 public:
  std::string_view name() const override { return "man"; }
  std::string_view help() const override {
    return "print the manual, or write it as pages for man(1)";
  }
  std::string_view examples() const override {
    return "ckpt man convert | man -l -\n"
           "ckpt man --dir ~/.local/share/man/man1   # all pages";
  }
  void add_options(CLI::App& app) override {
    app.add_option("COMMAND", command_, "Its page (default: of ckpt itself)")
        ->group("Arguments");
    app.add_option("--dir", directory_, "Write all pages there")
        ->type_name("DIR")
        ->group("Output");
  }
  ExitCode run() override {
    const std::vector<CommandRow> table = option_table();
    JsonWriter json;
    json.begin_document("man");
    if (!directory_.empty()) {
      json.key("files").begin_array();
      for (const std::string& path : write_all(table)) json.value(path);
      json.end_array();
    } else {
      const std::string page =
          command_.empty() ? main_page(table) : command_page(row_of(table));
      json.member("text", page);
      if (!output.json) {
        print(page);
        if (stdout_is_terminal())
          say_note("this is roff, for `man -l -`; --help is plain text");
      }
    }
    json.end_object();
    if (output.json) print(std::move(json).text());
    return ExitCode::kDone;
  }

 private:
  const CommandRow& row_of(const std::vector<CommandRow>& table) const {
    std::vector<std::string> names;
    for (const CommandRow& row : table) {
      if (row.name == command_) return row;
      names.push_back(row.name);
    }
    const std::string near = text::nearest(command_, names);
    throw usage_error({}, "unknown command '{}'", text::printable(command_))
        .with_hint(near.empty() ? "ckpt --help lists them"
                                : fmt::format("did you mean {}?", near));
  }

  std::vector<std::string> write_all(
      const std::vector<CommandRow>& table) const {
    std::error_code failure;
    std::filesystem::create_directories(directory_, failure);
    if (failure)
      throw io_error(directory_, "can't create the directory", failure.value());
    std::vector<std::pair<std::string, std::string>> pages = {
        {place("ckpt"), main_page(table)}};
    for (const CommandRow& row : table)
      pages.emplace_back(place("ckpt-" + row.name), command_page(row));
    // None is written if another is in the way.
    for (const auto& [path, page] : pages)
      io::check_note_place(path, note_rules("--dir", output));
    std::vector<std::string> paths;
    for (const auto& [path, page] : pages) {
      write_output(path, "--dir", output, page);
      paths.push_back(path);
    }
    return paths;
  }

  std::string place(const std::string& name) const {
    return io::join(directory_, name + ".1");
  }

  std::string command_;
  std::string directory_;
};

}  // namespace

std::unique_ptr<Command> make_man() { return std::make_unique<Man>(); }

}  // namespace ckpt::app
