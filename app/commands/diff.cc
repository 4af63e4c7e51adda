// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>

#include "api/check/as_numbers.h"
#include "api/check/compare.h"
#include "api/check/facts.h"
#include "api/check/meet.h"
#include "api/check/rename_rules.h"
#include "api/edit/select.h"
#include "app/command.h"
#include "app/commands/delta.h"
#include "app/commands/engine.h"
#include "app/commands/source.h"
#include "app/commands/within.h"
#include "app/print/console.h"
#include "app/print/diff_text.h"
#include "app/print/facts.h"
#include "app/print/html_diff.h"
#include "app/print/html_page.h"
#include "app/print/json_writer.h"
#include "app/print/report.h"
#include "app/print/view.h"
#include "ckpt/error.h"
#include "lib/session.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"

namespace ckpt::app {
namespace {

using FactDifferences = std::vector<families::FactDifference>;

// True if there is no difference except padding and second copies, which are
// reported but don't count.
bool same(const Comparison& result, const FactDifferences& facts) {
  return facts.empty() && std::ranges::all_of(result.differences, is_note);
}

std::string as_json(const Comparison& result, const FactDifferences& facts,
                    const std::string& a, const std::string& b,
                    const std::optional<library::RenameRules>& rename) {
  JsonWriter json;
  json.begin_document("diff");
  json.member("same", same(result, facts));
  json.member("a", a);
  json.member("b", b);
  json.member("tensors", result.tensors);
  json.member("bytes", result.bytes);
  json.key("differences").begin_array();
  for (const families::FactDifference& fact : facts) write_fact(json, fact);
  for (const Difference& difference : result.differences) {
    json.begin_object();
    json.member("kind", difference.kind);
    json.member("tensor", difference.tensor);
    json.member("message", difference.message);
    if (!difference.file.empty()) json.member("file", difference.file);
    write_numbers(json, difference);
    json.end_object();
  }
  json.end_array();
  if (rename && !rename->rules.empty()) json.member("rename", rename->rules);
  if (rename && !rename->alike.empty()) {
    json.key("alike").begin_array();
    const auto names = [&](const char* key,
                           const std::vector<std::string>& all) {
      json.key(key).begin_array();
      for (const std::string& name : all) json.value(name);
      json.end_array();
    };
    for (const library::Alike& alike : rename->alike) {
      json.begin_object();
      names("a", alike.a);
      names("b", alike.b);
      json.end_object();
    }
    json.end_array();
  }
  json.key("patterns").begin_array();
  for (const PatternDistance& row : pattern_distances(result.differences)) {
    json.begin_object();
    json.member("pattern", row.name);
    json.member("tensors", row.tensors);
    write_distance(json, row.sum);
    json.end_object();
  }
  json.end_array();
  json.end_object();
  return std::move(json).text();
}

class Diff : public Command {
 public:
  std::string_view name() const override { return "diff"; }
  std::string_view help() const override {
    return "say how two checkpoints differ";
  }
  std::string_view examples() const override {
    return "ckpt diff step_4000 step_5000\n"
           "ckpt diff step_5000 model.safetensors --model-only\n"
           "ckpt diff a b --keys '*.norm.*' --json\n"
           "ckpt diff base tuned --write tuned-lora --as-lora 16\n"
           "ckpt diff step_4000 step_5000 --write 5000.delta --lossless";
  }
  void add_options(CLI::App& app) override {
    app.add_option("A", a_, "One checkpoint")->required()->group("Arguments");
    app.add_option("B", b_, "The other")->required()->group("Arguments");
    app.add_option("--html", html_, "Write a page to look at in a browser")
        ->type_name("FILE")
        ->group("What to show");
    add_delta_options(app, delta_);
    add_select_options(app, select_);
    add_source_options(app, source_);
    add_engine_options(app, engine_);
  }
  ExitCode run() override {
    check_delta_options(delta_, select_);
    if (!html_.empty() && !delta_.path.empty())
      throw usage_error({}, "--html and --write exclude each other")
          .with_hint(
              "--html shows the comparison, --write computes with it: "
              "run `ckpt diff` once for each");
    return within_memory(engine_, source_, {a_, b_}, true,
                         [this] { return look(); });
  }

 private:
  ExitCode look() {
    check_page_path(html_, output.json);
    if (!delta_.path.empty()) Session::current()->watch.begin();
    Catalog a = open_source(a_, source_);
    Catalog b = open_source(b_, source_);
    if (!delta_.path.empty())
      return write_delta(std::move(a), std::move(b), {a_, b_}, delta_, select_,
                         source_.read.family, engine_, output);
    library::select_both(a, b, select_);
    const library::Engine engine = engine_of(engine_, output);
    const FactDifferences facts = library::differing_facts(a, b, engine);
    const uint64_t vocabulary = std::max(library::vocabulary_of(a).value_or(0),
                                         library::vocabulary_of(b).value_or(0));
    const bool met = library::meet(a, b, source_.read.family, engine);
    if (met) log_assumptions(a, b);
    const library::ReadAsNumbers read = library::as_numbers(a, b, engine);
    std::optional<DiffPage> page;
    if (!html_.empty()) page.emplace(a, b);
    const auto rename = library::rename_rules(a, b, engine);
    Comparison result =
        library::compare(std::move(a), std::move(b),
                         {.objects = !met && !select_.model_only,
                          .describe = true,
                          .arrangements = true,
                          .vocabulary = vocabulary},
                         engine);
    library::say_read(read, result);
    if (page) save_html(html_, page->text(result, facts), output);
    if (output.json) {
      print(as_json(result, facts, a_, b_, rename));
    } else if (html_.empty()) {
      print_text(result, facts);
      if (rename) print_rename(*rename);
    }
    return same(result, facts) ? ExitCode::kDone : ExitCode::kNegative;
  }

  static void log_assumptions(const Catalog& a, const Catalog& b) {
    for (const Catalog* catalog : {&a, &b})
      for (const std::string& line : catalog->assumptions)
        spdlog::info("{}: {}", catalog->path, line);
  }

  // Names one by one are a file; the first few show whether they are right.
  void print_rename(const library::RenameRules& rename) const {
    constexpr size_t kShown = 10;
    const std::string said =
        fmt::format("{} of A would have names of B's",
                    text::counted(rename.tensors, "tensor"));
    if (!rename.rules.empty() && rename.pairs.size() <= kShown) {
      print_folded(
          fmt::format("{}: --rename {}\n", said,
                      text::printable(text::shell_word(rename.rules))));
    } else if (!rename.rules.empty()) {
      print_folded(fmt::format(
          "{}, name by name: `ckpt diff {} {} --json | jq -r .rename > "
          "rename.json`, then --rename rename.json\n",
          said, text::shell_path(a_), text::shell_path(b_)));
      for (size_t i = 0; i < kShown; ++i)
        print(fmt::format("  {} = {}\n", text::printable(rename.pairs[i].first),
                          text::printable(rename.pairs[i].second)));
      print(fmt::format("  and {} more\n", rename.pairs.size() - kShown));
    }
    for (size_t i = 0; i < std::min(kShown, rename.alike.size()); ++i) {
      const library::Alike& alike = rename.alike[i];
      print_folded(fmt::format(
          "{} of A {} {} of B's, bit for bit, and nothing tells which is "
          "which: {}{}\n",
          text::counted(alike.a.size(), "tensor"),
          alike.a.size() == 1 ? "equals" : "equal", alike.b.size(),
          text::printable(alike.a.front()), alike.a.size() == 1 ? "" : ", …"));
    }
    if (rename.alike.size() > kShown)
      print_folded(fmt::format("and {} more such groups (--json)\n",
                               rename.alike.size() - kShown));
  }

  void print_text(const Comparison& result,
                  const FactDifferences& facts) const {
    print(differences_text(result.differences, facts,
                           stdout_is_terminal() ? stdout_width() : 0));
    const auto notes =
        static_cast<size_t>(std::ranges::count_if(result.differences, is_note));
    print(fmt::format(
        "{} compared, {}\n", text::counted(result.tensors, "tensor"),
        text::counted(result.differences.size() - notes + facts.size(),
                      "difference")));
  }

  std::string a_, b_;
  std::string html_;
  DeltaOptions delta_;
  Selection select_;
  SourceOptions source_;
  EngineOptions engine_;
};

}  // namespace

std::unique_ptr<Command> make_diff() { return std::make_unique<Diff>(); }

}  // namespace ckpt::app
