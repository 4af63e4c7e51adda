// SPDX-License-Identifier: Apache-2.0
// The C interface to what looks after a run (ckpt/keep.h), and to what computes
// (ckpt/merge.h, ckpt/delta.h): options and answers are JSON.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/c/handles.h"
#include "api/keep/words.h"
#include "api/places.h"
#include "ckpt/delta.h"
#include "ckpt/error.h"
#include "ckpt/keep.h"
#include "ckpt/merge.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/suggest.h"

namespace ckpt {
namespace {

using nlohmann::json;

// The options of a call. Each is asked for once, by its name on the command
// line; what nobody asked for is refused.
class Given {
 public:
  explicit Given(const char* text) {
    if (text == nullptr || *text == '\0') return;
    all_ = text::parse_json(text, "options");
    if (!all_.is_object())
      throw usage_error({}, "the options are not a JSON object");
  }

  void take(const char* name, bool& value) {
    if (const json* found = find(name)) {
      if (!found->is_boolean()) wrong(name, "true or false");
      value = found->get<bool>();
    }
  }
  // Counts of which nobody means none.
  template <class Number>
  requires std::is_unsigned_v<Number>
  void take(const char* name, Number& value) {
    if (const json* found = find(name)) {
      if (!found->is_number_unsigned() || *found == 0 ||
          found->get<uint64_t>() > std::numeric_limits<Number>::max())
        wrong(name, "a whole number above 0");
      value = found->get<Number>();
    }
  }
  void take(const char* name, double& value) {
    if (const json* found = find(name)) {
      if (!found->is_number() || found->get<double>() < 0)
        wrong(name, "seconds, 0 or more");
      value = found->get<double>();
    }
  }
  void take_number(const char* name, std::optional<double>& value) {
    if (const json* found = find(name)) {
      if (!found->is_number()) wrong(name, "a number");
      value = found->get<double>();
    }
  }
  void take_numbers(const char* name, std::vector<double>& value) {
    const json* const found = find(name);
    if (found == nullptr) return;
    for (const json& one : found->is_array() ? *found : json{*found}) {
      if (!one.is_number()) wrong(name, "a number or a list of numbers");
      value.push_back(one.get<double>());
    }
  }
  void take(const char* name, std::string& value) {
    if (const json* found = find(name)) {
      if (!found->is_string()) wrong(name, "a text");
      value = found->get<std::string>();
    }
  }
  // One text stands for a list of one.
  void take(const char* name, std::vector<std::string>& value) {
    const json* const found = find(name);
    if (found == nullptr) return;
    for (const json& one : found->is_array() ? *found : json{*found}) {
      if (!one.is_string()) wrong(name, "a text or a list of texts");
      value.push_back(one.get<std::string>());
    }
  }

  bool is_text(const char* name) const {
    const auto found = all_.find(name);
    return found != all_.end() && found->is_string();
  }

  void end() const {
    for (const auto& [name, value] : all_.items()) {
      if (std::ranges::find(known_, name) != known_.end()) continue;
      const std::string near = text::nearest(name, known_);
      std::string names;
      for (const std::string& one : known_)
        names += (names.empty() ? "" : ", ") + one;
      throw usage_error({}, "unknown option '{}'", text::printable(name))
          .with_hint(near.empty() ? "options: " + names
                                  : "did you mean " + near + "?");
    }
  }

 private:
  const json* find(const char* name) {
    known_.emplace_back(name);
    const auto found = all_.find(name);
    return found == all_.end() ? nullptr : &*found;
  }
  [[noreturn]] static void wrong(const char* name, const char* expected) {
    throw usage_error({}, "option '{}': expected {}", name, expected);
  }

  json all_ = json::object();
  std::vector<std::string> known_;
};

DType dtype_of(const std::string& text) {
  const auto dtype = dtype_from_name(text);
  if (!dtype)
    throw usage_error({}, "option 'dtype': unknown dtype '{}'",
                      text::printable(text));
  return *dtype;
}

char* copy_of(const json& answer) {
  const std::string text =
      answer.dump(-1, ' ', false, json::error_handler_t::replace);
  char* const copy = ::strdup(text.c_str());
  if (copy == nullptr) throw std::bad_alloc();
  return copy;
}

template <class T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json();
}
json or_null(const std::string& text) {
  return text.empty() ? json() : json(text);
}

json answer_of(const Pruned& found, bool removed) {
  json steps = json::array();
  for (const PrunedStep& step : found.steps)
    steps.push_back({{"name", step.name},
                     {"step", or_null(step.number)},
                     {"bytes", step.bytes},
                     {"complete", step.complete},
                     {"fate", step.gone   ? "deleted"
                              : step.goes ? "goes"
                                          : "stays"},
                     {"why", step.why}});
  return {{"deleted", removed},
          {"bytes", found.bytes},
          {"steps", std::move(steps)},
          {"unfinished", found.unfinished}};
}

json answer_of(const Edited& done) {
  json files = json::array(), written = json::array();
  for (const Edited::OneFile& file : done.files) {
    json changes = json::array();
    for (const Edited::Change& change : file.changes)
      changes.push_back({{"key", change.key},
                         {"before", or_null(change.before)},
                         {"after", or_null(change.after)}});
    files.push_back({{"path", file.path},
                     {"bytes", file.bytes},
                     {"changes", std::move(changes)}});
    if (file.written)
      written.push_back({{"path", file.path}, {"bytes", file.bytes}});
  }
  for (const auto& [path, bytes] : done.manifests)
    written.push_back({{"path", path}, {"bytes", bytes}});
  return {{"step", or_null(done.step)},
          {"files", std::move(files)},
          {"written", std::move(written)}};
}

json answer_of(const Synced& done) {
  json files = json::array();
  for (const SyncedFile& file : done.files)
    files.push_back({{"path", file.path},
                     {"bytes", file.bytes},
                     {"fate", name(file.fate)},
                     {"why", or_null(file.why)}});
  return {{"complete", done.complete},
          {"bytes", done.bytes},
          {"bytes_differ", done.bytes_differ},
          {"files", std::move(files)}};
}

json answer_of(const std::vector<WatchedStep>& done) {
  json steps = json::array();
  for (const WatchedStep& step : done)
    steps.push_back({{"name", step.name},
                     {"step", or_null(step.number)},
                     {"result", name(step.result)},
                     {"status", step.status},
                     {"tries", step.tries},
                     {"seconds", step.seconds},
                     {"why", or_null(step.why)},
                     {"command", step.command}});
  return {{"steps", std::move(steps)}};
}

json answer_of(const DeltaReport& done) {
  json written = json::array(), modules = json::array();
  for (const auto& [path, bytes] : done.written)
    written.push_back({{"path", path}, {"bytes", bytes}});
  for (const LoraModule& module : done.modules)
    modules.push_back({{"name", module.name},
                       {"rank", module.rank},
                       {"norm", module.norm},
                       {"error", module.error()}});
  return {{"written", std::move(written)},
          {"tensors", done.tensors},
          {"modules", std::move(modules)},
          {"saved", done.saved}};
}

MergeOptions merge_options(Given& given) {
  MergeOptions what;
  std::string method, dtype;
  std::optional<double> lambda, between, base;
  bool normalize = false, no_normalize = false, no_rescale = false;
  given.take("method", method);
  given.take_numbers("weights", what.weights);
  given.take_number("ema", what.decay);
  given.take_numbers("density", what.densities);
  given.take_number("base", base);
  given.take_number("lambda", lambda);
  given.take_number("t", between);
  given.take("seed", what.seed);
  given.take("normalize", normalize);
  given.take("no-normalize", no_normalize);
  given.take("no-rescale", no_rescale);
  given.take("exact", what.exact);
  given.take("dtype", dtype);
  given.take("allow-nonfinite", what.allow_nonfinite);
  given.take("with-optimizer", what.with_optimizer);
  given.end();
  if (!method.empty()) {
    what.method = merge_method(method);
    if (!what.method)
      throw usage_error({}, "option 'method': unknown method '{}'",
                        text::printable(method));
  }
  if (normalize && no_normalize)
    throw usage_error({}, "'normalize' and 'no-normalize' exclude each other");
  if (normalize || no_normalize) what.normalize = normalize;
  if (no_rescale) what.rescale = false;
  if (base) {
    if (!(*base >= 0) || *base != std::floor(*base) || *base > 1e6)
      throw usage_error({}, "option 'base': expected the place of a source");
    what.base = static_cast<size_t>(*base);
  }
  what.lambda = lambda.value_or(1);
  what.t = between.value_or(0.5);
  if (!dtype.empty()) what.dtype = dtype_of(dtype);
  return what;
}

DeltaOptions delta_options(Given& given) {
  DeltaOptions what;
  std::string dtype;
  bool lossless = false, no_fsync = false;
  given.take("as-lora", what.rank);
  given.take("lossless", lossless);
  given.take("dtype", dtype);
  given.take("overwrite", what.overwrite);
  given.take("dry-run", what.dry_run);
  given.take("no-fsync", no_fsync);
  given.end();
  if (lossless && what.rank != 0)
    throw usage_error({}, "'as-lora' and 'lossless' exclude each other");
  if (what.rank != 0) what.form = DeltaForm::kLora;
  if (lossless) what.form = DeltaForm::kLossless;
  if (!dtype.empty()) what.dtype = dtype_of(dtype);
  what.sync = !no_fsync;
  return what;
}

// What `call` returns, as an answer, with what the library tells meanwhile.
template <class Options, class Call>
char* told(Options& options, const Call& call) {
  json notes = json::array();
  options.note = [&notes](const std::string& line) { notes.push_back(line); };
  json answer = answer_of(call());
  answer["notes"] = std::move(notes);
  return copy_of(answer);
}

}  // namespace
}  // namespace ckpt

extern "C" {

char* ckpt_prune(const char* root, const char* options, char** error) {
  return ckpt::guarded(error, [&] {
    ckpt::Given given(options);
    ckpt::PruneOptions what;
    bool dry_run = false;
    given.take("keep-last", what.keep_last);
    given.take("keep-every", what.keep_every);
    given.take("keep-best", what.keep_best);
    given.take("delete", what.remove);
    given.take("dry-run", dry_run);
    given.take("from", what.open.format);
    given.take("trainer", what.trainer);
    given.end();
    what.remove = what.remove && !dry_run;
    const std::string path = ckpt::library::source_place(ckpt::text_of(root));
    return ckpt::copy_of(ckpt::answer_of(ckpt::prune(path, what), what.remove));
  });
}

char* ckpt_edit(const char* path, const char* options, char** error) {
  return ckpt::guarded(error, [&] {
    ckpt::Given given(options);
    ckpt::EditOptions what;
    bool no_fsync = false;
    given.take("set", what.set);
    given.take("unset", what.unset);
    given.take("dry-run", what.dry_run);
    given.take("from", what.open.format);
    given.take("no-fsync", no_fsync);
    given.end();
    what.sync = !no_fsync;
    const std::string place = ckpt::library::source_place(ckpt::text_of(path));
    return ckpt::told(what, [&] { return ckpt::edit(place, what); });
  });
}

char* ckpt_sync(const char* source, const char* target, const char* options,
                char** error) {
  return ckpt::guarded(error, [&] {
    ckpt::Given given(options);
    ckpt::SyncOptions what;
    bool no_fsync = false;
    given.take("include", what.include);
    given.take("exclude", what.exclude);
    given.take("delete-extra", what.delete_extra);
    given.take("dry-run", what.dry_run);
    given.take("no-fsync", no_fsync);
    given.end();
    what.sync = !no_fsync;
    return ckpt::told(what, [&] {
      return ckpt::sync(ckpt::text_of(source), ckpt::text_of(target), what);
    });
  });
}

char* ckpt_watch_once(const char* root, const char* options, char** error) {
  return ckpt::guarded(error, [&] {
    ckpt::Given given(options);
    ckpt::WatchOptions what;
    what.once = true;
    std::vector<std::string> words;
    given.take("do", words);
    given.take("deep", what.deep);
    given.take("dry-run", what.dry_run);
    given.take("from", what.open.format);
    given.take("interval", what.interval);
    given.take("settle", what.settle);
    given.take("state", what.state);
    given.take("trainer", what.trainer);
    given.take("tries", what.tries);
    given.end();
    what.command = given.is_text("do")
                       ? ckpt::library::command_words(words[0], "do")
                       : std::move(words);
    const std::string path = ckpt::library::source_place(ckpt::text_of(root));
    return ckpt::told(what, [&] { return ckpt::watch(path, what); });
  });
}

ckpt_checkpoint* ckpt_merge(const ckpt_checkpoint* const* sources, size_t count,
                            const char* options, char** error) {
  return ckpt::guarded(error, [&] {
    ckpt::Given given(options);
    const ckpt::MergeOptions what = ckpt::merge_options(given);
    if (count == 0) throw ckpt::usage_error({}, "there is nothing to merge");
    std::vector<ckpt::Catalog> all;
    // Adapters that were added to a source are read until the result is closed.
    auto held = std::make_shared<std::vector<ckpt::AdapterHold>>();
    for (size_t i = 0; i < count; ++i) {
      all.push_back(sources[i]->open.catalog());
      held->push_back(sources[i]->held);
    }
    return new ckpt_checkpoint(
        ckpt::Checkpoint(ckpt::merge_models(std::move(all), what)), held);
  });
}

char* ckpt_write_delta(const ckpt_checkpoint* a, const ckpt_checkpoint* b,
                       const char* target, const char* options, char** error) {
  return ckpt::guarded(error, [&] {
    ckpt::Given given(options);
    ckpt::DeltaOptions what = ckpt::delta_options(given);
    return ckpt::told(what, [&] {
      return ckpt::write_delta(a->open.catalog(), b->open.catalog(),
                               ckpt::text_of(target), what);
    });
  });
}

}  // extern "C"
