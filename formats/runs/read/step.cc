// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/read/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_set>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "formats/dcp/objects.h"
#include "formats/runs/find/candidates.h"
#include "formats/runs/find/components.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/merge.h"
#include "formats/runs/nanotron/nanotron.h"
#include "formats/runs/objects.h"
#include "formats/runs/optimizer/naming.h"
#include "formats/runs/optimizer/optimizer.h"
#include "formats/runs/ranks/ranks.h"
#include "formats/runs/read/adapters.h"
#include "formats/runs/read/checks.h"
#include "formats/runs/read/parts.h"
#include "formats/runs/read/reading.h"
#include "formats/runs/read/unread.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/json.h"

namespace ckpt::runs {

using formats::ReadOptions;
using text::printable;

namespace {

// A model in a folder of its own, whose name is the user's: PEFT's adapters but
// "default", the models of diffusers' scripts. trainers.json: "{*}/…", "{*}".
constexpr std::string_view kAnyFolder = "{*}";
bool is_named(const Source& source) {
  return source.file.starts_with(kAnyFolder);
}

bool is_named_adapter(const Source& source) {
  return io::base_name(source.file).starts_with("adapter_model");
}

// A model that has lost its weights is not one in a folder below.
bool has_config(const std::string& folder) {
  return io::is_file(io::join(folder, "config.json")) ||
         io::is_file(io::join(folder, "adapter_config.json"));
}

}  // namespace

Catalog StepReading::read() {
  catalog_.path = found_.step;
  catalog_.run = Run{.trainer = trainer_.name, .step = {}};
  beside_ = step_beside(trainer_, found_.step);
  if (found_.roles.empty()) read_folder("", "");
  for (const std::string& role : found_.roles) {
    read_folder(role, name_of(role));
    if (has_components())
      catalog_.run->components.push_back({name_of(role), role});
  }
  check_components(trainer_, found_.step, catalog_);
  note_unread_weights(found_.step, homes(), catalog_);
  finish();
  return std::move(catalog_);
}

// The prefix of a role's names; nothing if it is the only role. A folder
// "_actor" belongs to the actor.
std::string StepReading::name_of(std::string_view role) const {
  const bool alone = found_.roles.size() == 1 && !has_components();
  if (alone || role.empty()) return {};
  if (role.starts_with('_')) role.remove_prefix(1);
  return std::string(role) + ".";
}

// A folder with one model, or several numbered ones.
void StepReading::read_folder(const std::string& sub, const std::string& role) {
  folder_ = sub.empty() ? found_.step : io::join(found_.step, sub);
  facts_ = {};
  for (const std::string& home : homes())
    if (facts_.type.empty()) facts_ = facts_of(io::join(folder_, home));
  read_models(role);
  read_optimizers();
  if (in_folders_ && is_named_adapter(find_model()))
    check_trained(folder_, catalog_);
  for (const Part& part : trainer_.parts) read_part(part, sub, role);
  for (const std::string& home : homes()) {
    add_sidecars(home, sub);
    const std::string beside = beside_of(folder_);
    if (!beside.empty())
      note_beside(home.empty() ? folder_ : io::join(folder_, home),
                  home.empty() ? beside : io::join(beside, home), catalog_);
  }
}

void StepReading::read_models(const std::string& role) {
  models_.clear();
  model_home_.clear();
  in_folders_ = false;
  const Source& first = find_model();
  // Hubs have components in each form.
  if (!has_components()) check_mixed(folder_);
  if (is_named(first)) return read_named_models(first, role);
  std::vector<Numbers> numbers = numbers_of(first);
  for (const Numbers& number : numbers) {
    const uint64_t i = number.contains("i") ? number.at("i") : 0;
    std::string prefix = role;
    if (numbers.size() > 1)
      prefix += i == 0 ? "model." : fmt::format("model_{}.", i);
    read_model(first, number, prefix);
  }
}

// Several have their folders' names as roles.
void StepReading::read_named_models(const Source& source,
                                    const std::string& role) {
  in_folders_ = true;
  const std::vector<Name> names = names_like(folder_, source.file);
  for (const Name& name : names) {
    const std::string home = io::parent(name.path);
    Source one = source;
    one.file = name.path;
    one.at.replace(0, kAnyFolder.size(), home);
    read_model(one, {}, names.size() > 1 ? role + home + "." : role);
    if (names.size() == 1) model_home_ = home;
  }
}

// The same folder in the neighbouring step; "" if there is none.
std::string StepReading::beside_of(const std::string& folder) const {
  return beside_.empty() ? "" : beside_ + folder.substr(found_.step.size());
}

std::vector<std::string> StepReading::homes() const {
  std::vector<std::string> homes = trainer_.homes;
  homes.insert(homes.begin(), "");
  if (!model_home_.empty()) homes.push_back(model_home_);
  return homes;
}

// Of a source in a folder of its own.
bool StepReading::has_lost(const Source& source) const {
  return has_config(folder_) ||
         (is_named_adapter(source) &&
          !trace_of_model(folder_, beside_of(folder_)).empty());
}

const Source* StepReading::first_of(const std::vector<Source>& sources) const {
  for (const Source& source : sources) {
    check_finished(source, folder_);
    if (is_named(source) && has_lost(source)) continue;
    if (!names_like(folder_, source.file).empty()) return &source;
  }
  return nullptr;
}

const Source& StepReading::find_model() const {
  const Source* source = first_of(trainer_.models);
  if (source != nullptr) return *source;
  std::string wanted, adapter;
  for (const Source& one : trainer_.models) {
    if (!is_named(one) || !has_lost(one))
      wanted += (wanted.empty() ? "" : ", ") + as_glob(one.file);
    else if (const auto names = names_like(folder_, one.file); !names.empty())
      adapter = fmt::format("; an adapter is in {}, to be read by that name",
                            printable(io::parent(names[0].path)));
  }
  throw input_error({folder_, {}}, "is a step of {} ({}) without a model",
                    trainer_.what, found_.why)
      .with_hint("one of these is missing: " + wanted + adapter);
}

// The numbers {i} of the models.
std::vector<Numbers> StepReading::numbers_of(const Source& source) const {
  if (!has(source.file, "i")) return {Numbers()};
  std::vector<Numbers> numbers;
  for (const Name& name : names_like(folder_, source.file))
    numbers.push_back(name.numbers);
  for (uint64_t i = 0; i < numbers.size(); ++i)
    if (numbers[i].at("i") != i)
      throw input_error({io::join(folder_, fill(source.file, {{"i", i}})), {}},
                        "is missing, models of higher numbers are there");
  return numbers;
}

Catalog StepReading::read_container(const Source& source,
                                    const Numbers& numbers) {
  if (!source.refused.empty())
    throw unfaithful_error({folder_, {}}, "{}", source.refused)
        .with_hint(source.hint);
  if (source.read == "nanotron")
    return nanotron::read(folder_, options_).catalog;
  if (source.read == "parts") return read_parts(folder_, source, options_);
  const std::string at = fill(source.at, numbers);
  const std::string path = at.empty() ? folder_ : io::join(folder_, at);
  return formats::find_format(source.read).reader->read_catalog(path, options_);
}

// Keeps what the reader returned, before names and files become the run's.
void StepReading::keep(const Source& source, const std::string& at,
                       const Catalog& one, const std::string& read) {
  if (containers_ == nullptr) return;
  std::string folder =
      folder_ == found_.step ? "" : folder_.substr(found_.step.size() + 1);
  if (!at.empty()) folder = folder.empty() ? at : io::join(folder, at);
  containers_->push_back({.at = std::move(folder),
                          .read = read.empty() ? source.read : read,
                          .file = source.file,
                          .first = catalog_.tensors.size(),
                          .base = catalog_.files.size(),
                          .catalog = one});
}

void StepReading::keep_ranks(const Source& source, const RankCatalog& ranks,
                             const std::string& read) {
  keep(source, "", ranks.catalog, read);
  if (containers_ == nullptr) return;
  Container& one = containers_->back();
  one.shards = ranks.shards.count;
  one.units = ranks.units;
  one.original = ranks.original;
}

void StepReading::take_topology(const Topology& other) {
  Topology& mine = catalog_.topology;
  mine.tp = std::max(mine.tp, other.tp);
  mine.pp = std::max(mine.pp, other.pp);
  mine.dp = std::max(mine.dp, other.dp);
  mine.ep = std::max(mine.ep, other.ep);
}

void StepReading::read_model(const Source& source, const Numbers& numbers,
                             const std::string& prefix) {
  size_t begin = 0;
  bool pickled = true;
  Shards shards;
  if (source.read == "ranks") {
    const auto files = rank_files(folder_, source.file);
    RankCatalog ranks = read_ranks(folder_, *files, nullptr, options_);
    shards = ranks.shards;
    take_topology(ranks.catalog.topology);
    set_format("torch", ranks.catalog.version);
    keep_ranks(source, ranks, {});
    begin = Merger(catalog_).add(std::move(ranks.catalog));
  } else {
    Catalog one = read_container(source, numbers);
    keep(source, fill(source.at, numbers), one);
    take_topology(one.topology);
    set_format(source.read == "nanotron" ? "safetensors" : one.format,
               one.version);
    if (source.read == "nanotron") catalog_.dialect = "nanotron";
    pickled = one.format == "torch";
    const bool kept = one.format == "dcp" || one.format == "deepspeed" ||
                      source.read == "nanotron" || source.read == "parts";
    sort_unread(one);
    if (!kept) one.objects.clear();
    if (one.object_opener) lazy_ = true;
    // DeepSpeed's engine has a word for all: "optimizer", "module".
    const std::string word = source.read == "deepspeed" ? "engine." : "";
    for (Object& object : one.objects)
      object.name = prefix + word + object.name;
    begin = Merger(catalog_).add(std::move(one));
    note_unread_shards(io::join(folder_, fill(source.at, numbers)), catalog_);
  }
  const std::span<Tensor> added = std::span(catalog_.tensors).subspan(begin);
  Namer(source, prefix).name(added);
  if (!prefix.empty()) catalog_.run->models.push_back(prefix);
  models_.push_back({prefix,
                     {begin, catalog_.tensors.size()},
                     pickled,
                     source.arranged,
                     source.read == "deepspeed",
                     std::move(shards),
                     io::base_name(source.file).starts_with("shard-")});
  number_again(catalog_, begin, prefix, prefix + "optimizer.", folder_);
  note_copies(source);
}

// Files that the container's reader does not use are other parts of the step,
// except those named like weights.
void StepReading::sort_unread(Catalog& one) {
  std::erase_if(one.problems, [&](Problem& problem) {
    if (problem.kind != "unread_file") return false;
    const std::string name = io::base_name(problem.file);
    if (!name.starts_with("model") && !name.starts_with("pytorch_model"))
      return true;
    problem.severity = Problem::Severity::kWarning;
    problem.message += ", and may be of an earlier save";
    return false;
  });
}

void StepReading::set_format(std::string_view format,
                             const std::string& version) {
  if (!catalog_.format.empty()) return;
  catalog_.format = format;
  catalog_.version = version;
}

// Notes other files that hold the same model: 16-bit copies beside masters.
void StepReading::note_copies(const Source& taken) {
  const auto is_adapter = [](const Source& source) {
    return source.file.starts_with("adapter_model") ||
           source.file.starts_with("pytorch_lora_weights");
  };
  const std::string read = printable(as_glob(fill(taken.file, {{"i", 0}})));
  for (const Source& other : trainer_.models) {
    const bool adapter = is_adapter(other) && !is_adapter(taken);
    // To the container's reader, a file and its index are one source.
    const bool same = other.at == taken.at && other.read == taken.read;
    if (&other == &taken || (same && !adapter) || is_named(other)) continue;
    const auto names = names_like(folder_, other.file);
    if (names.empty()) continue;
    const std::string path = io::join(folder_, names[0].path);
    Problem problem = remark(
        "second_copy", {path, {}}, "holds {}; that of {} is read",
        has_components() ? "the model in another form" : "the same model again",
        read);
    if (adapter)
      problem = remark("second_copy", {path, {}},
                       "holds an adapter by itself; the model of {} is read "
                       "(name the adapter's file to read it)",
                       read);
    else if (trainer_.one_model && taken.read == "dcp")
      problem = warning("two_models", {path, {}},
                        "holds a model, too, of an earlier save perhaps; that "
                        "of {} is read",
                        read);
    catalog_.problems.push_back(std::move(problem));
  }
}

void StepReading::read_part(const Part& part, const std::string& sub,
                            const std::string& role) {
  if (part.above && sub.empty() && !found_.roles.empty()) return;
  if (part.carried && in_folders_) return;  // their configurations are there
  const std::string folder = part.above && !sub.empty() ? found_.step : folder_;
  const std::string before = part.above ? "" : role;
  const std::vector<Name> names = names_like(folder, part.file);
  const std::string beside = beside_of(folder);
  if (part.carried)
    return note_absent(trainer_, part, folder, beside, names, catalog_);
  std::map<std::string, std::string> saved_as;
  for (const Name& name : names) {
    const std::string path = io::join(folder, name.path);
    if (!read_.insert(path).second) continue;
    try {
      saved_as[stem_of(name.path)] = add_object(
          path, before + stem_of(name.path), options_, values_, catalog_);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kDamaged) throw;
      catalog_.problems.push_back(
          damage("part", {path, {}}, "{}", error.problem()));
    }
  }
  check_swapped(folder, names, saved_as, catalog_);
  check_ranks(part, folder, names, catalog_);
  check_numbers(part, folder, names, catalog_);
  note_absent(trainer_, part, folder, beside, names, catalog_);
  // For containers without ranks, count the ranks that kept their RNG state.
  if (part.part == "rng" && has(part.file, "r") && !has(part.file, "W") &&
      !note_left_ranks(part, folder, names, writers(), catalog_) &&
      names.size() > 1)
    catalog_.topology.dp =
        std::max(catalog_.topology.dp, static_cast<uint32_t>(names.size()));
  check_grid(part, folder, names, catalog_);
}

// The ranks that wrote the model; 0 if its container does not tell.
uint64_t StepReading::writers() const {
  const Topology& ranks = catalog_.topology;
  const bool known = catalog_.format == "dcp" || catalog_.format == "deepspeed";
  return known && ranks.tp == 1 && ranks.pp == 1 ? ranks.dp : 0;
}

void StepReading::add_sidecars(const std::string& home,
                               const std::string& sub) {
  const std::string folder = io::join(folder_, home);
  if (!io::is_directory(folder)) return;
  // Several models don't share a configuration.
  if (found_.roles.size() > 1 && sub != found_.roles[0]) return;
  if (has_components() && !sub.empty()) return;
  formats::add_sidecars(home.empty() ? folder_ : folder, catalog_);
}

void StepReading::finish() {
  std::erase_if(catalog_.sidecars, [&](const Sidecar& sidecar) {
    return read_.contains(sidecar.path);
  });
  if (catalog_.family.empty()) catalog_.family = options_.family;
  const std::string first = found_.roles.empty() || has_components()
                                ? found_.step
                                : io::join(found_.step, found_.roles[0]);
  if (catalog_.dialect != "nanotron")
    for (const std::string& home : homes())
      if (catalog_.family.empty() || catalog_.dialect.empty())
        formats::detect_dialect(home.empty() ? first : io::join(first, home),
                                catalog_);
  catalog_.skeleton = Skeleton{.document = values_.document,
                               .root = values_.document->add_none(),
                               .tensors = {},
                               .storages = std::move(values_.storages)};
  if (lazy_)
    catalog_.object_opener = dcp::object_opener(options_.restrict_globals);
  check_unique();
}

void StepReading::check_unique() const {
  std::unordered_set<std::string_view> names;
  for (const Tensor& tensor : catalog_.tensors)
    if (!names.insert(tensor.name).second)
      throw input_error({catalog_.path, printable(tensor.name)},
                        "is in two parts of the step");
}

ModelFacts facts_of(const std::string& folder) {
  ModelFacts facts;
  const std::string path = io::join(folder, "config.json");
  constexpr uint64_t kMaxConfig = 64 << 20;
  if (!io::is_file(path)) return facts;
  try {
    const auto config =
        text::parse_python_json(io::read_file(path, kMaxConfig), path);
    if (const auto type = config.find("model_type");
        type != config.end() && type->is_string())
      facts.type = type->get<std::string>();
    if (const auto version = config.find("transformers_version");
        version != config.end() && version->is_string()) {
      const auto text = version->get<std::string>();
      const char* const end = text.data() + text.size();
      const char* const dot =
          std::from_chars(text.data(), end, facts.version).ptr;
      if (dot != end && *dot == '.') std::from_chars(dot + 1, end, facts.minor);
    }
  } catch (const Error&) {
    // detect_dialect says what is wrong with it.
  }
  return facts;
}

Catalog read_step(const Found& found, const ReadOptions& options,
                  std::vector<Container>* containers) {
  return StepReading(found, options, containers).read();
}

}  // namespace ckpt::runs
