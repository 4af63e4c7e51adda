// SPDX-License-Identifier: Apache-2.0
// Names for pipes: tensors of a checkpoint, or the steps of a training root.
#include <fmt/format.h>
#include <regex.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "api/edit/select.h"
#include "app/command.h"
#include "app/commands/source.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/steps.h"
#include "app/print/table.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"

namespace ckpt::app {
namespace {

// What people know from grep -P and rg, as POSIX has it: \d, \D, (?:…). Without
// this, \d would silently look for the letter d.
std::string as_posix(std::string_view text) {
  std::string out;
  bool inside = false;  // [ ]
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    if (rest.starts_with("\\d") || (!inside && rest.starts_with("\\D"))) {
      const std::string_view digits = rest[1] == 'd' ? "0-9" : "^0-9";
      out += inside ? std::string(digits) : fmt::format("[{}]", digits);
      ++i;
    } else if (!inside && rest.starts_with('\\') && rest.size() > 1) {
      out += rest.substr(0, 2);
      ++i;
    } else if (!inside && rest.starts_with("(?:")) {
      out += '(';
      i += 2;
    } else {
      // A ] that comes first is a member: []x], [^]x].
      if (!inside && rest[0] == '[') {
        inside = true;
        for (const std::string_view first : {"[^]", "[]", "[^"})
          if (rest.starts_with(first)) {
            out += first.substr(0, first.size() - 1);
            i += first.size() - 1;
            break;
          }
      } else if (inside && rest[0] == ']') {
        inside = false;
      }
      out += text[i];
    }
  }
  return out;
}

// A regular expression (POSIX extended), searched for in names.
class Pattern {
 public:
  explicit Pattern(const std::string& text) {
    constexpr std::string_view kAnyCase = "(?i)";
    const bool any_case = text.starts_with(kAnyCase);
    const std::string posix =
        as_posix(std::string_view(text).substr(any_case ? kAnyCase.size() : 0));
    const int failure =
        ::regcomp(&compiled_, posix.c_str(),
                  REG_EXTENDED | REG_NOSUB | (any_case ? REG_ICASE : 0));
    if (failure == 0) return;
    char why[128];
    ::regerror(failure, &compiled_, why, sizeof why);
    throw usage_error({}, "-e '{}': {}", text, why)
        .with_hint(
            "a backslash makes a character stand for itself: '\\(' finds (; "
            "globs go without -e: ckpt ls PATH '*.weight'");
  }
  ~Pattern() { ::regfree(&compiled_); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  bool matches(const std::string& name) const {
    return ::regexec(&compiled_, name.c_str(), 0, nullptr, 0) == 0;
  }

 private:
  regex_t compiled_;
};

class Ls : public Command {
 public:
  std::string_view name() const override { return "ls"; }
  std::string_view help() const override {
    return "list names: tensors of a checkpoint, steps of a training root";
  }
  std::string_view examples() const override {
    return "ckpt ls step_5000\n"
           "ckpt ls step_5000 '*.q_proj.*' -l\n"
           "ckpt ls step_5000 -e 'layers\\.(0|1)\\.' | wc -l\n"
           "ckpt ls runs/llama -l          # its steps: size, age, parts";
  }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  bool wants_tensors() const {
    return !globs_.empty() || !regex_.empty() || !select_.keys.empty() ||
           !select_.exclude.empty() || select_.model_only ||
           select_.optim_only || !select_.part.empty();
  }
  bool print_steps(const Catalog* catalog) const;
  void print_tensors(const Catalog& catalog,
                     const std::vector<const Tensor*>& tensors) const;

  std::string path_;
  std::vector<std::string> globs_;
  std::string regex_;
  bool long_ = false;
  SourceOptions source_;
  Selection select_;
};

void Ls::add_options(CLI::App& app) {
  app.add_option("PATH", path_, "A checkpoint, or a training root")
      ->required()
      ->group("Arguments");
  app.add_option("GLOB", globs_, "Only names that match one of these")
      ->group("Arguments");
  app.add_flag("-l,--long", long_, "dtype, shape and bytes; size, age, parts")
      ->group("What to show");
  app.add_option("-e,--regex", regex_,
                 "Only names in which this is found (exit status 1 if none)")
      ->type_name("REGEX")
      ->group("What to show");
  add_select_options(app, select_);
  add_source_options(app, source_);
}

// True if the path is a root and its steps were listed.
bool Ls::print_steps(const Catalog* catalog) const {
  const std::vector<StepRow> steps = steps_of(path_, source_, catalog);
  if (steps.empty()) return false;
  print(output.json ? steps_json(path_, steps) : steps_text(steps, long_));
  return true;
}

void Ls::print_tensors(const Catalog& catalog,
                       const std::vector<const Tensor*>& tensors) const {
  if (output.json) {
    JsonWriter json;
    json.begin_document("ls").member("path", catalog.path);
    json.key("entries").begin_array();
    for (const Tensor* tensor : tensors) {
      json.begin_object().member("name", tensor->name);
      json.member("dtype", ckpt::name(tensor->dtype))
          .key("shape")
          .begin_array();
      for (const uint64_t dim : tensor->shape) json.value(dim);
      json.end_array().member("bytes", byte_size(*tensor));
      json.member("kind", ckpt::name(tensor->kind)).end_object();
    }
    json.end_array().end_object();
    return print(std::move(json).text());
  }
  Table table({Align::kLeft, Align::kLeft, Align::kRight, Align::kLeft});
  for (const Tensor* tensor : tensors)
    if (long_)
      table.row({std::string(ckpt::name(tensor->dtype)),
                 to_string(tensor->shape), std::to_string(byte_size(*tensor)),
                 text::printable(tensor->name)});
    else
      print(text::printable(tensor->name) + "\n");
  table.shrink_column(3);
  if (long_) print(table.text(stdout_is_terminal() ? stdout_width() : 0));
}

ExitCode Ls::run() {
  std::vector<text::Glob> globs;
  for (const std::string& glob : globs_) globs.emplace_back(glob);
  std::optional<Pattern> pattern;
  if (!regex_.empty()) pattern.emplace(regex_);
  // A root is listed even if no step in it can be opened.
  if (!wants_tensors() && print_steps(nullptr)) return ExitCode::kDone;
  Catalog catalog = formats::open(path_, source_.from, source_.read);
  if (!wants_tensors() && print_steps(&catalog)) return ExitCode::kDone;
  log_problems(catalog.problems);
  select(catalog, select_);
  std::vector<const Tensor*> tensors;
  for (const Tensor& tensor : catalog.tensors) {
    const bool glob =
        globs.empty() || std::ranges::any_of(globs, [&](const text::Glob& one) {
          return one.matches(tensor.name);
        });
    if (glob && (!pattern || pattern->matches(tensor.name)))
      tensors.push_back(&tensor);
  }
  print_tensors(catalog, tensors);
  const bool filtered = !globs_.empty() || pattern;
  // As grep, but that a person is told.
  if (tensors.empty() && filtered && output.verbosity >= 0 && !output.json)
    say(fmt::format("{}: none of the {} has such a name",
                    text::printable(path_),
                    text::counted(catalog.tensors.size(), "tensor")));
  return tensors.empty() && filtered ? ExitCode::kNegative : ExitCode::kDone;
}

}  // namespace

std::unique_ptr<Command> make_ls() { return std::make_unique<Ls>(); }

}  // namespace ckpt::app
