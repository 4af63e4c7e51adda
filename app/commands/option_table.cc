// SPDX-License-Identifier: Apache-2.0
#include "app/commands/option_table.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>

#include "app/commands/commands.h"
#include "formats/format.h"
#include "models/family.h"

namespace ckpt::app {
namespace {

// No table has "auto, always or never": each option's parser knows its words
// and names them when given another. So it is given one.
constexpr std::string_view kNoWord = "?";

// Parses our "--color '?': expected auto, always, never" and CLI11's "ACTION: ?
// not in {list,show,check}". No words if it expects something else.
std::vector<std::string> words_in(std::string_view message) {
  std::vector<std::string> words;
  std::string_view separator = ", ";
  constexpr std::string_view kOurs = "': expected ", kSet = " not in {";
  if (const size_t at = message.find(kOurs); at != message.npos) {
    message.remove_prefix(at + kOurs.size());
  } else if (const size_t set = message.find(kSet); set != message.npos) {
    message.remove_prefix(set + kSet.size());
    message = message.substr(0, message.find('}'));
    separator = ",";
  } else {
    return {};
  }
  while (!message.empty()) {
    const size_t end = std::min(message.find(separator), message.size());
    words.emplace_back(message.substr(0, end));
    if (words.back().find(' ') != std::string::npos) return {};
    message.remove_prefix(std::min(end + separator.size(), message.size()));
  }
  return words;
}

// What a fresh command's option says about a meaningless word.
std::vector<std::string> probed_words(size_t command, size_t option) {
  const Commands commands = all_commands();
  CLI::App app;
  bool help = false;
  declare_options(*commands[command], app, help);
  const CLI::Option& probed = *app.get_options()[option];
  std::vector<std::string> line = {std::string(kNoWord)};
  // CLI11 takes words from the back.
  if (!probed.get_positional()) line.push_back("--" + probed.get_lnames()[0]);
  try {
    app.parse(line);
  } catch (const Error& error) {
    return words_in(error.problem());
  } catch (const CLI::ParseError& error) {
    return words_in(error.what());
  }
  return {};
}

// Formats that can be written, or all that can be read.
std::vector<std::string> format_names(bool written) {
  std::vector<std::string> names;
  for (const formats::Format& format : formats::all_formats())
    if (!written || format.writer) names.emplace_back(format.name);
  return names;
}

bool is_one_of(std::string_view word,
               std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

void find_kind(OptionRow& row, size_t command, size_t option) {
  const std::string& type = row.positional ? row.long_name : row.value;
  if (row.long_name == "--family")
    row.words = families::Family::names();
  else if (type == "FORMAT")
    row.words = format_names(row.long_name == "--to");
  else if (is_one_of(type, {"PATH", "SRC", "DST", "A", "B", "OTHER", "DIR",
                            "FILE", "PLAN", "URL"}) ||
           type.ends_with(".json") || type.ends_with("|FILE"))
    row.kind = ValueKind::kFile;
  else if (is_one_of(type, {"GLOB", "NAME"}) &&
           (row.positional ||
            is_one_of(row.long_name, {"--keys", "--exclude"})))
    row.kind = ValueKind::kTensor;
  else
    row.words = probed_words(command, option);
  if (!row.words.empty()) row.kind = ValueKind::kWords;
}

OptionRow option_row(const CLI::Option& option) {
  OptionRow row;
  row.positional = option.get_positional();
  row.required = option.get_required();
  row.help = option.get_description();
  row.group = option.get_group();
  if (row.positional) {
    row.long_name = option.get_name(true);
    return row;
  }
  row.long_name = "--" + option.get_lnames()[0];
  if (!option.get_snames().empty())
    row.short_name = "-" + option.get_snames()[0];
  if (option.get_type_size() == 0) return row;
  // CLI11 appends the names of validators to the type: "X:NONNEGATIVE".
  const std::string type = option.get_type_name();
  row.value = type.substr(0, type.find(':'));
  return row;
}

}  // namespace

std::vector<CommandRow> option_table() {
  std::vector<CommandRow> table;
  const Commands commands = all_commands();
  for (size_t at = 0; at < commands.size(); ++at) {
    CLI::App app;
    bool help = false;
    declare_options(*commands[at], app, help);
    CommandRow row{.name = std::string(commands[at]->name()),
                   .help = std::string(commands[at]->help()),
                   .usage = usage_text(*commands[at], app),
                   .examples = commands[at]->examples(),
                   .options = {}};
    const std::vector<CLI::Option*> options = app.get_options();
    for (size_t i = 0; i < options.size(); ++i) {
      row.options.push_back(option_row(*options[i]));
      OptionRow& option = row.options.back();
      if (option.positional || !option.value.empty()) find_kind(option, at, i);
    }
    std::stable_partition(row.options.begin(), row.options.end(),
                          std::mem_fn(&OptionRow::positional));
    table.push_back(std::move(row));
  }
  return table;
}

}  // namespace ckpt::app
