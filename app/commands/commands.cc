// SPDX-License-Identifier: Apache-2.0
#include "app/commands/commands.h"

#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "app/options/options.h"
#include "app/options/settings.h"
#include "app/options/words.h"
#include "app/options/written.h"
#include "app/print/console.h"
#include "app/print/help.h"
#include "app/print/json_writer.h"
#include "lib/failures.h"
#include "lib/io/remote.h"
#include "lib/session.h"
#include "lib/text/format.h"

namespace ckpt::app {

Commands all_commands() {
  Commands commands;
  commands.push_back(make_inspect());
  commands.push_back(make_ls());
  commands.push_back(make_view());
  commands.push_back(make_show());
  commands.push_back(make_convert());
  commands.push_back(make_reshard());
  commands.push_back(make_unshard());
  commands.push_back(make_merge());
  commands.push_back(make_verify());
  commands.push_back(make_diff());
  commands.push_back(make_scan());
  commands.push_back(make_salvage());
  commands.push_back(make_fetch());
  commands.push_back(make_sync());
  commands.push_back(make_edit());
  commands.push_back(make_prune());
  commands.push_back(make_family());
  commands.push_back(make_run());
  commands.push_back(make_wait());
  commands.push_back(make_watch());
  commands.push_back(make_demo());
  commands.push_back(make_doctor());
  commands.push_back(make_man());
  commands.push_back(make_completion());
  return commands;
}

void declare_options(Command& command, CLI::App& app, bool& help) {
  app.set_help_flag();  // help.cc prints ours
  command.add_options(app);
  app.add_flag("-h,--help", help, "Help: -h is short, --help is complete")
      ->group("Output");
  add_overwrite(app, command.output);
  add_output_options(app, command.output);
}

namespace {

bool is_any_of(const std::string& word,
               std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

// What is replaced while it is read is not damaged, and does not differ.
void check_unchanged() {
  if (const auto change = Session::current()->watch.find_change())
    throw *change;
}

// An answer that rests on a file that couldn't be read is none: a reader that
// tries things may have caught the error.
ExitCode run_to_the_end(Command& command) {
  const Session::Own session;
  // Those that write have a watch of their own.
  if (is_any_of(std::string(command.name()),
                {"inspect", "ls", "show", "verify", "diff", "scan"}))
    Session::current()->watch.begin();
  try {
    const ExitCode code = command.run();
    if (const auto failure = failures::any()) throw *failure;
    if (code == ExitCode::kNegative) check_unchanged();
    return code;
  } catch (const Error& error) {
    if (!failures::may_hide_behind(error)) throw;
    if (const auto failure = failures::any()) throw *failure;
    check_unchanged();
    throw;
  }
}

// A script's variable that is not set gives an empty path, which must not mean
// that the option, or the second of two checkpoints, was not given.
void refuse_empty_paths(const CLI::App& app) {
  constexpr std::string_view kPaths[] = {
      "FILE", "FILE.json", "RULES.json", "RULE|FILE", "DIR",   "PATH", "SRC",
      "DST",  "A",         "B",          "URL",       "OTHER", "PLAN", "ROOT"};
  for (const CLI::Option* option : app.get_options()) {
    const bool positional = option->get_positional();
    const std::string name = option->get_name(positional);
    const std::string type = positional ? name : option->get_type_name();
    if (std::ranges::find(kPaths, type) == std::end(kPaths)) continue;
    for (const std::string& value : option->results())
      if (value.empty())
        throw usage_error({}, "{}: the path is empty",
                          positional ? name : "--" + option->get_lnames()[0])
            .with_hint("is a variable of the script not set?");
  }
}

// `SRC... DST`: a list takes all the words that come, and the last of them is
// the target.
void split_off_target(CLI::App& app) {
  CLI::Option* const list = app.get_option_no_throw("SRC");
  CLI::Option* const target = app.get_option_no_throw("DST");
  if (!list || !target || list->get_expected_max() <= 1 || target->count() != 0)
    return;
  std::vector<std::string> paths = list->results();
  if (paths.size() < 2) return;
  target->add_result(paths.back());
  target->run_callback();
  paths.pop_back();
  list->clear();
  list->add_result(paths);
  list->run_callback();
}

int run_command(Command& command, std::vector<std::string> words) {
  CLI::App app;
  bool help = false;
  declare_options(command, app, help);
  if (std::ranges::find(words, "--help") != words.end()) {
    print_folded(command_help(command, app));
    return 0;
  }
  if (std::ranges::find(words, "-h") != words.end()) {
    print_folded(short_help(command, app));
    return 0;
  }
  check_dashes(words, long_options(app));
  resolve_urls(words);
  take_settings(app);
  std::ranges::reverse(words);  // the order that CLI11 expects
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    const std::string set = setting_behind(error.what(), words);
    if (!set.empty())
      throw usage_error({}, "{}", error.what()).with_hint(set + " sets it");
    throw wrong_options(command, app, error.what());
  } catch (const Error& error) {
    const std::string set = setting_behind(error.problem(), words);
    if (set.empty()) throw;
    throw error.with_hint(set + " sets it" +
                          (error.hint().empty() ? "" : "; " + error.hint()));
  }
  split_off_target(app);
  refuse_empty_paths(app);
  configure(command.output);
  guard_written(app, command.output);
  JsonWriter::set_lines(command.output.ndjson);
  const ExitCode code = run_to_the_end(command);
  if (const io::RemoteTraffic traffic = io::remote_traffic();
      traffic.requests != 0)
    spdlog::info("{}, {} over the wire",
                 text::counted(traffic.requests, "request"),
                 text::iec_size(traffic.bytes + traffic.sent));
  return static_cast<int>(code);
}

// Wrong usage always has a next step.
int run_or_explain(Command& command, std::vector<std::string> words) {
  try {
    return run_command(command, std::move(words));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage || !error.hint().empty()) throw;
    throw error.with_hint("ckpt " + std::string(command.name()) +
                          " --help lists the options");
  }
}

std::vector<std::string> current;  // what is running

}  // namespace

const std::vector<std::string>& command_words() { return current; }

int run_words(std::vector<std::string> words) {
  // Decided before anything can go wrong, because errors are then JSON.
  const bool json = std::ranges::any_of(words, [](const std::string& word) {
    return word == "--json" || word == "--ndjson";
  });
  if (json) configure({.json = true});
  words = expand_files(words);
  // From here on, no URL has a secret in it.
  for (std::string& word : words)
    if (io::is_url(word)) word = io::take_secrets(word);
  const Commands commands = all_commands();
  if (words.empty()) {
    say(short_main_help(commands));
    throw usage_error({}, "no command given")
        .with_hint("to begin: ckpt inspect PATH");
  }
  if (words[0] == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  }
  if (words[0] == "-h" || words[0] == "--help") {
    print_folded(words[0] == "-h" ? short_main_help(commands)
                                  : main_help(commands));
    return 0;
  }
  if (is_any_of(words[0], {"-V", "--version", "version"})) {
    print(json ? version_json() : version_text());
    return 0;
  }
  current = words;
  for (const auto& command : commands)
    if (command->name() == words[0])
      return run_or_explain(*command, {words.begin() + 1, words.end()});
  throw unknown_command(words[0], commands);
}

}  // namespace ckpt::app
