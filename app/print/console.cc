// SPDX-License-Identifier: Apache-2.0
#include "app/print/console.h"

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "app/print/table.h"
#include "lib/heap.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

constexpr size_t kBuffer = size_t{1} << 16;

struct Console {
  bool color_out = false;
  bool color_err = false;
  bool out_closed = false;    // the reader of stdout has gone
  bool json = false;          // errors are JSON, warnings wait
  void (*clear)() = nullptr;  // removes what is drawn on the line
  std::string buffer;
  std::vector<std::string> held;  // warnings that wait
};
Console console;

void clear_line() {
  if (console.clear != nullptr) console.clear();
}

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

// NO_COLOR (no-color.org) beats CLICOLOR_FORCE and FORCE_COLOR, which beat what
// stdout is. A launcher gives each rank its own terminal while the launcher's
// output goes to a file, so ranks have no colours unless asked.
bool wants_color(When when, int fd) {
  if (when != When::kAuto) return when == When::kAlways;
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  if (is_set("CLICOLOR_FORCE") || is_set("FORCE_COLOR")) return true;
  const char* term = std::getenv("TERM");
  if (term != nullptr && std::string_view(term) == "dumb") return false;
  constexpr const char* kRanks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                    "PMIX_RANK"};
  for (const char* rank : kRanks)
    if (std::getenv(rank) != nullptr) return false;
  return isatty(fd) != 0;
}

std::string_view code_of(Style style) {
  switch (style) {
    case Style::kPlain:
      return "0";
    case Style::kBold:
      return "1";
    case Style::kDim:
      return "2";
    case Style::kRed:
      return "1;31";
    case Style::kYellow:
      return "1;33";
    case Style::kGreen:
      return "32";
  }
  return "0";
}

std::string paint(std::string_view text, Style style, bool color) {
  if (!color || style == Style::kPlain) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", code_of(style), text);
}

// Returns 0 or an errno.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

size_t width_of(int fd) {
  if (const char* columns = std::getenv("COLUMNS")) {
    const long value = std::strtol(columns, nullptr, 10);
    if (value > 0 && value < 10'000) return static_cast<size_t>(value);
  }
  winsize size = {};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0) return size.ws_col;
  return 0;
}

// "warning: …" for the levels that the user chose. Nothing in a message (names
// of tensors, of files) can control the terminal.
class Sink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string text = text::printable(
        std::string_view(message.payload.data(), message.payload.size()));
    const std::string line = prefix(message.level) + text;
    if (console.json)
      console.held.push_back(line);
    else
      say(line);
  }
  void flush_() override {}

 private:
  static std::string prefix(spdlog::level::level_enum level) {
    const bool color = console.color_err;
    if (level >= spdlog::level::err)
      return paint("error:", Style::kRed, color) + " ";
    if (level == spdlog::level::warn)
      return paint("warning:", Style::kYellow, color) + " ";
    return level == spdlog::level::info ? "note: " : "debug: ";
  }
};

spdlog::level::level_enum level_of(int verbosity) {
  if (verbosity < 0) return spdlog::level::err;
  if (verbosity == 0) return spdlog::level::warn;
  return verbosity == 1 ? spdlog::level::info : spdlog::level::debug;
}

}  // namespace

void configure(const OutputOptions& options) {
  console.color_out = wants_color(options.color, STDOUT_FILENO);
  console.color_err = wants_color(options.color, STDERR_FILENO);
  console.json = options.json;
  auto logger =
      std::make_shared<spdlog::logger>("ckpt", std::make_shared<Sink>());
  logger->set_level(level_of(options.verbosity));
  spdlog::set_default_logger(std::move(logger));
}

void print(std::string_view text) {
  if (console.out_closed) return;
  const heap::Unbounded begun;  // what is printed is printed to its end
  console.buffer += text;
  if (console.buffer.size() >= kBuffer) flush();
}

void print_folded(std::string_view lines) {
  print(stdout_is_terminal() ? folded(lines, stdout_width())
                             : std::string(lines));
}

void flush() {
  std::string text;
  std::swap(text, console.buffer);
  if (text.empty()) return;
  clear_line();
  const int failure = write_all(STDOUT_FILENO, text);
  if (failure == 0) return;
  console.out_closed = true;
  if (failure != EPIPE) throw io_error("standard output", "write", failure);
}

void clear_before_lines(void (*clear)()) { console.clear = clear; }

bool errors_are_json() { return console.json; }

bool stdout_is_terminal() { return isatty(STDOUT_FILENO) != 0; }
size_t stdout_width() { return width_of(STDOUT_FILENO); }
size_t stderr_width() { return width_of(STDERR_FILENO); }

std::string styled(std::string_view text, Style style) {
  return paint(text, style, console.color_out);
}

void say(std::string_view line) { say_document(std::string(line) + "\n"); }

void say_document(std::string_view text) {
  clear_line();
  write_all(STDERR_FILENO, text);
}

void say_note(std::string_view text) {
  if (!console.json && spdlog::should_log(spdlog::level::warn))
    say("note: " + text::printable(text));
}

void say_error(std::string_view problem, std::string_view hint) {
  const bool color = console.color_err;
  say(paint("error:", Style::kRed, color) + " " + text::printable(problem));
  if (!hint.empty())
    say(paint("hint:", Style::kGreen, color) + " " + text::printable(hint));
}

std::vector<std::string> take_held_warnings() {
  return std::exchange(console.held, {});
}

void say_held_warnings() {
  for (const std::string& line : take_held_warnings()) say(line);
}

}  // namespace ckpt::app
