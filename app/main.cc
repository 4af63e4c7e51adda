// Command line -> one command -> exit status; nothing else.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "app/command.h"
#include "app/console.h"
#include "app/help.h"
#include "app/ranks.h"
#include "lib/interrupt.h"

namespace ckpt::app {
namespace {

Commands all_commands() {
  Commands commands;
  commands.push_back(make_inspect());
  commands.push_back(make_convert());
  commands.push_back(make_reshard());
  commands.push_back(make_unshard());
  commands.push_back(make_verify());
  commands.push_back(make_diff());
  commands.push_back(make_family());
  return commands;
}

bool is_any_of(const std::string& word,
               std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

int run_command(Command& command, std::vector<std::string> words) {
  CLI::App app;
  app.set_help_flag();  // ours is printed by help.cc
  bool help = false;
  command.add_options(app);
  app.add_flag("-h,--help", help, "This text")->group("Output");
  add_output_options(app, command.output);
  if (std::ranges::any_of(words, [](const std::string& word) {
        return is_any_of(word, {"-h", "--help"});
      })) {
    print(command_help(command, app));
    return 0;
  }
  std::ranges::reverse(words);  // as CLI11 wants them
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    throw wrong_options(command, app, error.what());
  }
  configure(command.output);
  return static_cast<int>(command.run());
}

int run(std::vector<std::string> words) {
  const Commands commands = all_commands();
  if (words.empty()) {
    say(main_help(commands));
    throw usage_error({}, "no command given")
        .with_hint("to begin: ckpt inspect PATH");
  }
  if (words[0] == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  }
  if (is_any_of(words[0], {"-h", "--help"})) {
    print(main_help(commands));
    return 0;
  }
  if (is_any_of(words[0], {"-V", "--version"})) {
    print(version_text());
    return 0;
  }
  for (const auto& command : commands)
    if (command->name() == words[0])
      return run_command(*command, {words.begin() + 1, words.end()});
  throw unknown_command(words[0], commands);
}

// A checkpoint of thousands of ranks has as many files, and shells begin with
// a limit of 1024. The limit is this process's own; what is opened stays open
// as long as it allows (reshard/sources.h).
void raise_file_limit() {
  constexpr rlim_t kWanted = 16384;
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kWanted)
    return;
  limit.rlim_cur = std::min(limit.rlim_max, kWanted);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// The exit status; says what went wrong.
int run_guarded(const std::vector<std::string>& words) {
  try {
    const int status = run(words);
    flush();
    return status;
  } catch (...) {
    const int failure = report_current_exception();
    // What was printed before the failure still goes out.
    try {
      flush();
    } catch (const std::exception&) {
    }
    return failure;
  }
}

}  // namespace
}  // namespace ckpt::app

int main(int argc, char** argv) {
  using namespace ckpt::app;
  try {
    ckpt::install_interrupt_handlers();
    raise_file_limit();
    configure({});
    const std::vector<std::string> words(argv + 1, argv + argc);
    return run_in_job([&words] { return run_guarded(words); });
  } catch (...) {
    return report_current_exception();
  }
}
