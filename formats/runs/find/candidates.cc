// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/find/candidates.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "containers/torch/container.h"
#include "formats/runs/find/components.h"
#include "formats/runs/find/file_names.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/io/names.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::runs {
namespace {

using text::printable;

constexpr uint64_t kMaxTracker = 4096;

bool is_there(const std::string& path) {
  struct stat facts;
  return io::stat_any(path, facts);
}

// The files of "a|b" that exist; without `beside`, of those that are in the
// folder itself.
std::vector<Name> signs(const std::string& folder,
                        const std::string& alternatives, bool beside = true) {
  for (size_t at = 0; at <= alternatives.size();) {
    const size_t end =
        std::min(alternatives.find('|', at), alternatives.size());
    const std::string pattern = alternatives.substr(at, end - at);
    at = end + 1;
    if (!beside && pattern.starts_with("../")) continue;
    auto names = names_like(folder, pattern);
    if (!names.empty()) return names;
  }
  return {};
}

bool is_step_name(const Trainer& trainer, const std::string& path) {
  const std::string name = io::base_name(path);
  const auto fits = [&](const std::string& pattern) {
    return match(pattern.substr(pattern.rfind('/') + 1), name).has_value();
  };
  return std::ranges::any_of(trainer.steps, fits) ||
         std::ranges::any_of(trainer.last, fits);
}

// What the trainer leaves beside a folder says nothing about it if that has
// another name than its steps, and no model. A server would be asked for two
// more listings.
bool may_be_signed_beside(const Trainer& trainer, const std::string& folder) {
  return is_step_name(trainer, folder) ||
         std::ranges::any_of(trainer.models, [&](const Source& source) {
           return !names_like(folder, source.file).empty();
         });
}

bool has_signature(const Trainer& trainer, const std::string& folder) {
  if (!io::is_directory(folder) || trainer.signature.empty()) return false;
  const auto all_there = [&](bool beside) {
    return std::ranges::none_of(trainer.signature, [&](const auto& sign) {
      return signs(folder, sign, beside).empty();
    });
  };
  if (all_there(false)) return true;
  const bool any_beside = std::ranges::any_of(
      trainer.signature,
      [](const std::string& sign) { return sign.find("../") != sign.npos; });
  return any_beside && may_be_signed_beside(trainer, folder) && all_there(true);
}

// Recognizes one file by its name and first bytes; its contents show when it is
// opened.
bool is_lone_step(const Trainer& trainer, const std::string& path) {
  const Pickled& pickled = trainer.pickled;
  if (pickled.sign.empty() || !io::is_file(path)) return false;
  const bool named = pickled.ending.empty() ? is_step_name(trainer, path)
                                            : path.ends_with(pickled.ending);
  return named && torch::sniff(path).what == torch::Sniffed::kTorchZip;
}

// "../*-unfinished" is a name beside the step, with the step's for the star.
constexpr std::string_view kBeside = "../*";

bool is_mark(const Trainer& trainer, const std::string& name) {
  return std::ranges::any_of(trainer.unfinished, [&](const std::string& mark) {
    return mark.starts_with(kBeside) &&
           name.ends_with(mark.substr(kBeside.size()));
  });
}

std::optional<uint64_t> tracked(const std::string& path) {
  // Trainers read it with Python's int(), which takes blanks around.
  constexpr const char* kBlanks = " \t\r\n";
  std::string text = io::read_file(path, kMaxTracker);
  text.erase(text.find_last_not_of(kBlanks) + 1);
  text.erase(0, text.find_first_not_of(kBlanks));
  const auto value = text::number(text);
  if (!value)
    throw input_error({path, {}}, "holds \"{}\", no number of a step",
                      printable(text.substr(0, 64)))
        .with_hint("name the folder of the step that you mean");
  return value;
}

}  // namespace

bool is_exported(const Trainer& trainer, const std::string& folder) {
  return !trainer.exported.empty() && !has_signature(trainer, folder) &&
         !names_like(folder, trainer.exported).empty();
}

bool has_sign(const std::string& folder, const std::string& sign) {
  return !signs(folder, sign).empty();
}

std::string lacks(const Trainer& trainer, const std::string& folder) {
  for (const std::string& pattern : trainer.signature)
    if (signs(folder, pattern).empty())
      return pattern.substr(0, pattern.find('|'));
  return {};
}

std::vector<std::string> roles_in(const Trainer& trainer,
                                  const std::string& folder) {
  std::vector<std::string> found;
  const auto& signature = trainer.role_signature.empty()
                              ? trainer.signature
                              : trainer.role_signature;
  for (const std::string& role : trainer.roles) {
    const std::string path = io::join(folder, role);
    if (!signature.empty() && io::is_directory(path) &&
        std::ranges::none_of(signature, [&](const std::string& pattern) {
          return signs(path, pattern).empty();
        }))
      found.push_back(role);
  }
  return found;
}

// Nothing if the folder is not a step of that trainer.
std::optional<Found> step_at(const Trainer& trainer, const std::string& path) {
  if (io::leads_nowhere(path)) return std::nullopt;
  Found found{.trainer = &trainer,
              .step = path,
              .why = {},
              .choice = {},
              .number = {},
              .roles = {},
              .skipped = {},
              .others = {}};
  if (is_lone_step(trainer, path)) {
    found.why = fmt::format("{} is such a file by its name",
                            printable(io::base_name(path)));
    return found;
  }
  if (!trainer.role_signature.empty()) {
    if (!io::is_directory(path) || !lacks(trainer, path).empty())
      return std::nullopt;
    found.roles = roles_in(trainer, path);
    if (found.roles.empty()) return std::nullopt;
    found.why = fmt::format("{} in {}/", printable(trainer.role_signature[0]),
                            found.roles[0]);
    return found;
  }
  if (has_signature(trainer, path)) {
    if (!trainer.components.file.empty()) {
      found.roles = component_folders(trainer, path);
      if (found.roles.empty()) return std::nullopt;
    }
    found.why = fmt::format(
        "{} in it", printable(signs(path, trainer.signature[0]).front().path));
    return found;
  }
  if (is_exported(trainer, path)) {
    found.why = fmt::format("{} in it", trainer.exported);
    return found;
  }
  found.roles = roles_in(trainer, path);
  if (found.roles.empty()) return std::nullopt;
  found.why =
      fmt::format("{} of its own in {}/",
                  printable(as_glob(trainer.signature[0])), found.roles[0]);
  return found;
}

const Trainer* other_trainer(const Trainer& mine, const std::string& path) {
  for (const Trainer& other : trainers())
    if (&other != &mine && is_step_name(other, path) && step_at(other, path))
      return &other;
  return nullptr;
}

std::string unfinished_mark(const Trainer& trainer, const std::string& step) {
  for (const std::string& mark : trainer.unfinished) {
    const std::string path = mark.starts_with(kBeside)
                                 ? step + mark.substr(kBeside.size())
                                 : io::join(step, mark);
    if (io::is_file(path)) return path;
  }
  return {};
}

std::string step_beside(const Trainer& trainer, const std::string& step) {
  if (io::is_url(step)) return {};  // a listing is a request
  const std::string whole = trainer.roles.empty() ? step : io::parent(step);
  for (const std::string& at : {step, whole}) {
    const std::string below = step.substr(at.size());
    for (const std::string& pattern : trainer.steps) {
      const std::string last = pattern.substr(pattern.rfind('/') + 1);
      const auto numbers = match(last, io::base_name(at));
      if (!numbers) continue;
      const uint64_t mine = age_of(*numbers);
      const auto distance = [&](const Name& name) {
        const uint64_t other = age_of(name.numbers);
        return std::pair(other > mine,
                         other > mine ? other - mine : mine - other);
      };
      auto names = names_like(io::parent(at), last);
      std::ranges::sort(names, {}, distance);
      for (const Name& name : names)
        if (const std::string path =
                io::join(io::parent(at), name.path) + below;
            age_of(name.numbers) != mine && step_at(trainer, path) &&
            unfinished_mark(trainer, path).empty())
          return path;
    }
  }
  return {};
}

namespace {

// "checkpoint-0" of "checkpoint-99999999999999999999"; "" if all its numbers
// fit.
std::string without_beyond(std::string_view name) {
  std::string out;
  bool beyond = false;
  while (!name.empty()) {
    size_t digits = 0;
    while (digits < name.size() && text::is_digit(name[digits])) ++digits;
    const size_t size = std::max<size_t>(digits, 1);
    const bool fits = digits == 0 || text::number(name.substr(0, digits));
    out += fits ? name.substr(0, size) : "0";
    beyond = beyond || !fits;
    name.remove_prefix(size);
  }
  return beyond ? out : "";
}

}  // namespace

std::vector<std::string> beyond_numbers(const Trainer& trainer,
                                        const std::string& root) {
  std::vector<std::string> found;
  for (const std::string& name : io::names_in(root)) {
    const std::string fitting = without_beyond(name);
    if (!fitting.empty() &&
        std::ranges::any_of(trainer.steps, [&](const std::string& pattern) {
          const size_t slash = pattern.rfind('/');
          return match(std::string_view(pattern).substr(slash + 1), fitting)
              .has_value();
        }))
      found.push_back(name);
  }
  return found;
}

uint64_t age_of(const Numbers& numbers) {
  const auto number = numbers.find("N");
  return number == numbers.end() ? numbers.at("E") : number->second;
}

// Steps of a root by one pattern, from new to old. A folder may have several
// runs, {V}: the newest has the newest step.
std::vector<Candidate> candidates(const Trainer& trainer,
                                  const std::string& root,
                                  const std::string& pattern) {
  std::vector<Name> names = names_like(root, pattern);
  const auto run_of = [](const Name& name) {
    const auto run = name.numbers.find("V");
    return run == name.numbers.end() ? 0 : run->second;
  };
  std::ranges::stable_sort(names, [&](const Name& a, const Name& b) {
    return std::pair(run_of(a), age_of(a.numbers)) >
           std::pair(run_of(b), age_of(b.numbers));
  });
  std::vector<Candidate> found;
  for (const Name& name : names) {
    if (is_mark(trainer, name.path)) continue;
    const auto number = name.numbers.find("N");
    found.push_back({io::join(root, name.path),
                     number == name.numbers.end()
                         ? std::nullopt
                         : std::optional(number->second),
                     false});
  }
  const auto folder_of = [](const std::string& path) {
    const size_t slash = path.rfind('/');
    return slash == path.npos ? std::string() : path.substr(0, slash);
  };
  const std::string above = folder_of(pattern);
  const bool several = above.find('{') != above.npos;
  if (several && names.empty()) return found;
  const std::string where = several ? folder_of(names[0].path) : above;
  for (const std::string& last : trainer.last) {
    const std::string base = io::base_name(last);
    const std::string in = folder_of(last);
    if (several ? !in.empty() : in != above) continue;
    if (last.find('{') == last.npos) {
      const std::string path = io::join(root, io::join(where, base));
      if (is_there(path) || io::leads_nowhere(path))
        found.insert(found.begin(), {path, std::nullopt, true});
      continue;
    }
    for (const Name& name : names_like(root, io::join(where, base)))
      found.insert(found.begin(),
                   {io::join(root, name.path), std::nullopt, true});
  }
  return found;
}

std::optional<uint64_t> tracked_step(const Trainer& trainer,
                                     const std::string& root) {
  const std::string path = io::join(root, trainer.tracker);
  if (trainer.tracker.empty() || !io::is_file(path)) return std::nullopt;
  return tracked(path);
}

}  // namespace ckpt::runs
