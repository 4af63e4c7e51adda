// Names for pipes: tensors of a checkpoint, or the steps of a training root.
#include <fmt/format.h>
#include <regex.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <filesystem>

#include "app/command.h"
#include "app/console.h"
#include "app/json_writer.h"
#include "app/select.h"
#include "app/table.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"

namespace ckpt::app {
namespace {

// An extended regular expression (POSIX), searched for in names.
class Pattern {
 public:
  explicit Pattern(const std::string& text) {
    const int failure =
        ::regcomp(&compiled_, text.c_str(), REG_EXTENDED | REG_NOSUB);
    if (failure == 0) return;
    char why[128];
    ::regerror(failure, &compiled_, why, sizeof why);
    throw usage_error({}, "-e '{}': {}", text::printable(text), why);
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

struct Step {
  std::string name;
  uint64_t number = 0;
  std::string format;  // "" if no format takes it
  uint64_t bytes = 0;
  double seconds = 0;  // since it was last written to
};

// What is in a directory, without what lies behind links.
void add_files(const std::string& path, Step& step) {
  constexpr size_t kMostFiles = 1'000'000;
  namespace fs = std::filesystem;
  std::error_code failed;
  size_t left = kMostFiles;
  time_t newest = 0;
  for (fs::recursive_directory_iterator at(path, failed), end;
       !failed && at != end && left > 0; at.increment(failed), --left) {
    struct stat facts;
    if (::lstat(at->path().c_str(), &facts) != 0 || !S_ISREG(facts.st_mode))
      continue;
    step.bytes += static_cast<uint64_t>(facts.st_size);
    newest = std::max(newest, facts.st_mtime);
  }
  step.seconds =
      newest == 0 ? 0 : std::max(0.0, std::difftime(::time(nullptr), newest));
}

std::string format_of(const std::string& path) {
  try {
    return std::string(formats::detect(path).format->name);
  } catch (const Error&) {
    return {};
  }
}

// Entries named as `chosen` is, but for the number at the end; by number.
std::vector<Step> steps_beside(const std::string& root,
                               const std::string& chosen) {
  const size_t digits = chosen.find_last_not_of("0123456789") + 1;
  if (digits == chosen.size()) return {};
  std::vector<Step> steps;
  for (const std::string& name : io::list_directory(root)) {
    if (name.size() <= digits || name.size() > digits + 18 ||
        !name.starts_with(chosen.substr(0, digits)) ||
        name.find_first_not_of("0123456789", digits) != name.npos)
      continue;
    steps.push_back({.name = name, .number = std::stoull(name.substr(digits))});
  }
  std::ranges::sort(steps, {}, &Step::number);
  return steps;
}

// "3 d", "5 h", "12 min"
std::string age_text(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  if (seconds < 5400) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 129'600) return fmt::format("{:.0f} h", seconds / 3600);
  return fmt::format("{:.0f} d", seconds / 86'400);
}

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
           "ckpt ls runs/llama -l          # its steps: size, age, format";
  }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  bool wants_tensors() const {
    return !globs_.empty() || !regex_.empty() || !select_.keys.empty() ||
           !select_.exclude.empty() || select_.model_only || select_.optim_only;
  }
  std::vector<Step> steps(const Catalog& catalog) const;
  void print_steps(const std::vector<Step>& steps) const;
  void print_tensors(const Catalog& catalog,
                     const std::vector<const Tensor*>& tensors) const;

  std::string path_;
  std::vector<std::string> globs_;
  std::string regex_;
  bool long_ = false;
  SourceOptions source_;
  SelectOptions select_;
};

void Ls::add_options(CLI::App& app) {
  app.add_option("PATH", path_, "A checkpoint, or a training root")
      ->required()
      ->group("Arguments");
  app.add_option("GLOB", globs_, "Only names that match one of these")
      ->group("Arguments");
  app.add_flag("-l,--long", long_, "dtype, shape and bytes; size, age, format")
      ->group("What to show");
  app.add_option("-e,--regex", regex_,
                 "Only names in which this is found (exit status 1 if none)")
      ->type_name("REGEX")
      ->group("What to show");
  add_select_options(app, select_);
  add_source_options(app, source_);
}

std::vector<Step> Ls::steps(const Catalog& catalog) const {
  const std::string inside = catalog.root + "/";
  if (catalog.root.empty() || !catalog.path.starts_with(inside)) return {};
  const std::string rest = catalog.path.substr(inside.size());
  std::vector<Step> steps =
      steps_beside(catalog.root, rest.substr(0, rest.find('/')));
  if (steps.size() < 2) return {};
  if (long_ || output.json)
    for (Step& step : steps) {
      const std::string path = io::join(catalog.root, step.name);
      step.format = format_of(path);
      add_files(path, step);
    }
  return steps;
}

void Ls::print_steps(const std::vector<Step>& steps) const {
  if (output.json) {
    JsonWriter json;
    json.begin_document("ls").member("path", path_);
    json.key("entries").begin_array();
    for (const Step& step : steps) {
      json.begin_object().member("name", step.name);
      json.member("step", step.number);
      json.member("bytes", step.bytes);
      json.member("seconds", static_cast<uint64_t>(step.seconds));
      json.member("format", step.format);
      json.member("complete", !step.format.empty()).end_object();
    }
    json.end_array().end_object();
    return print(std::move(json).text());
  }
  Table table({Align::kRight, Align::kRight, Align::kLeft, Align::kLeft});
  for (const Step& step : steps)
    if (long_)
      table.row({text::iec_size(step.bytes), age_text(step.seconds),
                 step.format.empty() ? "incomplete" : step.format,
                 text::printable(step.name)});
    else
      print(text::printable(step.name) + "\n");
  if (long_) print(table.text(0));
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
  if (long_) print(table.text(0));
}

ExitCode Ls::run() {
  std::vector<text::Glob> globs;
  for (const std::string& glob : globs_) globs.emplace_back(glob);
  std::optional<Pattern> pattern;
  if (!regex_.empty()) pattern.emplace(regex_);
  Catalog catalog = formats::open(path_, source_.from, source_.read);
  if (!wants_tensors())
    if (const std::vector<Step> found = steps(catalog); !found.empty()) {
      print_steps(found);
      return ExitCode::kDone;
    }
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
  return tensors.empty() && filtered ? ExitCode::kNegative : ExitCode::kDone;
}

}  // namespace

std::unique_ptr<Command> make_ls() { return std::make_unique<Ls>(); }

}  // namespace ckpt::app
