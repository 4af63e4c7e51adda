// SPDX-License-Identifier: Apache-2.0
#include "formats/deepspeed/locate.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::deepspeed {
namespace {

using text::printable;

// Takes a name apart from left to right.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : left_(text) {}

  bool take(std::string_view word) {
    if (!left_.starts_with(word)) return false;
    left_.remove_prefix(word.size());
    return true;
  }
  bool number(uint32_t& value) {
    const auto number = text::take_number(left_, UINT32_MAX);
    if (number) value = static_cast<uint32_t>(*number);
    return number.has_value();
  }
  bool done() const { return left_.empty(); }

 private:
  std::string_view left_;
};

bool parse_ranks(Scanner scan, FileName& out) {
  if (!scan.take("bf16_")) scan.take("fp16_");
  uint32_t dp = 0;
  if (scan.take("zero_pp_rank_")) {
    if (!scan.number(dp) || !scan.take("_")) return false;
    out.dp = dp;
  }
  if (!scan.take("mp_rank_") || !scan.number(out.mp)) return false;
  // Very old versions omitted the underscore.
  const bool under = scan.take("_");
  if (out.dp && scan.take("optim_states.pt")) {
    out.kind = FileKind::kOptim;
    return scan.done();
  }
  out.kind = FileKind::kModel;
  return under && scan.take("model_states.pt") && scan.done();
}

bool parse_layer(Scanner scan, FileName& out) {
  out.kind = FileKind::kLayer;
  return scan.take("layer_") && scan.number(out.layer) &&
         scan.take("-model_") && scan.number(out.mp) &&
         scan.take("-model_states.pt") && scan.done();
}

// Old versions had one file for an expert of all layers.
bool parse_expert(Scanner scan, FileName& out) {
  out.kind = FileKind::kExpert;
  if (scan.take("layer_") && !(scan.number(out.layer) && scan.take("_")))
    return false;
  return scan.take("expert_") && scan.number(out.expert) &&
         scan.take("_mp_rank_") && scan.number(out.mp) &&
         scan.take("_model_states.pt") && scan.done();
}

// Without ZeRO: the optimizer of an expert-parallel rank.
bool parse_expert_optim(Scanner scan, FileName& out) {
  out.kind = FileKind::kExpertOptim;
  uint32_t rank = 0;
  if (!scan.take("expp_rank_") || !scan.number(rank)) return false;
  out.dp = rank;
  return scan.take("_mp_rank_") && scan.number(out.mp) &&
         scan.take("_optim_states.pt") && scan.done();
}

bool is_plain(std::string_view tag) {
  return !tag.empty() && tag != "." && tag != ".." &&
         std::ranges::all_of(tag, [](char c) {
           return c != '/' && c != '\\' && static_cast<unsigned char>(c) >= ' ';
         });
}

bool has_parameters(const std::string& directory) {
  const std::string zero = io::join(directory, "zero");
  if (!io::is_directory(zero)) return false;
  if (io::is_file(io::join(zero, "optimizer_state.pt"))) return true;
  return std::ranges::any_of(
      io::list_directory(zero), [&](const std::string& name) {
        return io::is_file(io::join(io::join(zero, name), "fp32.pt"));
      });
}

bool has_files(const std::string& directory) {
  return std::ranges::any_of(
      io::list_directory(directory),
      [](const std::string& name) { return parse_name(name).has_value(); });
}

bool look_at(const std::string& directory, Found& found) {
  found.universal = has_parameters(directory);
  if (!found.universal && !has_files(directory)) return false;
  found.yes = true;
  found.directory = directory;
  return true;
}

std::string read_tag(const std::string& path) {
  constexpr uint64_t kMost = 4096;
  std::string tag = io::read_file(path, kMost);
  constexpr const char* kBlanks = " \t\r\n";  // as DeepSpeed's strip()
  tag.erase(tag.find_last_not_of(kBlanks) + 1);
  tag.erase(0, tag.find_first_not_of(kBlanks));
  return tag;
}

// Takes `latest` for DeepSpeed's if it leads to a checkpoint, or could be meant
// to.
bool follow(const std::string& path, std::string_view pointer, Found& found) {
  const std::string file = io::join(path, pointer);
  if (!io::is_file(file)) return false;
  found.tag = read_tag(file);
  found.pointer = file;
  if (!is_plain(found.tag)) {
    found.yes = true;
    found.why = fmt::format("{} names a tag", pointer);
    return true;
  }
  const std::string below = io::join(path, found.tag);
  if (!io::is_directory(below)) {
    found.why = fmt::format("{} names {}, which is not there", pointer,
                            printable(found.tag));
    return false;
  }
  if (!look_at(below, found)) return false;
  found.why = fmt::format("{} names {}", pointer, printable(found.tag));
  return true;
}

// "global_step20_universal" -> ("global_step", 20, "_universal").
struct TagParts {
  std::string before, after;
  uint64_t number = 0;
};
std::optional<TagParts> parse_tag(std::string_view tag) {
  constexpr std::string_view kDigits = "0123456789";
  const size_t last = tag.find_last_of(kDigits);
  if (last == tag.npos) return std::nullopt;
  const size_t other = tag.find_last_not_of(kDigits, last);
  const size_t first = other == tag.npos ? 0 : other + 1;
  const auto number = text::number(tag.substr(first, last + 1 - first));
  if (!number) return std::nullopt;
  return TagParts{.before = std::string(tag.substr(0, first)),
                  .after = std::string(tag.substr(last + 1)),
                  .number = *number};
}

}  // namespace

std::optional<FileName> parse_name(std::string_view name) {
  if (!name.ends_with("states.pt")) return std::nullopt;
  for (const auto parse :
       {parse_ranks, parse_layer, parse_expert, parse_expert_optim}) {
    FileName out;
    out.name = name;
    if (parse(Scanner(name), out)) return out;
  }
  return std::nullopt;
}

Found locate(const std::string& path) {
  Found found;
  try {
    if (!io::is_directory(path)) {
      found.why = "not a directory";
      return found;
    }
    if (look_at(path, found)) {
      found.why = found.universal ? "holds parameters below zero/"
                                  : "holds *_states.pt files of ranks";
      return found;
    }
    for (const std::string_view pointer : {"latest", "latest_universal"})
      if (follow(path, pointer, found)) return found;
    if (found.why.empty())
      found.why = "no *_states.pt files of ranks, no latest";
  } catch (const Error& error) {
    // Leave what can't be read for another format to explain.
    found = {};
    found.why = error.problem();
  }
  return found;
}

std::vector<std::string> newer_tags(const Found& found) {
  const auto mine = parse_tag(found.tag);
  if (!mine || io::is_url(found.pointer)) return {};  // a listing is a request
  const std::string folder = io::parent(found.pointer);
  std::vector<std::pair<uint64_t, std::string>> newer;
  for (const std::string& name : io::list_directory(folder)) {
    const auto other = parse_tag(name);
    Found there;
    if (other && other->before == mine->before && other->after == mine->after &&
        other->number > mine->number &&
        io::is_directory(io::join(folder, name)) &&
        look_at(io::join(folder, name), there))
      newer.emplace_back(other->number, name);
  }
  std::ranges::sort(newer);
  std::vector<std::string> names;
  for (auto& [number, name] : newer) names.push_back(std::move(name));
  return names;
}

std::vector<FileName> list_files(const std::string& directory) {
  std::vector<FileName> files;
  for (const std::string& name : io::list_directory(directory))
    if (auto parsed = parse_name(name)) files.push_back(std::move(*parsed));
  const auto key = [](const FileName& file) {
    return std::tuple(file.kind, file.mp, file.dp, file.layer, file.expert);
  };
  std::ranges::stable_sort(files, {}, key);
  for (size_t i = 1; i < files.size(); ++i)
    if (key(files[i - 1]) == key(files[i]))
      throw input_error({directory, {}}, "{} and {} are the same rank's",
                        printable(files[i - 1].name), printable(files[i].name))
          .with_hint("two saves were mixed in this directory");
  return files;
}

std::vector<std::string> list_parameters(const std::string& directory) {
  // A name with slashes is a path: bounded, not recursive.
  constexpr size_t kDeepest = 16;
  const std::string zero = io::join(directory, "zero");
  std::vector<std::pair<std::string, size_t>> open{{"", 0}};
  std::vector<std::string> found;
  while (!open.empty()) {
    const auto [prefix, depth] = open.back();
    open.pop_back();
    const std::string at = prefix.empty() ? zero : io::join(zero, prefix);
    if (!prefix.empty() && io::is_file(io::join(at, "fp32.pt"))) {
      found.push_back(prefix);
      continue;
    }
    if (depth == kDeepest) continue;
    for (const std::string& name : io::list_directory(at))
      if (io::is_directory(io::join(at, name)))
        open.emplace_back(prefix.empty() ? name : prefix + "/" + name,
                          depth + 1);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace ckpt::deepspeed
