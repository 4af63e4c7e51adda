// SPDX-License-Identifier: Apache-2.0
#include "app/print/help.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "app/options/words.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/table.h"
#include "formats/format.h"
#include "lib/io/file.h"
#include "lib/module.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"
#include "lib/text/suggest.h"
#include "lib/text/words.h"

namespace ckpt::app {
namespace {

constexpr std::string_view kExitStatus =
    "  0  done, same, valid\n"
    "  1  check failed: damage or differences found\n"
    "  2  wrong usage\n"
    "  3  input missing, or not a recognized checkpoint\n"
    "  4  input damaged\n"
    "  5  can't be done faithfully\n"
    "  6  reading or writing failed; --resume continues\n"
    "  7  memory or an optional module is missing\n"
    "  8  refused as unsafe\n"
    " 70  a bug in ckpt\n"
    "130, 143  interrupted\n";

std::string heading(std::string_view text) {
  return styled(text, Style::kBold) + "\n";
}

// "-n, --dry-run", "    --keys GLOB"
std::string option_names(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name(true);
  std::string text = option.get_snames().empty()
                         ? "    "
                         : "-" + option.get_snames()[0] + ", ";
  text += "--" + option.get_lnames()[0];
  if (option.get_type_size() == 0) return text;
  // CLI11 appends the names of validators to the type: "X:NONNEGATIVE".
  const std::string type = option.get_type_name();
  return text + " " + type.substr(0, type.find(':'));
}

// Words in lines of at most `width` bytes (the texts are ASCII).
std::vector<std::string> wrapped(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  while (text.size() > width) {
    const size_t space = text.rfind(' ', width);
    if (space == text.npos) break;
    lines.emplace_back(text.substr(0, space));
    text.remove_prefix(space + 1);
  }
  lines.emplace_back(text);
  return lines;
}

// Columns of a page: the terminal's, but never so many that lines get long.
size_t page_width() {
  constexpr size_t kPage = 80, kLeast = 40;
  if (!stdout_is_terminal() || stdout_width() == 0) return kPage;
  return std::clamp(stdout_width(), kLeast, kPage);
}

// "  name  what it is, in as many lines as it takes": `names` columns for the
// name, two spaces before each.
std::string row_lines(const std::string& name, size_t names,
                      std::string_view what) {
  std::string text, head = name;
  for (const std::string& line : wrapped(what, page_width() - names - 4)) {
    text += fmt::format("  {:<{}}  {}\n", head, names, line);
    head.clear();
  }
  return text;
}

// `brief`: without what follows in parentheses or after a semicolon.
std::string option_lines(const CLI::Option& option, bool brief = false) {
  constexpr size_t kWide = 30, kNarrow = 26;
  const size_t names_width = page_width() < 80 ? kNarrow : kWide;
  std::string text;
  std::string names = option_names(option);
  if (names.size() > names_width) {  // its text begins on the next line
    text = fmt::format("  {}\n", names);
    names.clear();
  }
  const std::string& what = option.get_description();
  return text + row_lines(names, names_width,
                          brief ? what.substr(0, std::min(what.find(';'),
                                                          what.find(" (")))
                                : what);
}

std::vector<std::string> groups_of(const CLI::App& app) {
  std::vector<std::string> groups;
  for (const CLI::Option* option : app.get_options())
    if (std::ranges::find(groups, option->get_group()) == groups.end())
      groups.push_back(option->get_group());
  return groups;
}

// Options of one group, aligned across the whole page.
std::string option_group(const CLI::App& app, const std::string& group) {
  std::string text;
  for (const CLI::Option* option : app.get_options())
    if (option->get_group() == group) text += option_lines(*option);
  return text;
}

// The words in CLI11's "SHELL: tcsh not in {bash,zsh,fish}", or none.
std::vector<std::string> allowed_words(const std::string& message) {
  const size_t open = message.find(" not in {");
  if (open == message.npos || !message.ends_with('}')) return {};
  std::vector<std::string> words(1);
  for (const char c : message.substr(open + 9, message.size() - open - 10))
    if (c == ',')
      words.emplace_back();
    else
      words.back() += c;
  return words;
}

// Replaces CLI11's wording of common mistakes by ours.
std::string reworded(const std::string& message) {
  const std::vector<std::string> words = allowed_words(message);
  if (const size_t colon = message.find(": ");
      !words.empty() && colon != message.npos)
    return fmt::format(
        "{} '{}': expected {}", message.substr(0, colon),
        message.substr(colon + 2, message.find(" not in {") - colon - 2),
        fmt::join(words, ", "));
  // "--port: Value x not in range 0 to 65535"
  const size_t value = message.find(": Value ");
  const size_t range = message.find(" not in range ");
  if (value != message.npos && range != message.npos && value < range) {
    const std::string limits = message.substr(range + 14);
    // The largest number that there is is none that anybody meant.
    const size_t to = limits.find(" to ");
    const bool endless = to != limits.npos && limits.size() - to > 12;
    return fmt::format(
        "{} '{}': expected {}", message.substr(0, value),
        message.substr(value + 8, range - value - 8),
        !endless
            ? limits
            : fmt::format("a number, {} or more",
                          limits.substr(0, std::min(limits.find('.'), to))));
  }
  if (const size_t at = message.find(": At Most 1 required");
      at != message.npos)
    return message.substr(0, at) + " is given more than once";
  if (const size_t at = message.find(": 1 required "); at != message.npos)
    return message.substr(0, at) + " needs a value";
  if (const size_t at = message.find(" excludes "); at != message.npos)
    return message.substr(0, at) + " can't go with " + message.substr(at + 10);
  return message;
}

// "--keep-last or --keep-every" for "--keep": options that begin with the word.
std::string longer_options(std::string_view word,
                           const std::vector<std::string>& words) {
  constexpr size_t kLeast = 5;  // "--kee"
  if (word.size() < kLeast) return {};
  std::vector<std::string> found;
  for (const std::string& one : words)
    if (one.starts_with(word)) found.push_back(one);
  if (found.empty()) return {};
  const std::string last = found.back();
  found.pop_back();
  return found.empty() ? last
                       : fmt::format("{} or {}", fmt::join(found, ", "), last);
}

std::vector<std::string> option_words(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      words.push_back("--" + name);
    for (const std::string& name : option->get_snames())
      words.push_back("-" + name);
  }
  return words;
}

struct ModuleUse {
  std::string_view name;
  std::string_view what;
};
constexpr ModuleUse kModules[] = {
    {"torch", "casts from integers"},
    {"mpi", "many ranks under mpirun or srun"},
    {"cuda", "--device cuda"},
};

std::string formats_table() {
  size_t names = 0;
  for (const formats::Format& format : formats::all_formats())
    names = std::max(names, format.name.size());
  std::string text;
  for (const formats::Format& format : formats::all_formats()) {
    const char* can = format.reader && format.writer ? "read, write"
                      : format.reader                ? "read"
                                                     : "write";
    const std::string head =
        fmt::format("{:<{}}  {:<11}", format.name, names, can);
    text += row_lines(head, head.size(), format.what);
  }
  return text;
}

}  // namespace

std::string_view exit_statuses() { return kExitStatus; }

std::string usage_text(const Command& command, const CLI::App& app) {
  std::string line = fmt::format("ckpt {}", command.name());
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    std::string name = option->get_name(true);
    // The target behind a list is a part of it until the words are counted.
    const bool needed = option->get_required() || name == "DST";
    if (option->get_expected_max() > 1) name += "...";
    line += needed ? " " + name : " [" + name + "]";
  }
  for (const CLI::Option* option : app.get_options())
    if (!option->get_positional() && option->get_required())
      line += " --" + option->get_lnames()[0] + " " + option->get_type_name();
  return line + " [options]";
}

// The commands by what they are for, in the order of the short page; what is
// in no row comes last.
struct Task {
  std::string_view name;
  std::string_view commands;
};
constexpr Task kTasks[] = {
    {"look", "inspect ls show view diff"},
    {"rewrite", "convert reshard unshard merge edit"},
    {"check", "verify scan salvage"},
    {"a run", "wait watch prune"},
    {"fetch", "fetch sync"},
};

std::string task_lines(const Commands& commands) {
  std::string text, done = " ";
  const auto line = [&](std::string_view& task, const Command& command) {
    text += row_lines(fmt::format("{:<8}  {}", task, command.name()), 20,
                      command.help());
    task = {};
  };
  for (const Task& task : kTasks) {
    std::string_view name = task.name;
    for (const auto& command : commands) {
      if (!text::has_word(task.commands, command->name())) continue;
      line(name, *command);
      done += std::string(command->name()) + " ";
    }
  }
  std::string_view name = "more";
  for (const auto& command : commands)
    if (!text::has_word(done, command->name())) line(name, *command);
  return text;
}

std::string short_main_help(const Commands& commands) {
  return "usage: ckpt COMMAND ... [options]\n\n" + task_lines(commands) +
         "\n  ckpt inspect PATH        begin here: any checkpoint, file, "
         "folder "
         "or URL\n"
         "  ckpt COMMAND -h          a screen; --help is complete\n"
         "  ckpt --help              formats and exit statuses, too\n";
}

std::string main_help(const Commands& commands) {
  std::string text =
      "ckpt opens any large-model training checkpoint, says what is in it,\n"
      "verifies it and rewrites it for another topology or framework.\n\n"
      "usage: ckpt COMMAND ... [options]\n\n";
  text += heading("Commands");
  for (const auto& command : commands)
    text += row_lines(std::string(command->name()), 10, command->help());
  text += "\n" + heading("Examples");
  for (const auto& command : commands) {
    const std::string_view all = command->examples();
    text += fmt::format("  {}\n", all.substr(0, all.find('\n')));
  }
  text += "\n" + heading("Formats (--from, --to)") + formats_table();
  text += "\n" + heading("Exit status");
  text += kExitStatus;
  text +=
      "\nckpt COMMAND -h is short, --help is complete; ckpt --version says "
      "what is\n"
      "built in.\n";
  return text;
}

std::string short_help(const Command& command, const CLI::App& app) {
  // Options that most runs need; every command shows those that it has. Some
  // have options of their own that matter more.
  constexpr std::pair<std::string_view, std::string_view> kOwn[] = {
      {"merge",
       "weights ema method base last take to dtype dry-run overwrite "
       "json"},
      {"diff", "write as-lora lossless dtype keys layers model-only json"},
      {"edit", "set unset dry-run json"}};
  std::string_view common =
      "to tp pp dp ep dtype keys layers model-only tree stats objects dry-run "
      "overwrite verify deep json long regex all partial include draft "
      "timeout port strict finite do once keep-last keep-every keep-best "
      "delete";
  for (const auto& [name, options] : kOwn)
    if (command.name() == name) common = options;
  std::string text =
      fmt::format("ckpt {}: {}\n\n", command.name(), command.help());
  text += "usage: " + usage_text(command, app) + "\n\n";
  size_t left_out = 0;
  for (const std::string& group : groups_of(app)) {
    std::string lines;
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_group() != group) continue;
      if (option->get_positional() ||
          text::has_word(common, option->get_lnames()[0]))
        lines += option_lines(*option, true);
      else
        ++left_out;
    }
    if (!lines.empty())
      text += (group == "Arguments" ? "" : heading(group)) + lines;
  }
  const std::string_view all = command.examples();
  text += fmt::format("\nexample: {}\n", all.substr(0, all.find('\n')));
  if (left_out > 0)
    text += fmt::format("--help shows {} more options\n", left_out);
  return text;
}

std::vector<std::string> long_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  return names;
}

std::string command_help(const Command& command, const CLI::App& app) {
  std::string text =
      fmt::format("ckpt {}: {}\n\n", command.name(), command.help());
  text += "usage: " + usage_text(command, app) + "\n";
  for (const std::string& group : groups_of(app))
    text += "\n" + heading(group) + option_group(app, group);
  text += "\n" + heading("Examples");
  std::string_view rest = command.examples();
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    text += fmt::format("  {}\n", rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return text;
}

std::string version_text() {
  Table table({Align::kLeft, Align::kLeft, Align::kLeft}, 2);
  for (const ModuleUse& module : kModules) {
    const std::string path = find_module(module.name);
    std::string state = path.empty() ? "not available" : text::printable(path);
    if (const std::string problem = path.empty() ? "" : module_problem(path);
        !problem.empty())
      state = "can't be opened: " + text::printable(problem);
    table.row({std::string(module.name), std::string(module.what), state});
  }
  return "ckpt " CKPT_VERSION "\noptional modules:\n" + table.text(0);
}

std::string version_json() {
  JsonWriter json;
  json.begin_document("version").member("version", CKPT_VERSION);
  json.key("modules").begin_array();
  for (const ModuleUse& module : kModules) {
    const std::string path = find_module(module.name);
    json.begin_object().member("name", module.name);
    json.member("what", module.what);
    json.text_or_null("path", path);
    json.text_or_null("problem", path.empty() ? "" : module_problem(path));
    json.end_object();
  }
  json.end_array().end_object();
  return std::move(json).text();
}

Error unknown_command(const std::string& word, const Commands& commands) {
  if (const std::string near =
          word.starts_with("--") && word.size() > 2
              ? text::nearest(word, {"--version", "--help"})
              : "";
      !near.empty())
    return usage_error({}, "unknown option '{}'", word)
        .with_hint("did you mean ckpt " + near + "?");
  if (word.starts_with("-"))
    return usage_error({}, "'{}' comes before the command", word)
        .with_hint("options come after it: ckpt COMMAND ... [options]");
  std::vector<std::string> names;
  for (const auto& command : commands) names.emplace_back(command->name());
  const std::string near = text::nearest(word, names);
  std::string hint = fmt::format("one of {}", fmt::join(names, ", "));
  if (const std::string_view meant = meant_command(word, names);
      !meant.empty()) {
    hint = fmt::format("did you mean {}?", meant);
  } else if (!near.empty()) {
    hint = fmt::format("did you mean ckpt {}?", near);
  } else if (io::is_file(word) || io::is_directory(word)) {
    hint = fmt::format("to see what it holds: ckpt inspect {}",
                       text::shell_path(word));
  }
  return usage_error({}, "unknown command '{}'", word).with_hint(hint);
}

Error wrong_options(const Command& command, const CLI::App& app,
                    const std::string& message) {
  const std::string help =
      fmt::format("ckpt {} --help lists the options", command.name());
  std::vector<std::string> extras = app.remaining();
  // What follows a "--" is no option, whatever it begins with.
  const auto end = std::ranges::find(extras, "--");
  if (end == extras.begin() && extras.size() > 1)
    return usage_error({}, "unexpected argument '{}'", extras[1])
        .with_hint("usage: " + usage_text(command, app));
  extras.erase(end, extras.end());
  const auto dashed = std::ranges::find_if(extras, [](const std::string& s) {
    return s.size() > 1 && s.starts_with("-");
  });
  if (dashed != extras.end()) {
    const std::string word = dashed->substr(0, dashed->find('='));
    const std::vector<std::string> words = option_words(app);
    if (is_path_option(word))
      return usage_error({}, "unknown option {} for `ckpt {}`", word,
                         command.name())
          .with_hint("paths have no option: " + usage_text(command, app));
    if (is_step_option(word))
      return usage_error({}, "unknown option {} for `ckpt {}`", word,
                         command.name())
          .with_hint(
              "a step is a path below its root: ckpt ls ROOT lists them");
    std::string near(meant_option(word));
    if (std::ranges::find(words, near) == words.end())
      near = longer_options(word, words);
    if (near.empty()) near = text::nearest(word, words);
    return usage_error({}, "unknown option {} for `ckpt {}`", word,
                       command.name())
        .with_hint(near.empty() ? help : fmt::format("did you mean {}?", near));
  }
  if (!extras.empty())
    return usage_error({}, "unexpected argument '{}'", extras.front())
        .with_hint("usage: " + usage_text(command, app));
  if (const auto words = allowed_words(message); !words.empty()) {
    const size_t colon = message.find(": ") + 2;
    const std::string near = text::nearest(
        message.substr(colon, message.find(" not in {") - colon), words);
    return usage_error({}, "{}", reworded(message))
        .with_hint(near.empty() ? help : fmt::format("did you mean {}?", near));
  }
  const bool lacks = message.ends_with(" is required");
  return usage_error({}, "{}", reworded(message))
      .with_hint(lacks ? "usage: " + usage_text(command, app) : help);
}

}  // namespace ckpt::app
