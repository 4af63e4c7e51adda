// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "api/check/as_numbers.h"
#include "api/check/compare.h"
#include "api/check/facts.h"
#include "api/check/integrity.h"
#include "api/check/meet.h"
#include "api/edit/select.h"
#include "app/command.h"
#include "app/commands/engine.h"
#include "app/commands/source.h"
#include "app/commands/within.h"
#include "app/options/read_paths.h"
#include "app/print/console.h"
#include "app/print/facts.h"
#include "app/print/pattern.h"
#include "app/print/report.h"
#include "lib/decoding.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

constexpr std::string_view kVerifyExamples =
    "ckpt verify step_5000          # whole? as it was written?\n"
    "ckpt verify step_5000 out      # the same tensors in both?\n"
    "ckpt verify step_5000 --deep --finite\n"
    "ckpt verify step_5000 --seal   # a manifest, to find rot later\n"
    "ckpt verify a b --rtol 1e-3 --atol 1e-6";

class Verify : public Command {
 public:
  std::string_view name() const override { return "verify"; }
  std::string_view help() const override {
    return "prove that a checkpoint is whole, or that two are equal";
  }
  std::string_view examples() const override { return kVerifyExamples; }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  ExitCode look();
  VerifyReport verify_one();
  VerifyReport verify_two();
  void print_text(const VerifyReport& report) const;
  std::string verdict_text(const VerifyReport& report) const;

  std::string path_;
  std::string other_;
  library::IntegrityOptions integrity_;
  library::CompareOptions compare_;
  Selection select_;
  SourceOptions source_;
  EngineOptions engine_;
};

void Verify::add_options(CLI::App& app) {
  app.add_option("PATH", path_, "The checkpoint")
      ->required()
      ->group("Arguments");
  app.add_option("OTHER", other_, "Another: compare the two")
      ->group("Arguments");
  const std::string group = "Checks";
  names_file(
      app.add_option("--against", integrity_.against,
                     "Compare files with a list (SHA256SUMS) or a manifest"))
      ->type_name("FILE")
      ->group(group);
  app.add_flag("--deep", integrity_.deep,
               "Read all bytes and compare replicas, manifest or not")
      ->group(group);
  app.add_flag("--quick", integrity_.quick,
               "Headers and sizes alone: read no tensor")
      ->group(group);
  app.add_flag("--seal", integrity_.seal,
               "Read all, and write a manifest beside what has no problem")
      ->group(group);
  app.add_flag("--strict", integrity_.strict,
               "Fail on warnings, and where nothing says what the whole is")
      ->group(group);
  app.add_flag("--finite", integrity_.finite,
               "Report NaN and infinite elements")
      ->group(group);
  const auto tolerance = [&](const char* name, double& value,
                             const char* help) {
    app.add_option_function<double>(
           name,
           [this, name, &value](double given) {
             if (std::isnan(given))
               throw usage_error({}, "{} 'nan': expected a number, 0 or more",
                                 name);
             value = given;
             compare_.numeric = true;
           },
           help)
        ->check(CLI::NonNegativeNumber)
        ->type_name("X")
        ->group(group);
  };
  tolerance("--rtol", compare_.rtol, "Two: values may differ by X * |b|");
  tolerance("--atol", compare_.atol, "Two: values may differ by X");
  add_select_options(app, select_);
  add_source_options(app, source_);
  add_engine_options(app, engine_);
}

// Problems in one line: alike but for the numbers in their tensors' names.
struct Group {
  const Problem* first = nullptr;
  std::vector<std::string_view> names;
  std::optional<Distance> sum = {};  // what the message says, of all of them

  std::string message() const {
    return sum ? library::distance_text(*sum) : first->message;
  }
};

// Nothing but numbers, which add up, is known of the values.
bool is_distance(const Difference& difference) {
  return difference.kind == "values" && difference.distance &&
         difference.why.empty();
}

std::vector<Group> groups_of(const VerifyReport& report, bool each_alone) {
  using Key = std::array<std::string, 4>;
  std::vector<Group> groups;
  std::map<Key, size_t> index;
  for (size_t i = 0; i < report.problems.size(); ++i) {
    const Problem& problem = report.problems[i];
    const bool measured =
        i < report.differences.size() && is_distance(report.differences[i]);
    const Key key{problem.kind, problem.file, pattern_of(problem.tensor),
                  measured ? "" : problem.message};
    const auto [at, fresh] = index.try_emplace(key, groups.size());
    if (fresh || each_alone) groups.push_back({&problem, {}});
    Group& group = groups[each_alone ? groups.size() - 1 : at->second];
    group.names.push_back(problem.tensor);
    if (!measured) continue;
    if (!group.sum) group.sum = Distance{};
    *group.sum += *report.differences[i].distance;
  }
  return groups;
}

// Several readers may have come upon one broken file.
void drop_repeated(std::vector<Problem>& problems) {
  std::set<std::array<std::string, 4>> known;
  std::erase_if(problems, [&](const Problem& problem) {
    return !known
                .insert({problem.kind, problem.file, problem.tensor,
                         problem.message})
                .second;
  });
}

VerifyReport Verify::verify_one() {
  if (integrity_.quick && (integrity_.deep || integrity_.finite))
    throw usage_error({}, "--quick reads no tensor, --deep and --finite do")
        .with_hint("leave --quick out");
  if (integrity_.seal && integrity_.quick)
    throw usage_error({}, "--quick reads no tensor, a seal has all of them")
        .with_hint("leave --quick out");
  if (integrity_.seal && select_ != Selection())
    throw usage_error({}, "--seal is of a whole checkpoint")
        .with_hint("leave the selection out");
  if (compare_.numeric)
    throw usage_error({}, "--rtol and --atol compare two checkpoints")
        .with_hint("ckpt verify A B --rtol X");
  integrity_.from = source_.from;
  integrity_.read = source_.read;
  VerifyReport report;
  static_cast<Report&>(report) = library::check_integrity(
      path_, select_, integrity_, engine_of(engine_, output));
  return report;
}

VerifyReport Verify::verify_two() {
  if (integrity_.seal)
    throw usage_error({}, "--seal is of one checkpoint")
        .with_hint("ckpt verify PATH --seal");
  Catalog a = open_source(path_, source_);
  Catalog b = open_source(other_, source_);
  library::select_both(a, b, select_);
  const library::Engine engine = engine_of(engine_, output);
  VerifyReport report;
  report.facts = library::differing_facts(a, b, engine);
  const bool met = library::meet(a, b, source_.read.family, engine);
  // Values and files of another grid or format are its own.
  compare_.alike_objects =
      !met && a.format == b.format && a.topology == b.topology;
  report.files = file_count(a) + file_count(b);
  compare_.casts = compare_.describe = true;
  compare_.rounded = &report.rounded;
  compare_.within = &report.within;
  const library::ReadAsNumbers read = library::as_numbers(a, b, engine);
  Comparison result =
      library::compare(std::move(a), std::move(b), compare_, engine);
  library::say_read(read, result);
  report.tensors = result.tensors;
  report.bytes = result.bytes;
  report.ok =
      report.facts.empty() && std::ranges::all_of(result.differences, is_note);
  for (const Difference& difference : result.differences)
    report.problems.push_back({is_note(difference) ? Problem::Severity::kNote
                                                   : Problem::Severity::kDamage,
                               difference.kind,
                               !difference.file.empty() ? difference.file
                               : difference.kind == "only_in_a" ? path_
                                                                : other_,
                               difference.tensor, difference.message});
  report.differences = std::move(result.differences);
  report.verdict = report.ok ? ckpt::Verdict::kOk : ckpt::Verdict::kMismatch;
  return report;
}

// "ok, 2 warnings: 12 tensors, 3.1 KiB read, 1 file, no problems found"
std::string Verify::verdict_text(const VerifyReport& report) const {
  const bool two = !other_.empty();
  // Of two that are identical, a note says in what they still differ.
  const auto notes = static_cast<size_t>(
      std::ranges::count_if(report.problems, [&](const Problem& problem) {
        return library::is_remark(problem) ||
               (two && problem.severity == Problem::Severity::kNote);
      }));
  const size_t found = report.problems.size() - notes + report.facts.size();
  std::string word(ckpt::name(report.verdict));
  if (two) word = report.ok ? "identical" : "mismatch";
  if (report.ok && !report.rounded.empty()) word = "equal within rounding";
  if (report.ok && report.within != 0) word = "equal within the tolerance";
  if (report.verdict == ckpt::Verdict::kCantTell) word = "can't tell";
  if (report.verdict == ckpt::Verdict::kWarnings)
    word = "ok, " + text::counted(found, "warning");
  std::string said = found == 0 ? "no problems found"
                     : report.verdict == ckpt::Verdict::kWarnings
                         ? "no damage found"
                         : text::counted(found, "problem");
  if (report.verdict == ckpt::Verdict::kCantTell) said += ": " + report.open;
  std::string line = fmt::format(
      "{}: {}, {} read, {}, {}",
      styled(word, report.ok ? Style::kGreen : Style::kRed),
      text::counted(report.tensors, "tensor"), text::iec_size(report.bytes),
      text::counted(report.files, "file"), text::printable(said));
  if (report.within != 0)
    line += "; not bit for bit: " + text::counted(report.within, "tensor");
  if (const size_t count = not_compared_of(report); count != 0)
    line += fmt::format("; {} not compared", count);
  if (!two && integrity_.quick)
    line += "; --quick: no tensor was read, no checksum compared";
  else if (!two && report.unproven)
    line += "; values not proven: no checksums" +
            (report.without_checksum == report.tensors
                 ? ""
                 : fmt::format(" of {} of {}", report.without_checksum,
                               text::counted(report.tensors, "tensor")));
  return line;
}

void Verify::print_text(const VerifyReport& report) const {
  for (const families::FactDifference& fact : report.facts)
    print_folded(text::printable("fact: " + fact.name + ": " +
                                 library::fact_text(fact)) +
                 "\n");
  // Of a kind with more lines than this, only the first one is shown, unless
  // -vv.
  const bool all = output.verbosity > 1;
  constexpr uint64_t kFew = 10;
  const std::vector<Group> groups = groups_of(report, all);
  std::map<std::string, uint64_t> lines, counts, said;
  for (const Group& group : groups) {
    ++lines[group.first->kind];
    counts[group.first->kind] += group.names.size();
  }
  for (const Group& group : groups) {
    const Problem& problem = *group.first;
    const bool cut = !all && lines[problem.kind] > kFew;
    if (++said[problem.kind] > 1 && cut) continue;
    std::string line =
        library::is_remark(problem) ? "note: " : problem.kind + ": ";
    if (!problem.file.empty()) line += problem.file + ": ";
    if (!problem.tensor.empty()) line += spelled_name(group.names);
    const size_t alike = group.names.size();
    if (alike > 1) line += fmt::format(" (×{})", alike);
    if (!problem.tensor.empty()) line += ": ";
    line += group.message();
    if (cut)
      line += fmt::format(" (and {} more like it; -vv lists all)",
                          counts[problem.kind] - alike);
    print_folded(text::printable(line) + "\n");
  }
  for (const library::Rounded& one : report.rounded)
    print_folded(fmt::format(
        "rounded: {} to {}: largest error {:.3g} of a block's largest number, "
        "mean error of the worst tensor {:.3g}\n",
        text::counted(one.tensors, "tensor"), one.type, one.largest,
        one.deviation));
  if (!report.fingerprint.empty() && (integrity_.deep || integrity_.seal))
    print_folded("fingerprint " + report.fingerprint + "\n");
  if (!report.sealed.empty())
    print_folded("sealed: " + text::printable(report.sealed) + "\n");
  else if (integrity_.seal)
    print_folded(std::ranges::all_of(report.problems,
                                     [](const Problem& problem) {
                                       return problem.severity ==
                                              Problem::Severity::kNote;
                                     })
                     ? "sealed before: its manifest says all of this\n"
                     : "not sealed: only what has no problem is\n");
  // The verdict is the last line, for whoever reads no other.
  print_folded(verdict_text(report) + "\n");
}

ExitCode Verify::run() {
  std::vector<std::string> paths{path_};
  if (!other_.empty()) paths.push_back(other_);
  return within_memory(engine_, source_, paths, !integrity_.quick,
                       [this] { return look(); });
}

ExitCode Verify::look() {
  VerifyReport report = other_.empty() ? verify_one() : verify_two();
  if (other_.empty()) drop_repeated(report.problems);
  if (output.json)
    print(verify_json(report));
  else if (output.verbosity >= 0 || !report.ok)
    print_text(report);
  return report.ok ? ExitCode::kDone : ExitCode::kNegative;
}

}  // namespace

std::unique_ptr<Command> make_verify() { return std::make_unique<Verify>(); }

}  // namespace ckpt::app
