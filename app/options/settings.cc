// SPDX-License-Identifier: Apache-2.0
#include "app/options/settings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <map>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/words.h"

namespace ckpt::app {
namespace {

constexpr uint64_t kMostSettings = uint64_t{1} << 16;  // bytes of the file
constexpr char kConfigVariable[] = "CKPT_CONFIG";

constexpr auto kSettings = std::to_array<std::string_view>(
    {"color", "device", "io", "max-mem", "max-rate", "progress", "threads"});

// "FILE:3" of each setting from the file, by its variable.
std::map<std::string, std::string>& lines_of_file() {
  static std::map<std::string, std::string> lines;
  return lines;
}

// "max-mem" and the value of "max-mem = 8GiB" or "--max-mem=8GiB".
void take_line(const std::string& path, size_t number, std::string_view line) {
  const std::string where = fmt::format("{}:{}", path, number);
  const size_t equals = line.find('=');
  std::string_view name = text::trimmed(line.substr(0, equals), " \t\r");
  if (name.starts_with("--")) name.remove_prefix(2);
  if (std::ranges::find(kSettings, name) == kSettings.end())
    throw usage_error({where, {}}, "'{}' can't be set here",
                      text::printable(std::string(name)))
        .with_hint(fmt::format("NAME = VALUE, one a line, with {}",
                               fmt::join(kSettings, ", ")));
  const std::string_view value =
      equals == line.npos ? ""
                          : text::trimmed(line.substr(equals + 1), " \t\r");
  if (value.empty())
    throw usage_error({where, {}}, "{} has no value", name)
        .with_hint(fmt::format("{} = VALUE", name));
  const std::string variable = setting_variable(name);
  if (std::getenv(variable.c_str()) && !lines_of_file().contains(variable))
    return;  // the environment takes precedence
  ::setenv(variable.c_str(), std::string(value).c_str(), 1);
  lines_of_file()[variable] = where;
}

void read_settings(const std::string& path) {
  const std::string text = io::read_file(path, kMostSettings);
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line =
        text::trimmed(std::string_view(text).substr(at, end - at), " \t\r");
    ++number;
    if (!line.empty() && line[0] != '#') take_line(path, number, line);
    at = end + 1;
  }
}

}  // namespace

std::vector<std::string_view> setting_names() {
  return {kSettings.begin(), kSettings.end()};
}

std::string setting_variable(std::string_view name) {
  std::string variable = "CKPT_";
  for (const char c : name)
    variable +=
        c == '-'
            ? '_'
            : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return variable;
}

std::optional<std::string> settings_file() {
  if (const char* named = std::getenv(kConfigVariable)) {
    if (*named == '\0') return std::nullopt;  // no file at all
    if (!io::is_file(named))
      throw missing_error({named, {}}, "{} names it, but it isn't a file",
                          kConfigVariable);
    return named;
  }
  const char* base = std::getenv("XDG_CONFIG_HOME");
  const char* home = std::getenv("HOME");
  if ((!base || !*base) && (!home || !*home)) return std::nullopt;
  const std::string path =
      (base && *base ? std::string(base) : std::string(home) + "/.config") +
      "/ckpt/config";
  // A file that this user may not read is somebody else's.
  if (::access(path.c_str(), R_OK) != 0 || !io::is_file(path))
    return std::nullopt;
  return path;
}

void take_settings(CLI::App& app) {
  if (const auto path = settings_file()) read_settings(*path);
  for (CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames())
      if (std::ranges::find(kSettings, name) != kSettings.end())
        option->envname(setting_variable(name));
}

std::string setting_behind(const std::string& message,
                           const std::vector<std::string>& words) {
  for (const std::string_view name : kSettings) {
    const std::string option = fmt::format("--{}", name);
    const std::string variable = setting_variable(name);
    const char* value = std::getenv(variable.c_str());
    const bool about = message.find(option + " ") != message.npos ||
                       message.find(option + ":") != message.npos;
    const bool typed = std::ranges::any_of(words, [&](const std::string& word) {
      return word == option || word.starts_with(option + "=");
    });
    if (!value || !about || typed) continue;
    const auto line = lines_of_file().find(variable);
    return line != lines_of_file().end()
               ? line->second
               : fmt::format("{}={}", variable, text::printable(value));
  }
  return {};
}

}  // namespace ckpt::app
