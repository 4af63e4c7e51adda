#include "formats/runs/find.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <set>

#include "ckpt/error.h"
#include "formats/runs/pattern.h"
#include "formats/torch/container.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

namespace fs = std::filesystem;
using text::printable;

constexpr uint64_t kMaxTracker = 4096;

std::vector<std::string> listing(const std::string& folder) {
  if (!io::is_directory(folder)) return {};
  return io::list_directory(folder);
}

// The first of the signature's names that is not there; empty if all are.
std::string lacks(const Trainer& trainer, const std::string& folder) {
  for (const std::string& pattern : trainer.signature)
    if (names_like(folder, pattern).empty()) return pattern;
  return {};
}

bool has_signature(const Trainer& trainer, const std::string& folder) {
  return io::is_directory(folder) && !trainer.signature.empty() &&
         lacks(trainer, folder).empty();
}

std::vector<std::string> roles_in(const Trainer& trainer,
                                  const std::string& folder) {
  std::vector<std::string> found;
  for (const std::string& role : trainer.roles)
    if (has_signature(trainer, io::join(folder, role))) found.push_back(role);
  return found;
}

// A Lightning file: by its name and its first bytes; what is in it shows when
// it is opened.
bool is_lone_step(const Trainer& trainer, const std::string& path) {
  return trainer.lone_files && path.ends_with(".ckpt") && io::is_file(path) &&
         torch::sniff(path).what == torch::Sniffed::kTorchZip;
}

// Nothing if the folder is no step of that trainer.
std::optional<Found> step_at(const Trainer& trainer, const std::string& path) {
  Found found{.trainer = &trainer,
              .step = path,
              .why = {},
              .choice = {},
              .number = {},
              .roles = {},
              .skipped = {},
              .others = {}};
  if (is_lone_step(trainer, path)) {
    found.why = "is a .ckpt file";
    return found;
  }
  if (has_signature(trainer, path)) {
    found.why = fmt::format(
        "{} in it",
        printable(names_like(path, trainer.signature[0]).front().path));
    return found;
  }
  found.roles = roles_in(trainer, path);
  if (found.roles.empty()) return std::nullopt;
  found.why = fmt::format("{} of its own in {}/",
                          printable(trainer.signature[0]), found.roles[0]);
  return found;
}

std::optional<uint64_t> tracked(const std::string& path) {
  std::string text = io::read_file(path, kMaxTracker);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ' ||
                           text.back() == '\r' || text.back() == '\t'))
    text.pop_back();
  uint64_t value = 0;
  const auto [stop, failure] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || stop != text.data() + text.size())
    throw input_error({path, {}}, "holds \"{}\", no number of a step",
                      printable(text.substr(0, 64)))
        .with_hint("name the folder of the step that you mean");
  return value;
}

struct Candidate {
  std::string path;
  std::optional<uint64_t> number;
  bool last = false;
};

// Steps of a root by one pattern, from new to old.
std::vector<Candidate> candidates(const Trainer& trainer,
                                  const std::string& root,
                                  const std::string& pattern) {
  std::vector<Candidate> found;
  for (const Name& name : names_like(root, pattern))
    found.push_back({io::join(root, name.path), name.numbers.at("N"), false});
  std::ranges::stable_sort(found, [](const Candidate& a, const Candidate& b) {
    return *a.number > *b.number;
  });
  const size_t slash = pattern.rfind('/');
  const std::string above =
      slash == pattern.npos ? "" : pattern.substr(0, slash);
  for (const std::string& last : trainer.last) {
    const size_t cut = last.rfind('/');
    const std::string where = cut == last.npos ? "" : last.substr(0, cut);
    const std::string path = io::join(root, last);
    if (where == above && fs::exists(path))
      found.insert(found.begin(), {path, std::nullopt, true});
  }
  return found;
}

bool has_weights(const std::string& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json",
                           "pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (io::is_file(io::join(folder, name))) return true;
  return false;
}

// The newest of a root's steps that is one.
std::optional<Found> newest(const Trainer& trainer, const std::string& root,
                            const std::vector<Candidate>& all) {
  std::optional<Found> best;
  std::vector<std::string> skipped;
  std::optional<uint64_t> wanted;
  std::string tracker;
  if (!trainer.tracker.empty() &&
      io::is_file(io::join(root, trainer.tracker))) {
    tracker = io::join(root, trainer.tracker);
    wanted = tracked(tracker);
  }
  for (const Candidate& one : all) {
    auto step = step_at(trainer, one.path);
    const bool later = wanted && one.number && *one.number > *wanted;
    if (!step || later) {
      if (!best) skipped.push_back(io::base_name(one.path));
      continue;
    }
    if (best) {
      best->others.push_back(one.path);
      continue;
    }
    if (wanted && one.number != wanted) break;
    best = std::move(step);
    best->number = one.number;
    best->choice = wanted
                       ? fmt::format("{} names it", printable(trainer.tracker))
                   : one.last ? "it is the last one, by its name"
                              : "the newest complete step, by number";
  }
  // A root of this trainer's, of which no step can be opened.
  const bool ours = wanted && !all.empty() &&
                    std::ranges::any_of(all, [&](const Candidate& one) {
                      return step_at(trainer, one.path).has_value();
                    });
  if (!best && ours)
    throw input_error({tracker, {}}, "names step {}, which is not there",
                      *wanted)
        .with_hint(fmt::format("name the step that you mean: {}",
                               printable(all.front().path)));
  if (best) best->skipped = std::move(skipped);
  return best;
}

std::optional<Found> find_at(const Trainer& trainer, const std::string& path) {
  for (const std::string& pattern : trainer.steps) {
    const auto all = candidates(trainer, path, pattern);
    if (all.empty()) continue;
    if (auto found = newest(trainer, path, all)) {
      found->weights_beside = trainer.weights_beside && has_weights(path);
      return found;
    }
  }
  // Any directory of DCP has that signature; what is in it tells (adopt()).
  if (!trainer.objects.empty()) return std::nullopt;
  return step_at(trainer, path);
}

}  // namespace

std::vector<Name> names_like(const std::string& folder,
                             const std::string& pattern) {
  std::string above, last = pattern;
  const bool directory = last.ends_with('/');
  if (directory) last.pop_back();
  if (const size_t slash = last.rfind('/'); slash != last.npos) {
    above = last.substr(0, slash);
    last.erase(0, slash + 1);
  }
  std::vector<Name> found;
  // Folders before the last component have numbers in few patterns.
  std::vector<Name> folders;
  if (above.empty())
    folders.push_back({"", {}});
  else if (above.find('{') == above.npos)
    folders.push_back({above, {}});
  else
    folders = names_like(folder, above + "/");
  for (const Name& in : folders) {
    const std::string where =
        in.path.empty() ? folder : io::join(folder, in.path);
    if (last.find('{') == last.npos) {
      const std::string path = io::join(where, last);
      if (directory ? io::is_directory(path) : io::is_file(path))
        found.push_back(
            {in.path.empty() ? last : io::join(in.path, last), in.numbers});
      continue;
    }
    for (const std::string& name : listing(where)) {
      auto numbers = match(last, name);
      if (!numbers) continue;
      if (directory && !io::is_directory(io::join(where, name))) continue;
      bool agrees = true;
      for (const auto& [key, value] : in.numbers)
        agrees = numbers->emplace(key, value).first->second == value && agrees;
      if (agrees)
        found.push_back({in.path.empty() ? name : io::join(in.path, name),
                         *std::move(numbers)});
    }
  }
  std::ranges::stable_sort(found, {}, &Name::numbers);
  return found;
}

std::optional<Found> find_run(const std::string& path,
                              const std::string& only) {
  if (!only.empty()) return find_at(find_trainer(only), path);
  for (const Trainer& trainer : trainers()) {
    if (io::is_file(path) && !trainer.lone_files) continue;
    if (auto found = find_at(trainer, path)) return found;
  }
  return std::nullopt;
}

namespace {

// Bytes of all files below, links not followed; the time of the last change.
void measure(const std::string& path, Step& step) {
  constexpr size_t kMostFiles = 1'000'000;
  std::error_code failed;
  const auto add = [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    if (!entry.is_regular_file(ignored)) return;
    const uint64_t size = entry.file_size(ignored);
    if (!ignored) step.bytes += size;
    const auto time = entry.last_write_time(ignored);
    if (ignored) return;
    const auto since = std::chrono::file_clock::to_sys(time);
    step.seconds = std::max<int64_t>(
        step.seconds, std::chrono::duration_cast<std::chrono::seconds>(
                          since.time_since_epoch())
                          .count());
  };
  if (!fs::is_directory(path, failed)) return add(fs::directory_entry(path));
  size_t count = 0;
  fs::recursive_directory_iterator it(
      path, fs::directory_options::skip_permission_denied, failed);
  for (; !failed && it != fs::recursive_directory_iterator();
       it.increment(failed)) {
    if (++count > kMostFiles) break;
    add(*it);
  }
}

// Which parts of a step are there, by the names of their files.
std::vector<std::string> parts_of(const Trainer& trainer,
                                  const std::string& folder) {
  std::set<std::string> parts;
  std::vector<std::string> folders{folder};
  for (const std::string& role : roles_in(trainer, folder))
    folders.push_back(io::join(folder, role));
  for (const std::string& one : folders) {
    for (const Source& source : trainer.models)
      if (!names_like(one, source.file).empty()) {
        parts.insert("model");
        if (!source.optimizers.empty()) parts.insert("optim");
      }
    for (const Source& source : trainer.optimizers)
      if (!names_like(one, source.file).empty()) parts.insert("optim");
    for (const Part& part : trainer.parts)
      if (!names_like(one, part.file).empty()) parts.insert(part.part);
  }
  return {parts.begin(), parts.end()};
}

Step describe(const Trainer& trainer, const Candidate& one) {
  Step step{.path = one.path,
            .number = one.number,
            .trainer = trainer.name,
            .bytes = 0,
            .seconds = 0,
            .parts = {},
            .complete = false,
            .why = {}};
  measure(one.path, step);
  step.parts = io::is_directory(one.path)
                   ? parts_of(trainer, one.path)
                   : std::vector<std::string>{"model", "optim"};
  step.complete = step_at(trainer, one.path).has_value();
  if (!step.complete)
    step.why = "no " + lacks(trainer, one.path);
  else if (io::is_directory(one.path) &&
           std::ranges::find(step.parts, "model") == step.parts.end())
    step.why = "no model";
  if (!step.why.empty()) step.complete = false;
  return step;
}

}  // namespace

std::vector<Step> list_steps(const std::string& root) {
  std::vector<Step> steps;
  if (!io::is_directory(root)) return steps;
  for (const Trainer& trainer : trainers()) {
    bool any = false;
    for (const std::string& pattern : trainer.steps) {
      auto all = candidates(trainer, root, pattern);
      if (std::ranges::none_of(all, [&](const Candidate& one) {
            return step_at(trainer, one.path).has_value();
          }))
        continue;
      std::ranges::reverse(all);
      for (const Candidate& one : all) steps.push_back(describe(trainer, one));
      any = true;
      break;
    }
    if (any) break;
  }
  return steps;
}

}  // namespace ckpt::runs
