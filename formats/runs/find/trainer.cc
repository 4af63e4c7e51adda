// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/find/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>

#include "ckpt/error.h"
#include "ckpt/format.h"
#include "containers/hf/weight_names.h"
#include "formats/format.h"
#include "lib/embedded.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/suggest.h"
#include "models/located.h"
#include "models/own.h"

namespace ckpt::runs {
namespace {

using families::Value;
using Json = nlohmann::json;
using Strings = std::vector<std::string>;

constexpr char kSchema[] = "ckpt-trainers/1";
constexpr uint64_t kMostBytes = uint64_t{1} << 20;

// Files that a program or --trainer-file adds.
struct Own {
  std::mutex mutex;
  bool closed = false;
  std::vector<std::string> files;
};

Own& own() {
  static Own all;
  return all;
}

// An object whose fields have defaults. What is in none of the lists of
// `known` is refused, so that a misspelt field isn't one that is absent.
class Fields {
 public:
  Fields(const Value& value, std::initializer_list<std::string_view> known)
      : value_(value) {
    value.only(known);
  }

  std::string need(std::string_view key) const {
    return value_.member(key).text();
  }
  std::string text(std::string_view key, const char* fallback = "") const {
    const auto found = value_.find(key);
    return found ? found->text() : fallback;
  }
  bool flag(std::string_view key) const {
    const auto found = value_.find(key);
    return found && found->flag();
  }
  Strings texts(std::string_view key, Strings fallback = {}) const {
    const auto found = value_.find(key);
    return found ? families::texts(*found) : std::move(fallback);
  }
  std::vector<Value> items(std::string_view key) const {
    const auto found = value_.find(key);
    return found ? found->items() : std::vector<Value>();
  }
  // One of a few words; the first if it is absent.
  size_t word(std::string_view key, const Strings& words) const {
    const auto found = value_.find(key);
    if (!found) return 0;
    const auto at = std::ranges::find(words, found->text());
    if (at == words.end())
      found->fail(
          fmt::format("unknown word \"{}\"", text::printable(found->text())),
          families::known_names(found->text(), words));
    return static_cast<size_t>(at - words.begin());
  }

 private:
  Value value_;
};

// What opens a container: a format's reader, or one that runs alone have.
void check_reader(const Value& source, const std::string& read) {
  Strings words = {"nanotron", "parts", "ranks"};
  for (const formats::Format& format : formats::all_formats())
    words.emplace_back(format.name);
  if (std::ranges::count(words, read)) return;
  source.member("read").fail(
      fmt::format("no format is called \"{}\"", text::printable(read)),
      families::known_names(read, words));
}

Source read_source(const Value& value) {
  const Fields fields(
      value, {"file", "at", "read", "rules", "config", "world", "refused",
              "hint", "order", "prefixes", "optimizers", "others", "key",
              "next_step", "arranged"});
  Source source{.file = fields.need("file"),
                .at = fields.text("at"),
                .read = fields.text("read"),
                .rules = fields.text("rules"),
                .config = fields.text("config"),
                .world = fields.text("world"),
                .refused = fields.text("refused"),
                .hint = fields.text("hint"),
                .order = fields.text("order", "names"),
                .prefixes = fields.texts("prefixes", {""}),
                .optimizers = fields.texts("optimizers"),
                .others = fields.texts("others"),
                .key = fields.text("key"),
                .next_step = fields.text("next_step"),
                .arranged = fields.flag("arranged")};
  if (source.refused.empty()) check_reader(value, fields.need("read"));
  return source;
}

Part read_part(const Value& value) {
  const Fields fields(
      value, {"file", "part", "carried", "above", "with", "instead", "without",
              "proof", "demanded", "fails", "none", "world", "count"});
  return {.file = fields.need("file"),
          .part = fields.need("part"),
          .carried = fields.flag("carried"),
          .above = fields.flag("above"),
          .with = fields.text("with"),
          .instead = fields.text("instead"),
          .without = fields.text("without"),
          .proof = fields.text("proof"),
          .demanded = fields.flag("demanded"),
          .fails = fields.flag("fails"),
          .none = fields.text("none"),
          .world = fields.text("world"),
          .count = fields.text("count")};
}

Sole read_sole(const Value& value) {
  const Fields fields(value, {"format", "at", "more", "weights", "list"});
  Sole sole{.format = fields.need("format"),
            .at = fields.text("at"),
            .more = {},
            .weights = fields.text("weights"),
            .list = fields.text("list")};
  for (const Value& one : fields.items("more")) {
    const Fields more(one, {"at", "part"});
    sole.more.push_back({.at = more.need("at"), .part = more.need("part")});
  }
  return sole;
}

std::vector<Said> read_says(const Fields& fields) {
  std::vector<Said> says;
  for (const Value& one : fields.items("says")) {
    const Fields said(one, {"kind", "text", "of"});
    says.push_back({.kind = said.text("kind"),
                    .text = said.need("text"),
                    .of_others = said.word("of", {"all", "others"}) == 1});
  }
  return says;
}

// Sets has_scheduler and has_step, and refuses texts that stand for nothing.
void check_value(const Value& value, bool is_json, Writes& writes) {
  if (value.json().is_object()) {
    for (const auto& [key, one] : value.members())
      check_value(one, is_json, writes);
  } else if (value.json().is_array()) {
    for (const Value& one : value.items()) check_value(one, is_json, writes);
  } else if (value.is_text() && value.text().starts_with("$")) {
    std::string name = value.text();
    if (name.ends_with("?")) name.pop_back();
    const Strings known = {"$step", "$position", "$ranks", "$scheduler"};
    if (!std::ranges::count(known, name))
      value.fail(fmt::format("\"{}\" stands for nothing",
                             text::printable(value.text())),
                 families::known_names(name, known));
    if (is_json && name == "$scheduler")
      value.fail("JSON can't hold a scheduler's state dict",
                 "write it to a file with another ending: torch.save's");
    writes.has_scheduler |= name == "$scheduler";
    writes.has_step |= name == "$step";
  }
}

Writes read_writes(const Value& value, const std::string& trainer) {
  const Fields fields(value, {"forms", "values", "says", "groups", "scheduler",
                              "home", "names"});
  Writes writes{
      .forms = {},
      .values = {},
      .says = read_says(fields),
      .scheduler_kept = fields.word("scheduler", {"made", "kept"}) == 1,
      .names = fields.text("names")};
  const auto grouping = static_cast<Grouping>(
      fields.word("groups", {"source", "decay", "one", "each"}));
  for (const Value& one : value.member("forms").items()) {
    const Fields form(one, {"as", "model", "model_key", "optimizer",
                            "optimizer_key", "says"});
    const size_t as = form.word("as", {"files", "dcp", "ranks", "file"});
    writes.forms.push_back({.trainer = trainer,
                            .sharded = as == 1,
                            .rank_files = as == 2,
                            .one_file = as == 3,
                            .model_at = form.text("model"),
                            .model_key = form.text("model_key"),
                            .optimizer_at = form.text("optimizer"),
                            .optimizer_key = form.text("optimizer_key"),
                            .grouping = grouping,
                            .home = fields.text("home"),
                            .says = read_says(form)});
    if ((as == 0 || as == 2) && form.text("optimizer").empty())
      one.fail("\"optimizer\" is missing: the file of its state dict");
    if (as == 2 && form.text("model").empty())
      one.fail("\"model\" is missing: the files of the ranks");
  }
  for (const Value& one : fields.items("values")) {
    const Fields row(one, {"file", "own", "value"});
    const Value made = one.member("value");
    check_value(made, row.text("file").ends_with(".json"), writes);
    writes.values.push_back({.file = row.text("file"),
                             .own = row.flag("own"),
                             .value = made.json()});
    if (!row.text("file").empty()) continue;
    if (!made.is_object())
      made.fail("what has no file of its own has to be an object");
    for (const Form& form : writes.forms)
      if (!form.sharded && !form.one_file)
        one.fail("\"file\" is missing: this trainer also takes plain files");
  }
  for (const Said& said : writes.says)
    writes.has_step |= said.text.find("{step}") != said.text.npos;
  return writes;
}

// Where the Hub's libraries look in a component's folder: what they take
// unasked, then variants.
std::vector<Source> component_sources() {
  std::vector<Source> all;
  for (const char* variant : {"", "fp16", "bf16", "fp32", "non_ema"})
    for (const formats::WeightNames& names : formats::weight_names())
      for (const bool safe : {true, false}) {
        const formats::Stem stem{
            std::string(safe ? names.safetensors : names.torch), variant,
            safe ? ".safetensors" : ".bin"};
        for (const std::string& file : {stem.file(1, 1), stem.index()})
          all.push_back({.file = file,
                         .at = file,
                         .read = safe ? "safetensors" : "torch",
                         .order = "names",
                         .prefixes = {""}});
      }
  return all;
}

void read_step(const Fields& fields, Trainer& trainer) {
  trainer.step_file = fields.text("file");
  trainer.step_key = fields.text("key");
  trainer.step_object = fields.text("object");
}

Trainer read_trainer(const Value& value) {
  const Fields fields(
      value,
      {"name",         "what",           "signature",  "role_signature",
       "traces",       "unsigned",       "objects",    "exported",
       "steps",        "last",           "tracker",    "without_tracker",
       "pointer",      "unfinished",     "drafts",     "roles",
       "homes",        "weights_beside", "one_model",  "without_optimizer",
       "step_in_name", "of_ranks",       "reset_hint", "step",
       "counts",       "sole",           "pickled",    "components",
       "models",       "optimizers",     "parts",      "writes"});
  Trainer trainer{.name = fields.need("name"),
                  .what = fields.need("what"),
                  .signature = families::texts(value.member("signature")),
                  .role_signature = fields.texts("role_signature"),
                  .traces = fields.texts("traces"),
                  .without_sign = {},
                  .objects = fields.texts("objects"),
                  .exported = fields.text("exported"),
                  .steps = fields.texts("steps"),
                  .last = fields.texts("last"),
                  .tracker = fields.text("tracker"),
                  .without_tracker = fields.text("without_tracker"),
                  .pointer = fields.text("pointer"),
                  .unfinished = fields.texts("unfinished"),
                  .drafts = fields.texts("drafts"),
                  .roles = fields.texts("roles"),
                  .homes = fields.texts("homes"),
                  .weights_beside = fields.flag("weights_beside"),
                  .one_model = fields.flag("one_model"),
                  .without_optimizer = fields.text("without_optimizer"),
                  .step_in_name = fields.flag("step_in_name"),
                  .of_ranks = fields.texts("of_ranks"),
                  .reset_hint = fields.text("reset_hint"),
                  .step_file = {},
                  .step_key = {},
                  .step_object = {},
                  .counts = {},
                  .sole = {},
                  .pickled = {},
                  .components = {},
                  .models = {},
                  .optimizers = {},
                  .parts = {},
                  .writes = {}};
  if (const auto one = value.find("unsigned")) {
    const Fields sign(*one, {"file", "text", "is_whole"});
    trainer.without_sign = {.file = sign.text("file"),
                            .text = sign.text("text"),
                            .is_whole = sign.flag("is_whole")};
  }
  if (const auto one = value.find("step"))
    read_step(Fields(*one, {"file", "key", "object"}), trainer);
  if (const auto one = value.find("counts")) {
    const Fields counts(*one, {"each", "skips", "said_in", "scheduler"});
    trainer.counts = {.each = counts.flag("each"),
                      .skips = counts.texts("skips"),
                      .said_in = counts.text("said_in"),
                      .scheduler = counts.text("scheduler")};
  }
  if (const auto one = value.find("sole")) trainer.sole = read_sole(*one);
  if (const auto one = value.find("pickled")) {
    const Fields pickled(*one, {"sign", "model", "optimizers", "ending"});
    trainer.pickled = {.sign = pickled.text("sign"),
                       .model = pickled.text("model"),
                       .optimizers = pickled.text("optimizers"),
                       .ending = pickled.text("ending")};
  }
  if (const auto one = value.find("components")) {
    const Fields components(*one, {"file", "weighted"});
    trainer.components = {.file = components.need("file"),
                          .weighted = components.texts("weighted")};
    trainer.models = component_sources();
  } else {
    for (const Value& source : fields.items("models"))
      trainer.models.push_back(read_source(source));
  }
  for (const Value& one : fields.items("optimizers"))
    trainer.optimizers.push_back(read_source(one));
  for (const Value& one : fields.items("parts"))
    trainer.parts.push_back(read_part(one));
  if (const auto one = value.find("writes"))
    trainer.writes = read_writes(*one, trainer.name);
  return trainer;
}

void add_trainers(const std::string& path, std::string text,
                  std::vector<Trainer>& all) {
  const families::Located file(std::move(text), path,
                               "docs/formats/runs.md has the fields");
  file.root().only({"schema", "trainers"});
  const Value schema = file.root().member("schema");
  if (schema.text() != kSchema)
    schema.fail(fmt::format("expected \"{}\"", kSchema));
  for (const Value& one : file.root().member("trainers").items()) {
    Trainer trainer = read_trainer(one);
    if (std::ranges::count(all, trainer.name, &Trainer::name) ||
        trainer.name == "none")
      one.member("name").fail(fmt::format("there is a trainer {} already",
                                          text::printable(trainer.name)),
                              "give it another name");
    all.push_back(std::move(trainer));
  }
}

std::vector<Trainer> read_trainers() {
  std::vector<std::string> files = families::files_on_path("CKPT_TRAINER_PATH");
  {
    const std::lock_guard lock(own().mutex);
    own().closed = true;
    std::ranges::copy(own().files, std::back_inserter(files));
  }
  std::vector<Trainer> all;
  add_trainers("trainers.json", std::string(embedded_text("trainers")), all);
  const size_t known = all.size();
  for (const std::string& path : files)
    add_trainers(path, io::read_file(path, kMostBytes), all);
  // The user's signatures are looked for first.
  std::rotate(all.begin(), all.begin() + static_cast<ptrdiff_t>(known),
              all.end());
  return all;
}

}  // namespace

const std::vector<Trainer>& trainers() {
  static const std::vector<Trainer> all = read_trainers();
  return all;
}

const Trainer& find_trainer(const std::string& name) {
  std::vector<std::string> names;
  for (const Trainer& trainer : trainers()) {
    if (trainer.name == name) return trainer;
    names.push_back(trainer.name);
  }
  names.emplace_back("none");
  const std::string near = text::nearest(name, names);
  throw usage_error({}, "--trainer: unknown trainer \"{}\"",
                    text::printable(name))
      .with_hint(near.empty()
                     ? fmt::format("trainers: {}", fmt::join(names, ", "))
                     : fmt::format("did you mean {}?", near));
}

}  // namespace ckpt::runs

namespace ckpt {

void register_trainers(const std::string& json_file) {
  runs::Own& own = runs::own();
  const std::lock_guard lock(own.mutex);
  if (own.closed)
    throw usage_error({json_file, {}},
                      "trainers are registered after trainers were used")
        .with_hint("register them before the first checkpoint is opened");
  own.files.push_back(json_file);
}

}  // namespace ckpt
