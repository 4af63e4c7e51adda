// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/scan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <tuple>

#include "ckpt/error.h"
#include "containers/torch/container.h"
#include "formats/megatron/locate.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::megatron {
namespace {

using text::printable;

constexpr std::string_view kRank = "mp_rank_";

// "00" or "001": at least `digits` of them.
std::optional<uint32_t> padded_number(std::string_view text, size_t digits) {
  if (text.size() < digits || (text.size() > digits && text[0] == '0'))
    return std::nullopt;
  return text::number<uint32_t>(text);
}

// NeMo's pipelines: tp_rank_TT_pp_rank_PPP
std::optional<LegacyDir> parse_nemo_dir(std::string_view name) {
  constexpr std::string_view kTp = "tp_rank_", kPp = "_pp_rank_";
  const size_t at = name.find(kPp);
  if (!name.starts_with(kTp) || at == name.npos) return std::nullopt;
  const auto tp = padded_number(name.substr(kTp.size(), at - kTp.size()), 2);
  const auto pp = padded_number(name.substr(at + kPp.size()), 3);
  if (!tp || !pp) return std::nullopt;
  LegacyDir dir;
  dir.name = name;
  dir.tp = *tp;
  dir.second = *pp;
  return dir;
}

// mp_rank_TT[_NNN[_NNN]]
std::optional<LegacyDir> parse_dir(std::string_view name) {
  if (auto dir = parse_nemo_dir(name)) return dir;
  if (!name.starts_with(kRank)) return std::nullopt;
  std::vector<std::optional<uint32_t>> numbers;
  for (std::string_view rest = name.substr(kRank.size());;) {
    const size_t bar = rest.find('_');
    numbers.push_back(
        padded_number(rest.substr(0, bar), numbers.empty() ? 2 : 3));
    if (!numbers.back() || numbers.size() > 3) return std::nullopt;
    if (bar == rest.npos) break;
    rest.remove_prefix(bar + 1);
  }
  LegacyDir dir;
  dir.name = name;
  dir.tp = *numbers[0];
  if (numbers.size() > 1) dir.second = numbers[1];
  if (numbers.size() > 2) dir.third = numbers[2];
  return dir;
}

std::string model_file_in(const std::string& directory) {
  // Before May 2023 the distributed optimizer's model files had no "optim".
  for (const char* name :
       {"model_optim_rng.pt", "model_rng.pt", kNemoWeights}) {
    const std::string path = io::join(directory, name);
    if (io::is_file(path)) return path;
  }
  return {};
}

// Why a directory has no rank directories, or "". One with a readable file is
// enough: the reader names the unreadable ones.
std::string why_not_step(const std::string& path) {
  for (const char* name : {"metadata.json", ".metadata"})
    if (io::is_file(io::join(path, name)))
      return fmt::format("{} is in it: a distributed checkpoint", name);
  std::string why;
  for (const std::string& name : io::list_directory(path)) {
    if (!parse_dir(name)) continue;
    const std::string file = model_file_in(io::join(path, name));
    if (file.empty()) continue;
    const torch::Sniff sniff = torch::sniff(file);
    if (sniff.what == torch::Sniffed::kTorchZip ||
        sniff.what == torch::Sniffed::kTorchLegacy)
      return {};
    if (why.empty())
      why = fmt::format("{} is not a torch.save file: {}", file, sniff.why);
  }
  return why.empty() ? "no mp_rank_XX directory with a model in it" : why;
}

// What the tracker says: "5", "release", anything. Nothing without one.
std::optional<std::string> tracked(const std::string& path) {
  const std::string file = io::join(path, kTracker);
  if (!io::is_file(file)) return std::nullopt;
  const io::Handle handle = io::Handle::open_read(file);
  std::string text =
      handle.read_string(0, std::min<uint64_t>(64, handle.size()));
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())))
    text.pop_back();
  return text;
}

// The newest directory of a root that is a step, and its number.
std::optional<std::string> newest_step(const std::string& path) {
  std::optional<std::pair<uint64_t, std::string>> newest;
  for (const std::string& name : io::list_directory(path)) {
    const auto iteration = iteration_number(name);
    const std::string step = io::join(path, name);
    if (!iteration || (newest && newest->first >= *iteration) ||
        !io::is_directory(step) || !why_not_step(step).empty())
      continue;
    newest = {*iteration, name};
  }
  if (newest) return newest->second;
  const std::string release = io::join(path, "release");
  if (io::is_directory(release) && why_not_step(release).empty())
    return "release";
  return std::nullopt;
}

LegacyFound find_step(const std::string& path) {
  if (!io::is_directory(path)) return {std::nullopt, "not a directory"};
  std::string why = why_not_step(path);
  if (why.empty())
    return {LegacyPlace{path, "", "", false}, "mp_rank_XX in it"};
  const auto word = tracked(path);
  const auto named = iteration_directory(word.value_or(""));
  if (word && !named)
    return {std::nullopt,
            fmt::format("{} says '{}', which is neither an iteration nor "
                        "'release'",
                        kTracker, text::printable(*word))};
  if (named) {
    const std::string step = io::join(path, *named);
    if (io::is_directory(step)) {
      why = why_not_step(step);
      if (!why.empty()) return {std::nullopt, *named + ": " + why};
      return {
          LegacyPlace{step, fmt::format("{}: {} names it", *named, kTracker),
                      "", true},
          fmt::format("{} names {}", kTracker, *named)};
    }
  }
  const auto newest = newest_step(path);
  if (!newest) return {std::nullopt, why};
  LegacyPlace place{io::join(path, *newest),
                    *newest + ": the newest complete one", "", true};
  if (named)
    place.warning = fmt::format("{} names {}, which is not there; {} is read",
                                kTracker, *named, *newest);
  return {std::move(place), *newest + " in it"};
}

std::string list_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kMost; ++i)
    text += (i ? ", " : "") + names[i];
  if (names.size() > kMost)
    text += fmt::format(" and {} more", names.size() - kMost);
  return text;
}

uint64_t size_or_one(const std::optional<uint64_t>& size) {
  return size.value_or(1);
}

// Sets what the numbers in a directory's name mean.
void set_coordinates(LegacyDir& dir, uint64_t pp, uint64_t ep) {
  const size_t expected = size_t{pp > 1} + size_t{ep > 1};
  const size_t found =
      size_t{dir.second.has_value()} + size_t{dir.third.has_value()};
  // More numbers than needed are fine if they are all zero.
  if (found < expected)
    throw input_error({dir.path, {}},
                      "the name has {} numbers, args with pp={} ep={} want {}",
                      found + 1, pp, ep, expected + 1)
        .with_hint("are there files of another checkpoint here?");
  if (dir.third) {
    dir.pp = *dir.second;
    dir.ep = *dir.third;
  } else if (dir.second) {
    (pp > 1 || ep <= 1 ? dir.pp : dir.ep) = *dir.second;
  }
}

void check_range(const LegacyDir& dir, const char* what, uint64_t value,
                 uint64_t size) {
  if (value < size) return;
  throw input_error({dir.path, {}}, "is {} rank {}, the args have {} of them",
                    what, value, size)
      .with_hint("are there files of another checkpoint here?");
}

// However many directories a tensor rank has, every rank must be there in every
// stage, or nothing can be joined.
void check_ranks(const std::vector<LegacyDir>& dirs, uint64_t tp, uint64_t pp,
                 const std::string& path) {
  std::set<std::pair<uint32_t, uint32_t>> present;
  for (const LegacyDir& dir : dirs) present.emplace(dir.pp, dir.tp);
  if (present.size() == tp * pp) return;
  std::vector<std::string> missing;
  uint64_t count = tp * pp - present.size();
  for (uint32_t p = 0; p < pp && missing.size() < 16; ++p)
    for (uint32_t t = 0; t < tp && missing.size() < 16; ++t)
      if (!present.contains({p, t}))
        missing.push_back(pp > 1 ? fmt::format("mp_rank_{:02}_{:03}", t, p)
                                 : fmt::format("mp_rank_{:02}", t));
  throw missing_error({path, {}},
                      "{} of {} tensor- and pipeline-parallel ranks are "
                      "missing: {}{}",
                      count, tp * pp, list_of(missing),
                      count > missing.size() ? ", …" : "")
      .with_hint(
          "the args say tp=" + std::to_string(tp) +
          " pp=" + std::to_string(pp) +
          "; copy the missing directories, or fix the copy that lost them");
}

}  // namespace

LegacyFound locate_legacy(const std::string& path) {
  try {
    return find_step(path);
  } catch (const Error& error) {
    return {std::nullopt, error.what()};
  }
}

LegacyScan scan_legacy(const std::string& path) {
  LegacyScan scan;
  for (const std::string& name : io::list_directory(path)) {
    const std::string at = io::join(path, name);
    auto dir = parse_dir(name);
    if (!dir || !io::is_directory(at)) {
      if (io::is_listed_file(at)) scan.strays.push_back(at);
      continue;
    }
    dir->path = at;
    for (const std::string& file : io::list_directory(at)) {
      const std::string whole = io::join(at, file);
      if (file == "distrib_optim.pt")
        dir->optimizer_file = whole;
      else if (whole != model_file_in(at))
        scan.strays.push_back(whole);
    }
    dir->model_file = model_file_in(at);
    if (dir->model_file.empty())
      scan.strays.push_back(at);
    else
      scan.dirs.push_back(std::move(*dir));
  }
  return scan;
}

void resolve_legacy(std::vector<LegacyDir>& dirs, const Facts& facts,
                    const std::string& path) {
  const uint64_t tp = size_or_one(facts.tp);
  const uint64_t pp = size_or_one(facts.pp);
  const uint64_t ep = size_or_one(facts.ep);
  const auto ranks = checked_mul(tp, pp);
  if (!ranks || *ranks > uint64_t{1} << 24)
    throw input_error({path, {}}, "args of {} x {} ranks", tp, pp);
  for (LegacyDir& dir : dirs) {
    set_coordinates(dir, pp, ep);
    check_range(dir, "tensor-parallel", dir.tp, tp);
    check_range(dir, "pipeline", dir.pp, pp);
    check_range(dir, "expert-parallel", dir.ep, ep);
  }
  const auto coordinates = [](const LegacyDir& dir) {
    return std::tuple(dir.pp, dir.tp, dir.ep);
  };
  std::ranges::sort(dirs, {}, coordinates);
  for (size_t i = 1; i < dirs.size(); ++i)
    if (coordinates(dirs[i - 1]) == coordinates(dirs[i]))
      throw input_error({dirs[i].path, {}}, "is the same rank as {}",
                        printable(dirs[i - 1].name))
          .with_hint("one of them is of another checkpoint");
  check_ranks(dirs, tp, pp, path);
}

}  // namespace ckpt::megatron
