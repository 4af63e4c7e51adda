// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/read/counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/tensors.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/find/trainer.h"
#include "lib/io/file.h"
#include "lib/manifest.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using Rates = std::vector<double>;  // of each group

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

// The learning rates of an optimizer's groups, and those that its scheduler set
// last: whoever saves both saves the same ones. Unlike counts of steps they
// tell whatever optimizer and trainer it is.
//
//   scheduler.pt  _last_lr      [0.0004]
//   optimizer.pt  param_groups  lr 0.0007   <- of another save

// Nothing if any is no plain number, but a tensor or a proxy of one.
std::optional<Rates> rates_in(const Document& document, Id list,
                              std::string_view key) {
  if (!document.is(list, Type::kList)) return std::nullopt;
  Rates rates;
  for (const Id item : document.items(list)) {
    const auto rate =
        document.as_real(key.empty() ? item : document.find(item, key));
    if (!rate) return std::nullopt;
    rates.push_back(*rate);
  }
  if (rates.empty()) return std::nullopt;
  return rates;
}

// "actor." of "actor.optimizer.param_groups": roles are trained apart.
std::string role_in(std::string_view name, std::string_view word) {
  const size_t at = name.find(word);
  const bool starts = at != name.npos && (at == 0 || name[at - 1] == '.');
  return std::string(starts ? name.substr(0, at) : "");
}

struct Optimizers {
  std::map<std::string, std::vector<Rates>> by_role;
  // "optimizer.param_groups.": DCP has an object for each option of a group.
  std::map<std::string, std::map<uint64_t, std::optional<double>>> apart;

  void take(const Object& object) {
    constexpr std::string_view kGroupsPart = "param_groups";
    constexpr std::string_view kRatePart = ".lr";
    const std::string_view name = object.name;
    const size_t at = name.find(kGroupsPart);
    if (at == name.npos) return;
    const std::string_view rest = name.substr(at + kGroupsPart.size());
    if (rest.empty()) {
      if (auto rates = rates_in(*object.document, object.node, "lr"))
        by_role[role_in(name, "optimizer")].push_back(std::move(*rates));
    } else if (rest.ends_with(kRatePart) && rest.size() > kRatePart.size()) {
      const auto group =
          whole_number(rest.substr(1, rest.size() - kRatePart.size() - 1));
      if (rest[0] == '.' && group)
        apart[std::string(name.substr(0, at))][*group] =
            object.document->as_real(object.node);
    }
  }

  void finish() {
    for (const auto& [name, groups] : apart) {
      Rates rates;
      for (const auto& [number, rate] : groups)
        if (rate && number == rates.size()) rates.push_back(*rate);
      if (rates.size() == groups.size())
        by_role[role_in(name, "optimizer")].push_back(std::move(rates));
    }
    // Accelerate's schedulers don't say whose they are.
    std::vector<Rates> all;
    for (const auto& [role, rates] : by_role)
      all.insert(all.end(), rates.begin(), rates.end());
    if (!all.empty()) by_role[""] = std::move(all);
  }
};

// The state dict of a scheduler in an object: itself, or a value of it
// (verl's extra_state), or one of a list (Lightning's meta.pt).
std::vector<Id> schedulers_in(const Document& document, Id id, int depth = 2) {
  if (document.find(id, "_last_lr") != kNoId) return {id};
  std::vector<Id> found;
  if (depth == 0) return found;
  const auto look = [&](Id inner) {
    for (const Id one : schedulers_in(document, inner, depth - 1))
      found.push_back(one);
  };
  if (document.is(id, Type::kList))
    for (const Id item : document.items(id)) look(item);
  else
    for (const char* key : {"lr_scheduler", "lr_schedulers"})
      if (const Id inner = document.find(id, key); inner != kNoId) look(inner);
  return found;
}

std::string spelled(const Rates& rates) {
  constexpr size_t kMost = 4;
  std::string out;
  for (size_t g = 0; g < std::min(rates.size(), kMost); ++g)
    out += fmt::format("{}{}", g == 0 ? "" : ", ", rates[g]);
  return rates.size() > kMost ? out + " …" : out;
}

// A warning for a scheduler that set rates which no optimizer of its role has.
// `catalog` must have its objects, and be a run whose optimizer and scheduler
// are in files of their own.
std::vector<Problem> check_rates(const Catalog& catalog) {
  Optimizers optimizers;
  for (const Object& object : catalog.objects)
    if (object.document) optimizers.take(object);
  optimizers.finish();
  std::vector<Problem> problems;
  std::set<std::string> said;  // roles: ranks repeat it
  for (const Object& object : catalog.objects) {
    if (!object.document) continue;
    const size_t dot = object.name.rfind('.');
    const std::string role =
        dot == std::string::npos ? "" : object.name.substr(0, dot + 1);
    const auto mine = optimizers.by_role.find(role);
    if (mine == optimizers.by_role.end()) continue;
    for (const Id scheduler : schedulers_in(*object.document, object.node)) {
      const auto set = rates_in(
          *object.document, object.document->find(scheduler, "_last_lr"), "");
      if (!set) continue;
      const auto alike =
          std::ranges::find(mine->second, set->size(), &Rates::size);
      if (alike == mine->second.end() ||
          std::ranges::find(mine->second, *set) != mine->second.end() ||
          !said.insert(role).second)
        continue;
      problems.push_back(warning(
          "stale_part", {catalog.path, object.name},
          "its scheduler set the learning rate {} last, the {}optimizer's "
          "groups have {}: one of the two is of another save, unless something "
          "else sets the rate",
          spelled(*set), printable(role), spelled(*alike)));
    }
  }
  return problems;
}

struct ValueAt {
  const Document* document = nullptr;
  Id node = kNoId;
};

Id member(const Document& document, Id id, std::string_view key) {
  const Id found = document.find(id, key);
  if (found != kNoId || !document.is(id, Type::kCall)) return found;
  return document.find(document.call(id).state, key);
}

// "engine.skipped_steps" is an object; "training_args.fp16" is in one.
ValueAt value_at(const Catalog& catalog, std::string_view path) {
  for (const Object& object : catalog.objects) {
    if (!object.document) continue;
    const std::string_view name = object.name;
    if (name == path) return {object.document.get(), object.node};
    if (!path.starts_with(name) || path[name.size()] != '.') continue;
    Id id = object.node;
    std::string_view rest = path.substr(name.size() + 1);
    while (id != kNoId) {
      const size_t dot = rest.find('.');
      id = member(*object.document, id, rest.substr(0, dot));
      if (dot == rest.npos) break;
      rest.remove_prefix(dot + 1);
    }
    if (id != kNoId) return {object.document.get(), id};
  }
  return {};
}

// Python's bool() of it.
bool is_true(const ValueAt& value) {
  if (value.node == kNoId || value.document->is(value.node, Type::kNone))
    return false;
  const auto number = value.document->as_int(value.node);
  return !number || *number != 0;
}

std::optional<uint64_t> count_at(const Catalog& catalog,
                                 std::string_view path) {
  const ValueAt value = value_at(catalog, path);
  if (value.document == nullptr) return std::nullopt;
  const auto number = value.document->as_int(value.node);
  if (!number || *number < 0) return std::nullopt;
  return static_cast<uint64_t>(*number);
}

struct Stepped {
  uint64_t steps = 0;  // of the parameter that was stepped most often
  std::string file;    // that says so
  std::string what;    // in it; "": the file
};

// DCP's files are those of its index.
std::string file_of(const Catalog& catalog, const Tensor& tensor) {
  const std::string& path = catalog.files.at(tensor.pieces[0].extent.file).path;
  if (!path.ends_with(".distcp")) return path;
  return io::join(io::parent(path), ".metadata");
}

// How often a parameter was stepped, by its optimizer.
struct Counted {
  const Tensor* tensor = nullptr;
  uint64_t steps = 0;
};

// Nothing if the optimizer does not count, or not everything can be read.
std::vector<Counted> counts_in(const Catalog& catalog) {
  constexpr double kMost = 16'777'216;  // f32 can't count further
  std::vector<Counted> all;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::optim || tensor.state != "step") continue;
    if (element_count(tensor.shape) != 1 || tensor.pieces.empty()) return {};
    const auto number =
        torch::read_number(catalog, tensor.dtype, tensor.pieces[0]);
    if (!number || !(*number >= 0 && *number < kMost) ||
        *number != std::floor(*number))
      return {};
    all.push_back({&tensor, static_cast<uint64_t>(*number)});
  }
  return all;
}

std::optional<Stepped> most_of(const Catalog& catalog,
                               const std::vector<Counted>& all) {
  const auto most = std::ranges::max_element(all, {}, &Counted::steps);
  if (most == all.end()) return std::nullopt;
  return Stepped{most->steps, file_of(catalog, *most->tensor), {}};
}

// The scheduler's file, and its position: only a schedule of torch's LambdaLR,
// which nothing but its own step() moves.
std::optional<Stepped> scheduled(const Trainer& trainer,
                                 const Catalog& catalog) {
  const auto is_lambda = [&](const std::string& name) {
    return value_at(catalog, name + ".lr_lambdas").node != kNoId;
  };
  if (const std::string& object = trainer.counts.scheduler; !object.empty())
    if (const auto position = count_at(catalog, object))
      return Stepped{*position, io::join(catalog.path, ".metadata"), object};
  for (const Part& part : trainer.parts) {
    if (part.part != "scheduler" || part.count.empty()) continue;
    for (const Name& name : names_like(catalog.path, part.file)) {
      const std::string file(io::base_name(name.path));
      const std::string stem = file.substr(0, file.rfind('.'));
      const auto position = count_at(catalog, stem + "." + part.count);
      if (position && is_lambda(stem))
        return Stepped{*position, io::join(catalog.path, name.path), {}};
    }
  }
  return std::nullopt;
}

// True if the optimizer may have skipped steps that the trainer counts.
bool may_skip(const Trainer& trainer, const Catalog& catalog) {
  const Counts& counts = trainer.counts;
  if (!counts.said_in.empty() &&
      value_at(catalog, counts.said_in).node == kNoId)
    return true;
  return std::ranges::any_of(counts.skips, [&](const std::string& path) {
    return is_true(value_at(catalog, path));
  });
}

class CountCheck {
 public:
  CountCheck(const Trainer& trainer, const Catalog& catalog)
      : trainer_(trainer), catalog_(catalog) {}

  std::vector<Problem> run() {
    compare_ranks();
    const auto& step = catalog_.run->step;
    // ckpt gives a step of another trainer the counts that it has; its manifest
    // has each file.
    if (io::is_file(manifest_path(catalog_.path))) return problems_;
    const std::vector<Counted> all = counts_in(catalog_);
    compare_files(all);
    if (!trainer_.counts.each || !step || has_several()) return problems_;
    const auto optimizer = most_of(catalog_, all);
    // More steps than the trainer has have causes of their own.
    if (!optimizer || optimizer->steps > *step) return problems_;
    const auto schedule = scheduled(trainer_, catalog_);
    if (!schedule)
      compare(*optimizer, *step);
    else if (schedule->steps <= *step)
      compare(*optimizer, *schedule, *step);
    return problems_;
  }

 private:
  // The step's number is the sum of theirs.
  bool has_several() const {
    return std::ranges::any_of(catalog_.objects, [](const Object& object) {
      return object.name.starts_with("optimizer_1.");
    });
  }

  std::string said_in() const {
    return printable(trainer_.step_file.empty()
                         ? trainer_.step_object
                         : io::base_name(trainer_.step_file));
  }

  void add(const std::string& file, std::string message) {
    problems_.push_back(
        warning("stale_part", {file, {}}, "{}", std::move(message)));
  }

  void compare(const Stepped& optimizer, uint64_t step) {
    if (optimizer.steps == step || may_skip(trainer_, catalog_)) return;
    add(optimizer.file,
        fmt::format("counts {} steps, {} says {}: it is of another save, "
                    "unless the optimizer was started afresh or skipped some",
                    optimizer.steps, said_in(), step));
  }

  // The two step together, or neither does.
  void compare(const Stepped& optimizer, const Stepped& schedule,
               uint64_t step) {
    const std::string scheduler = printable(
        schedule.what.empty() ? io::base_name(schedule.file) : schedule.what);
    if (optimizer.steps == schedule.steps) {
      if (optimizer.steps == step || may_skip(trainer_, catalog_)) return;
      return add(optimizer.file,
                 fmt::format("counts {} steps, and so does {}; {} says {}: "
                             "they are of another save, unless the optimizer "
                             "was started afresh or skipped some",
                             optimizer.steps, scheduler, said_in(), step));
    }
    if (optimizer.steps == step)
      return add(schedule.file,
                 fmt::format("counts {} steps, {} and the optimizer {}: it is "
                             "of another save",
                             schedule.steps, said_in(), step));
    add(optimizer.file,
        fmt::format("counts {} steps, {} {}, {} says {}: it is of another "
                    "save, unless the optimizer was started afresh",
                    optimizer.steps, scheduler, schedule.steps, said_in(),
                    step));
  }

  // DCP's files: each rank wrote the counts of some parameters. A rank's file
  // of an earlier save, with the same parts at the same places, opens like its
  // own. Files that hold unlike counts are of parameters that joined later.
  void compare_files(const std::vector<Counted>& all) {
    std::map<std::string, std::map<std::string, std::set<uint64_t>>> folders;
    for (const Counted& one : all) {
      const uint32_t file = one.tensor->pieces[0].extent.file;
      const std::string& path = catalog_.files.at(file).path;
      if (path.ends_with(".distcp"))
        folders[io::parent(path)][path].insert(one.steps);
    }
    for (const auto& [folder, files] : folders) {
      uint64_t most = 0;
      for (const auto& [path, steps] : files)
        most = std::max(most, *steps.rbegin());
      if (std::ranges::any_of(
              files, [](const auto& one) { return one.second.size() > 1; }))
        continue;
      for (const auto& [path, steps] : files)
        if (*steps.begin() != most) {
          problems_.push_back(
              warning("mixed_steps", {path, {}},
                      "counts {} steps, other files of {} {}: they are of two "
                      "saves, unless its parameters joined later",
                      *steps.begin(), printable(io::base_name(folder)), most));
          break;  // the first one is enough
        }
    }
  }

  // "actor.extra_state_world_size_#_rank_#": a name without its numbers.
  static std::string family(std::string_view name) {
    std::string out;
    for (const char c : name) {
      const bool digit = c >= '0' && c <= '9';
      if (!digit)
        out += c;
      else if (!out.ends_with('#'))
        out += '#';
    }
    return out;
  }

  // All ranks' schedulers have taken the same steps, and their loops, too (but
  // for the last batches of an epoch, which some may lack).
  void compare_ranks() {
    std::map<std::string, std::pair<std::string, uint64_t>> first;
    for (const Part& part : trainer_.parts) {
      if (part.count.empty()) continue;
      const std::string pattern(io::base_name(part.file));
      const std::string stem = pattern.substr(0, pattern.rfind('.'));
      for (const Object& object : catalog_.objects) {
        const std::string_view name = object.name;
        const size_t role = name.rfind('.');
        if (!match(stem, role == name.npos ? name : name.substr(role + 1)))
          continue;
        const auto count = count_at(catalog_, object.name + "." + part.count);
        if (!count) continue;
        const auto [it, fresh] =
            first.try_emplace(family(name), object.name, *count);
        const auto& [other, known] = it->second;
        if (fresh || known == *count) continue;
        if (!part.count.ends_with("last_epoch"))
          problems_.push_back(
              warning("mixed_steps", {catalog_.path, object.name},
                      "is of step {}, {} of step {}: they are of two saves, "
                      "unless the ranks had unlike numbers of batches",
                      *count, printable(other), known));
        else
          problems_.push_back(damage(
              "mixed_steps", {catalog_.path, object.name},
              "its scheduler has taken {} steps, that of {} {}: they are "
              "of two saves",
              *count, printable(other), known));
      }
    }
  }

  const Trainer& trainer_;
  const Catalog& catalog_;
  std::vector<Problem> problems_;
};

}  // namespace

std::vector<Problem> check_counts(const Catalog& catalog) {
  if (!catalog.run || catalog.path.find("://") != std::string::npos) return {};
  for (const Trainer& trainer : trainers())
    if (trainer.name == catalog.run->trainer) {
      auto problems = CountCheck(trainer, catalog).run();
      // ckpt makes a scheduler where a target needs one and a source has none.
      if (!io::is_file(manifest_path(catalog.path)))
        std::ranges::move(check_rates(catalog), std::back_inserter(problems));
      return problems;
    }
  return {};
}

}  // namespace ckpt::runs
