// SPDX-License-Identifier: Apache-2.0
// Completion of command lines, generated from the options themselves.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "app/command.h"
#include "app/commands/option_table.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"

namespace ckpt::app {
namespace {

// Scripts that let shells complete a command line of ckpt.

// A shell word; inside quotes only the quote itself is special.
std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text)
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  return out + "'";
}

std::string command_names(const std::vector<CommandRow>& table) {
  std::string names;
  for (const CommandRow& row : table)
    names += (names.empty() ? "" : " ") + row.name;
  return names;
}

// The possible words for the argument at `index` after `command`.
const OptionRow* positional(const CommandRow& row, size_t index) {
  const OptionRow* last = nullptr;
  for (const OptionRow& option : row.options) {
    if (!option.positional) break;
    last = &option;
    if (index-- == 0) return last;
  }
  return last;  // the last one may be repeated
}

size_t positional_count(const CommandRow& row) {
  size_t count = 0;
  for (const OptionRow& option : row.options) count += option.positional;
  return count;
}

// ------------------------------------------------------------------- bash

std::string bash_action(const OptionRow& row) {
  switch (row.kind) {
    case ValueKind::kWords:
      return fmt::format("words='{}'", fmt::join(row.words, " "));
    case ValueKind::kTensor:
      return "kind=tensor";
    case ValueKind::kFile:
      return "kind=file";
    case ValueKind::kText:
      break;
  }
  return "kind=text";
}

std::string bash_command(const CommandRow& row) {
  std::string options, values, arguments;
  for (const OptionRow& option : row.options) {
    if (option.positional) continue;
    options += (options.empty() ? "" : " ") + option.long_name;
    if (option.value.empty()) continue;
    const std::string names = option.short_name.empty()
                                  ? option.long_name
                                  : option.short_name + "|" + option.long_name;
    values += fmt::format("        {}) {} ;;\n", names, bash_action(option));
  }
  const size_t count = positional_count(row);
  for (size_t i = 0; i < count; ++i)
    arguments += fmt::format("        {}) {} ;;\n",
                             i + 1 == count ? "*" : std::to_string(i),
                             bash_action(*positional(row, i)));
  std::string text = fmt::format("    {})\n", row.name);
  text += fmt::format("      options='{}'\n", options);
  text += "      case $prev in\n" + values + "        *) value= ;;\n";
  text += "      esac\n";
  if (!arguments.empty())
    text += "      [ -n \"$value\" ] || case $index in\n" + arguments +
            "      esac\n";
  return text + "      ;;\n";
}

constexpr std::string_view kBashBegin = R"(# bash completion for ckpt
# Made by `ckpt completion bash`: source it, or put it where bash-completion
# looks (~/.local/share/bash-completion/completions/ckpt).

# Names of the checkpoint that is the first argument.
_ckpt_tensors() {
  [ -n "$first" ] && ckpt ls "$first" --quiet 2>/dev/null | head -n 5000
}

_ckpt() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  local command=${COMP_WORDS[1]} first= index=0 value=yes words= options= kind=
  local i name
  COMPREPLY=()
  if [ "$COMP_CWORD" = 1 ]; then
)";

// The arguments are not counted exactly: words that begin with - and the values
// of options are in the way. Only the first one matters.
constexpr std::string_view kBashMiddle =
    R"(    return
  fi
  for ((i = 2; i < COMP_CWORD; ++i)); do
    case ${COMP_WORDS[i]} in
      -*) ;;
      *)
        [ -n "$first" ] || first=${COMP_WORDS[i]/#\~\//$HOME/}
        index=$((index + 1))
        ;;
    esac
  done
  case $command in
)";

constexpr std::string_view kBashEnd = R"(    *) return ;;
  esac
  if [ -z "$value" ] && [[ $cur == -* ]]; then
    words=$options kind=
  fi
  case $kind in
    file) return ;;  # bash itself, by -o default
    text) compopt +o default +o bashdefault 2>/dev/null; return ;;
    tensor)
      # compgen -W would expand a name as the shell does: $(…) in it would run.
      while IFS= read -r name; do
        [[ $name == "$cur"* ]] || continue
        printf -v name %q "$name"
        COMPREPLY+=("$name")
      done < <(_ckpt_tensors)
      return ;;
  esac
  local IFS=$' \t\n'
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}

complete -o default -o bashdefault -F _ckpt ckpt
)";

// -------------------------------------------------------------------- zsh

// In _arguments, a colon ends a part, and a bracket ends a description.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ':' || c == '[' || c == ']' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_action(const OptionRow& row) {
  switch (row.kind) {
    case ValueKind::kWords:
      return fmt::format("({})", fmt::join(row.words, " "));
    case ValueKind::kTensor:
      return "_ckpt_tensors";
    case ValueKind::kFile:
      return "_files";
    case ValueKind::kText:
      break;
  }
  return " ";
}

std::string zsh_option(const OptionRow& row) {
  std::string rest = fmt::format("[{}]", zsh_text(row.help));
  if (!row.value.empty())
    rest += fmt::format(":{}:{}", zsh_text(row.value), zsh_action(row));
  std::string text;
  if (!row.short_name.empty())
    text = fmt::format(" \\\n    {}", shell_quoted(row.short_name + rest));
  // An option may be repeated: --keys A --keys B.
  return text +
         fmt::format(" \\\n    {}", shell_quoted("*" + row.long_name + rest));
}

std::string zsh_command(const CommandRow& row) {
  std::string text = fmt::format("_ckpt_{}() {{\n  _arguments -s", row.name);
  const size_t count = positional_count(row);
  size_t at = 0;
  for (const OptionRow& option : row.options) {
    if (!option.positional) {
      text += zsh_option(option);
      continue;
    }
    ++at;
    const std::string place = at == count ? "*" : std::to_string(at);
    text += fmt::format(
        " \\\n    {}",
        shell_quoted(fmt::format("{}:{}:{}", place, zsh_text(option.long_name),
                                 zsh_action(option))));
  }
  return text + "\n}\n\n";
}

// ------------------------------------------------------------------- fish

std::string fish_action(const OptionRow& row) {
  switch (row.kind) {
    case ValueKind::kWords:
      return fmt::format(" -f -a {}", shell_quoted(fmt::format(
                                          "{}", fmt::join(row.words, " "))));
    case ValueKind::kTensor:
      return " -f -a '(__ckpt_tensors)'";
    case ValueKind::kFile:
      return " -F";
    case ValueKind::kText:
      break;
  }
  return " -f";
}

std::string fish_command(const CommandRow& row) {
  const std::string when = fmt::format(
      "complete -c ckpt -n '__fish_seen_subcommand_from {}'", row.name);
  std::string text;
  for (const OptionRow& option : row.options) {
    if (option.positional) {
      if (option.kind == ValueKind::kFile || option.kind == ValueKind::kText)
        continue;  // files are offered anyway
      text += when + fish_action(option) + "\n";
      continue;
    }
    text += when;
    if (!option.short_name.empty())
      text += " -s " + option.short_name.substr(1);
    text += " -l " + option.long_name.substr(2);
    if (!option.value.empty()) text += " -r" + fish_action(option);
    text += " -d " + shell_quoted(option.help) + "\n";
  }
  return text;
}

// For `source`, or for a folder where bash-completion looks.
std::string bash_completion(const std::vector<CommandRow>& table) {
  std::string text(kBashBegin);
  text += fmt::format(
      "    COMPREPLY=($(compgen -W '{} --help --version' "
      "-- \"$cur\"))\n",
      command_names(table));
  text += kBashMiddle;
  for (const CommandRow& row : table) text += bash_command(row);
  return text + std::string(kBashEnd);
}

// For a file _ckpt in a directory of $fpath.
std::string zsh_completion(const std::vector<CommandRow>& table) {
  std::string text =
      "#compdef ckpt\n"
      "# Made by `ckpt completion zsh`: a file _ckpt in a directory of "
      "$fpath.\n\n"
      "# Names of the checkpoint that is the first argument.\n"
      "_ckpt_tensors() {\n"
      "  local -a names given\n"
      "  given=(${words[2,CURRENT-1]:#-*})\n"
      "  (( $#given )) || return\n"
      "  local first=${${(Q)given[1]}/#\\~\\//$HOME/}\n"
      "  names=(${(f)\"$(ckpt ls $first --quiet 2>/dev/null | "
      "head -n 5000)\"})\n"
      "  compadd -a names\n"
      "}\n\n";
  for (const CommandRow& row : table) text += zsh_command(row);
  text += "_ckpt() {\n  local -a commands=(\n";
  for (const CommandRow& row : table)
    text += "    " + shell_quoted(row.name + ":" + zsh_text(row.help)) + "\n";
  text +=
      "  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  (( $+functions[_ckpt_$command] )) && _ckpt_$command\n"
      "}\n\n";
  return text + "compdef _ckpt ckpt\n";
}

// For a file ckpt.fish in a directory of completions.
std::string fish_completion(const std::vector<CommandRow>& table) {
  std::string text =
      "# Made by `ckpt completion fish`: a file ckpt.fish in\n"
      "# ~/.config/fish/completions.\n\n"
      "# Names of the checkpoint that is the first argument.\n"
      "function __ckpt_tensors\n"
      "    set -l words (commandline -opc)\n"
      "    for word in $words[3..-1]\n"
      "        if not string match -q -- '-*' $word\n"
      "            set word (string replace -r '^~/' -- \"$HOME/\" $word)\n"
      "            ckpt ls $word --quiet 2>/dev/null | head -n 5000\n"
      "            return\n"
      "        end\n"
      "    end\n"
      "end\n\n";
  for (const CommandRow& row : table)
    text += fmt::format(
        "complete -c ckpt -n __fish_use_subcommand -f -a {} -d {}\n", row.name,
        shell_quoted(row.help));
  for (const CommandRow& row : table) text += fish_command(row);
  return text;
}

class Completion : public Command {
 public:
  std::string_view name() const override { return "completion"; }
  std::string_view help() const override {
    return "print the script by which a shell completes ckpt";
  }
  std::string_view examples() const override {
    return "source <(ckpt completion bash)\n"
           "ckpt completion zsh > ~/.zfunc/_ckpt   # a directory of $fpath\n"
           "ckpt completion fish > ~/.config/fish/completions/ckpt.fish";
  }
  void add_options(CLI::App& app) override {
    app.add_option("SHELL", shell_, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}))
        ->group("Arguments");
  }
  ExitCode run() override {
    const std::vector<CommandRow> table = option_table();
    const std::string script = shell_ == "bash"  ? bash_completion(table)
                               : shell_ == "zsh" ? zsh_completion(table)
                                                 : fish_completion(table);
    if (output.json) {
      JsonWriter json;
      json.begin_document("completion").member("shell", shell_);
      json.member("text", script).end_object();
      print(std::move(json).text());
    } else {
      print(script);
    }
    return ExitCode::kDone;
  }

 private:
  std::string shell_;
};

}  // namespace

std::unique_ptr<Command> make_completion() {
  return std::make_unique<Completion>();
}

}  // namespace ckpt::app
