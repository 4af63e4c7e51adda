// SPDX-License-Identifier: Apache-2.0
#include "app/print/steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "api/check/read_all.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/report.h"
#include "app/print/table.h"
#include "ckpt/error.h"
#include "formats/runs/find/find.h"
#include "lib/failures.h"
#include "lib/io/file.h"
#include "lib/io/listing.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

using text::printable;

// What `inspect --all` says about one step.
struct Content {
  size_t model = 0;  // tensors
  size_t optim = 0;
  uint64_t parameters = 0;
  uint64_t bytes = 0;                          // of tensors
  std::set<std::string> dtypes;                // of the model
  size_t problems = 0;                         // damage and warnings
  std::map<std::string, std::string> tensors;  // name -> "f32 [3, 4]"
};

// What the step's values say, if they are read.
struct Values {
  reshard::Stats model, optim;  // of all tensors of a kind
  std::map<std::string, Digest> digests;
  std::optional<uint64_t> changed;  // of the model, since the step before
};

Values values_of(Catalog& catalog, const library::Engine& engine,
                 Values* before) {
  const library::Reading reading =
      library::read_all(catalog, engine, {.stats = true});
  Values values;
  if (before != nullptr) values.changed = 0;
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    if (tensor.kind == Kind::optim) values.optim += reading.stats[i];
    if (tensor.kind != Kind::model) continue;
    values.model += reading.stats[i];
    values.digests.emplace(tensor.name, reading.digests[i]);
    if (before == nullptr) continue;
    const auto found = before->digests.find(tensor.name);
    if (found != before->digests.end())
      *values.changed += found->second != reading.digests[i];
  }
  if (before != nullptr) before->digests.clear();  // of one step at a time
  return values;
}

Content content_of(const Catalog& catalog) {
  Content content;
  for (const Tensor& tensor : catalog.tensors) {
    content.bytes += byte_size(tensor);
    content.tensors[tensor.name] =
        fmt::format("{} {}", name(tensor.dtype), to_string(tensor.shape));
    if (tensor.kind == Kind::optim) ++content.optim;
    if (tensor.kind != Kind::model) continue;
    ++content.model;
    content.parameters += element_count(tensor.shape).value_or(0);
    content.dtypes.emplace(name(tensor.dtype));
  }
  for (const Problem& problem : catalog.problems)
    content.problems += problem.severity != Problem::Severity::kNote;
  return content;
}

// How the names, dtypes and shapes differ from those of the step before.
struct Change {
  size_t added = 0, gone = 0, other = 0;
};

Change change_between(const Content& before, const Content& after) {
  Change change;
  for (const auto& [name, form] : after.tensors) {
    const auto found = before.tensors.find(name);
    change.added += found == before.tensors.end();
    change.other += found != before.tensors.end() && found->second != form;
  }
  for (const auto& [name, form] : before.tensors)
    change.gone += !after.tensors.contains(name);
  return change;
}

std::string change_text(const Change& change) {
  std::vector<std::string> words;
  if (change.added) words.push_back(fmt::format("+{}", change.added));
  if (change.gone) words.push_back(fmt::format("-{}", change.gone));
  if (change.other) words.push_back(fmt::format("{} other", change.other));
  return words.empty() ? "same names, shapes"
                       : fmt::format("{}", fmt::join(words, " "));
}

void add_step(JsonWriter& json, const StepRow& step) {
  json.member("name", step.name);
  if (step.number) json.member("step", *step.number);
  json.member("bytes", step.bytes);
  json.member("seconds",
              static_cast<uint64_t>(std::max(time_t{0}, step.saved)));
  if (!step.trainer.empty()) json.member("trainer", step.trainer);
  if (step.trainer.empty()) json.member("format", step.format);
  json.key("parts").begin_array();
  for (const std::string& part : step.parts) json.value(part);
  json.end_array().member("complete", step.complete);
  if (!step.complete) json.member("why", step.why);
}

struct Opened {
  StepRow step;
  std::optional<Content> content;  // of a complete one
  std::optional<Change> change;    // from the last complete one
  std::optional<Values> values;
};

// `engine`: reads the values; null: they are not read.
std::vector<Opened> open_all(std::vector<StepRow> steps,
                             const SourceOptions& source,
                             const library::Engine* engine) {
  std::vector<Opened> all;
  Opened* before = nullptr;
  all.reserve(steps.size());  // `before` points into it
  for (StepRow& step : steps) {
    Opened& one = all.emplace_back(Opened{std::move(step), {}, {}, {}});
    if (!one.step.complete) continue;
    try {
      Catalog catalog = formats::open(one.step.path, source.from, source.read);
      Content content = content_of(catalog);
      if (engine != nullptr)
        one.values =
            values_of(catalog, *engine,
                      before != nullptr ? &before->values.value() : nullptr);
      one.content = std::move(content);
    } catch (const Error& error) {
      if (error.code() == ExitCode::kResource) throw;
      one.step.complete = false;
      one.step.why = error.problem();
      continue;
    }
    if (before != nullptr)
      one.change = change_between(*before->content, *one.content);
    before = &one;
  }
  return all;
}

std::string all_json(const std::string& root, const std::vector<Opened>& all) {
  JsonWriter json;
  json.begin_document("inspect_all").member("path", root);
  json.key("steps").begin_array();
  for (const Opened& one : all) {
    json.begin_object();
    add_step(json, one.step);
    if (one.content) {
      json.member("model_tensors", uint64_t{one.content->model});
      json.member("optim_tensors", uint64_t{one.content->optim});
      json.member("parameters", one.content->parameters);
      json.member("tensor_bytes", one.content->bytes);
      json.member("problems", uint64_t{one.content->problems});
      json.key("dtypes").begin_array();
      for (const std::string& dtype : one.content->dtypes) json.value(dtype);
      json.end_array();
    }
    if (one.change) {
      json.member("added", uint64_t{one.change->added});
      json.member("gone", uint64_t{one.change->gone});
      json.member("changed", uint64_t{one.change->other});
    }
    if (one.values) {
      write_stats(json, one.values->model);
      if (one.values->optim.count != 0)
        write_stats(json, one.values->optim, "optim_stats");
      if (one.values->changed)
        json.member("values_changed", *one.values->changed);
    }
    json.end_object();
  }
  json.end_array().end_object();
  return std::move(json).text();
}

// Below 0: not known.
double age_of(const StepRow& step) {
  return step.saved <= 0
             ? -1
             : std::max(0.0, std::difftime(::time(nullptr), step.saved));
}

std::string all_text(const std::vector<Opened>& all) {
  Table table({Align::kLeft, Align::kRight, Align::kRight, Align::kRight,
               Align::kLeft, Align::kRight, Align::kLeft, Align::kLeft});
  table.row({"step", "size", "age", "params", "dtype", "optim",
             "tensors vs previous", "parts"});
  for (const Opened& one : all) {
    const StepRow& step = one.step;
    std::vector<std::string> cells{printable(step.name),
                                   text::iec_size(step.bytes),
                                   age_text(age_of(step))};
    if (one.content)
      cells.insert(cells.end(),
                   {si_count(one.content->parameters),
                    fmt::format("{}", fmt::join(one.content->dtypes, " ")),
                    std::to_string(one.content->optim),
                    one.change ? change_text(*one.change) : "-",
                    fmt::format("{}", fmt::join(step.parts, " "))});
    else
      cells.insert(cells.end(),
                   {"-", "-", "-", "-", "incomplete: " + printable(step.why)});
    table.row(std::move(cells));
  }
  table.give_up({7, 5, 3, 2});
  return table.text(stdout_is_terminal() ? stdout_width() : 0);
}

// The model's values, a row for each step.
std::string values_text(const std::vector<Opened>& all) {
  Table table({Align::kLeft, Align::kRight, Align::kRight, Align::kRight,
               Align::kRight, Align::kRight, Align::kRight, Align::kRight,
               Align::kRight});
  table.row({"step", "norm", "rms", "min", "max", "NaN", "inf",
             "tensors changed", "optimizer's norm"});
  for (const Opened& one : all) {
    if (!one.values) continue;
    const reshard::Stats& model = one.values->model;
    const auto number = [](const reshard::Stats& of, double value) {
      return of.numbers() != 0 ? fmt::format("{:.5g}", value)
                               : std::string("-");
    };
    table.row({printable(one.step.name), number(model, reshard::norm(model)),
               number(model, reshard::root_mean_square(model)),
               number(model, model.min), number(model, model.max),
               grouped(model.nans), grouped(model.infs),
               one.values->changed
                   ? fmt::format("{} of {}", grouped(*one.values->changed),
                                 grouped(one.content->model))
                   : "-",
               number(one.values->optim, reshard::norm(one.values->optim))});
  }
  table.give_up({2, 8, 3});
  return "\n" + styled("Values of the model", Style::kBold) + "\n" +
         table.text(stdout_is_terminal() ? stdout_width() : 0);
}

}  // namespace

std::string age_text(double seconds) {
  if (seconds < 0) return "-";
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  if (seconds < 5400) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 129'600) return fmt::format("{:.0f} h", seconds / 3600);
  return fmt::format("{:.0f} d", seconds / 86'400);
}

std::string steps_text(const std::vector<StepRow>& steps, bool all) {
  std::string names;
  Table table(
      {Align::kRight, Align::kRight, Align::kLeft, Align::kLeft, Align::kLeft});
  for (const StepRow& step : steps) {
    names += printable(step.name) + "\n";
    const std::string held =
        step.trainer.empty() ? step.format
                             : fmt::format("{}", fmt::join(step.parts, ","));
    table.row({text::iec_size(step.bytes), age_text(age_of(step)),
               step.complete ? "complete" : "incomplete",
               step.complete ? held : printable(step.why),
               printable(step.name)});
  }
  table.give_up({3, 1});
  table.shrink_column(4);
  return all ? table.text(stdout_is_terminal() ? stdout_width() : 0) : names;
}

std::string steps_json(const std::string& root,
                       const std::vector<StepRow>& steps) {
  JsonWriter json;
  json.begin_document("ls").member("path", root);
  json.key("entries").begin_array();
  for (const StepRow& step : steps) {
    json.begin_object();
    add_step(json, step);
    json.end_object();
  }
  json.end_array().end_object();
  return std::move(json).text();
}

StepsShown compare_steps(const std::string& root, const SourceOptions& source,
                         const library::Engine* engine, bool json) {
  std::vector<StepRow> steps = steps_of(root, source, nullptr);
  if (steps.empty()) {
    const Catalog catalog = formats::open(root, source.from, source.read);
    steps = steps_of(root, source, &catalog);
  }
  if (steps.empty())
    throw usage_error({root, {}}, "--all: not a root of steps")
        .with_hint("name the directory that the steps are in");
  const std::vector<Opened> all = open_all(std::move(steps), source, engine);
  StepsShown shown;
  shown.text = json ? all_json(root, all) : all_text(all);
  if (!json && engine != nullptr) shown.text += values_text(all);
  for (const Opened& one : all)
    if (one.values)
      shown.values.push_back({printable(one.step.name), one.values->model});
  return shown;
}

}  // namespace ckpt::app
