// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "ckpt/note.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/find/trainer.h"
#include "formats/runs/write/composing.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {

using text::printable;
using Severity = Problem::Severity;

// The path relative to the source's folder with config.json and the tokenizer;
// nothing for files elsewhere.
std::optional<std::string> Composing::at_home(const std::string& path) const {
  if (path.find('/') == path.npos) return path;
  if (!source_.run) return std::nullopt;
  for (const std::string& home : find_trainer(source_.run->trainer).homes)
    if (path.starts_with(home + "/") &&
        path.find('/', home.size() + 1) == path.npos)
      return path.substr(home.size() + 1);
  return std::nullopt;
}

// trainers.json's word for the file; "" for other files.
std::string_view Composing::part_of(const std::string& path, bool above) const {
  for (const Part& part : find_trainer(source_.run->trainer).parts)
    if (part.above == above &&
        (match(part.file, path) || match(part.file, io::base_name(path))))
      return part.part;
  return {};
}

// The one from --config-from, which is not among the source's files.
const Sidecar* Composing::given_config() const {
  for (const Sidecar& sidecar : source_.sidecars)
    if (io::base_name(sidecar.name) == "config.json" && !sidecar.text &&
        !sidecar.path.starts_with(source_.path + "/"))
      return &sidecar;
  return nullptr;
}

void Composing::add_config() {
  if (form_.one_file) return;  // settle_files says that there is one
  const auto made =
      std::ranges::find_if(source_.sidecars, [](const Sidecar& sidecar) {
        return sidecar.text && sidecar.name == "config.json";
      });
  const Sidecar* config =
      made == source_.sidecars.end() ? given_config() : &*made;
  if (config)
    rest_.push_back(formats::copied_file(
        io::join(std::string(form_.home), "config.json"), *config));
}

void Composing::settle(const SourceFile& file) {
  const std::string where = io::join(source_.file_root, file.path);
  const std::string inside = source_.path + "/";
  const std::string base = io::base_name(file.path);
  if (!where.starts_with(inside)) {
    if (source_.run && part_of(base, true) == "dataloader")
      reset(file, "how far the data were read");
    else if (source_.run && base == find_trainer(source_.run->trainer).tracker)
      decide(file, Fate::kLeftOut, source_.run->trainer + " alone reads it");
    return;
  }
  const std::string path = where.substr(inside.size());
  if (base == ".metadata" || base.ends_with(".distcp"))
    return decide(file, Fate::kConverted, {});
  if (!source_.run) return;
  const std::string_view part = part_of(path, false);
  const bool about_model = part.empty() || part == "config";
  if (const auto name = at_home(path);
      name && about_model && base != "fsdp_config.json" &&
      (file.part == "config" || file.part == "tokenizer")) {
    if (form_.one_file) return;  // as any file that is beside the source
    if (base == "config.json" && given_config())
      return decide(file, Fate::kLeftOut, "that of --config-from is there");
    TargetFile copy;
    copy.path = io::join(std::string(form_.home), *name);
    copy.size = file.bytes;
    copy.copy_of = where;
    rest_.push_back(std::move(copy));
    return;
  }
  if (scheduled_ && base.substr(0, base.rfind('.')) == states_.scheduler.from) {
    if (part == "rng") reset_.insert("random numbers in " + printable(base));
    return decide(file, Fate::kConverted, {});
  }
  if (!part.empty()) settle_state(file, part);
}

void Composing::settle_state(const SourceFile& file, std::string_view part) {
  const std::string& from = source_.run->trainer;
  if (part == "rng")
    return reset(file, "random numbers of " + from + "'s ranks");
  if (part == "dataloader") return reset(file, "how far the data were read");
  if (part == "scheduler")
    return reset(file,
                 "the scheduler is for parameter groups that the target lacks");
  if (part == "trainer" && from == form_.trainer)  // meta.pt, of a folder
    return decide(file, Fate::kConverted, {});
  std::string why = from + " alone reads it";
  if (part == "trainer" && states_.step)
    why += writes_.has_step
               ? fmt::format("; the step ({}) is carried", *states_.step)
               : fmt::format(
                     "; {} steps are done, which {} leaves to its "
                     "script to count",
                     *states_.step, form_.trainer);
  decide(file, Fate::kLeftOut, std::move(why));
}

void Composing::reset(const SourceFile& file, const std::string& what) {
  reset_.insert(printable(io::base_name(file.path)));
  decide(file, Fate::kLeftOut,
         fmt::format("{}: {} starts afresh", what, form_.trainer));
}

void Composing::decide(const SourceFile& file, Fate fate, std::string why) {
  target_.fates.push_back({file.path, fate, std::move(why)});
}

void Composing::warn(std::string kind, std::string text) {
  target_.problems.push_back(
      warning(std::move(kind), {}, "{}", std::move(text)));
}

void Composing::say(const std::vector<Said>& all) {
  for (const Said& said : all) {
    if (said.of_others && trainer_in(source_) == form_.trainer) continue;
    std::string text = said.text;
    if (const size_t at = text.find("{step}"); at != text.npos)
      text.replace(at, 6, std::to_string(states_.step.value_or(0)));
    if (said.kind.empty())
      target_.assumptions.push_back(std::move(text));
    else
      warn(said.kind, std::move(text));
  }
}

void Composing::say() {
  const std::string trainer(form_.trainer);
  if (adam_.states.empty())
    warn("no_optimizer",
         fmt::format("there is no optimizer: {} starts it afresh", trainer));
  else
    target_.assumptions.push_back(
        fmt::format("optimizer: Adam's moments of {}, {} for {}",
                    text::counted(adam_.states.size(), "parameter"),
                    form_.grouping == Grouping::kEach
                        ? "options of each parameter"
                        : text::counted(groups_.size(), "group"),
                    trainer));
  if (!states_.step)
    warn("no_step",
         fmt::format("the step is not known: {} begins with 0", trainer));
  else if (states_.counted)
    target_.assumptions.push_back(
        fmt::format("step {}: the optimizer's own count", *states_.step));
  say(writes_.says);
  say(form_.says);
  if (named_groups_ && !adam_.states.empty())
    target_.assumptions.push_back(
        "optimizer: the source's order; its groups have param_names, as the "
        "model's file does not tell it");
  if (form_.rank_files && ranks_ > 1)
    target_.assumptions.push_back(
        "device meshes are as torch 2.12 and 2.13 pickle them, of cuda");
  if (by_position_)
    target_.assumptions.push_back(
        fmt::format("scheduler: position {}{}; its rule is that of the "
                    "job which goes on",
                    position().value_or(0),
                    states_.scheduler.from.empty() ? ", by the step" : ""));
  if (!scheduled_ && !adam_.states.empty() && writes_.has_scheduler)
    warn("no_scheduler",
         "no scheduler is written: there is none, or it is of other groups");
  std::string names;
  for (const std::string& name : reset_)
    names += (names.empty() ? "" : ", ") + name;
  if (!names.empty())
    warn("reset", fmt::format("{} starts afresh: {}", trainer, names));
}

}  // namespace ckpt::runs
