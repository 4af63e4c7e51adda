// SPDX-License-Identifier: Apache-2.0
#include "formats/torch/locate.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>

#include "ckpt/error.h"
#include "containers/hf/index.h"
#include "containers/hf/weight_names.h"
#include "containers/torch/container.h"
#include "formats/fsdp/fairscale.h"
#include "formats/fsdp/rank_files.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/text/number.h"
#include "lib/text/words.h"

namespace ckpt::torch {
namespace {

constexpr std::string_view kSuffix = ".bin";

// What trainers write beside the weights; not weights themselves.
constexpr auto kNoWeights = std::to_array<std::string_view>(
    {"training_args.bin", "optimizer.bin", "scheduler.bin", "scaler.bin",
     "sampler.bin"});

constexpr uint64_t kMostFiles = 100'000;

constexpr std::string_view kRankSuffixes = ".pt .pth .bin .ckpt .lora";

struct Listing {
  std::vector<std::string> bins;
  std::vector<std::string> indexes;
  std::vector<std::string> others;  // that may be files of single ranks
};

Listing list(const std::string& directory) {
  Listing listing;
  for (std::string& name : io::list_directory(directory)) {
    if (name.starts_with('.') ||
        io::is_listed_directory(io::join(directory, name)))
      continue;
    const bool rank = text::ends_with_any(name, kRankSuffixes);
    if (rank) listing.others.push_back(name);
    if (formats::is_index_name(name, kSuffix))
      listing.indexes.push_back(std::move(name));
    else if (name.ends_with(kSuffix) &&
             std::ranges::find(kNoWeights, name) == kNoWeights.end())
      listing.bins.push_back(std::move(name));
  }
  return listing;
}

bool take_stem(std::string_view stem, const Listing& listing, Files& files) {
  auto found =
      formats::find_weight_files(stem, kSuffix, listing.bins, listing.indexes);
  files.names = std::move(found.names);
  files.index = std::move(found.index);
  return !files.names.empty() || !files.index.empty();
}

bool is_torch(const std::string& path) {
  try {
    const Sniffed what = sniff(path).what;
    return what == Sniffed::kTorchZip || what == Sniffed::kTorchLegacy;
  } catch (const Error&) {
    return false;  // a pipe, or not readable
  }
}

// Takes one index, one x-of-N set or one .bin file, whatever its name.
bool take_only(const std::string& directory, const Listing& listing,
               Files& files) {
  if (listing.indexes.size() == 1) {
    files.index = listing.indexes[0];
    return true;
  }
  std::set<std::string> stems;
  for (const std::string& name : listing.bins)
    if (const auto numbered = formats::parse_numbered(name))
      stems.insert(numbered->stem);
  if (stems.size() == 1)
    files.names = formats::numbered_set(listing.bins, *stems.begin(), kSuffix);
  if (files.names.empty() && listing.bins.size() == 1) {
    if (is_torch(io::join(directory, listing.bins[0])))
      files.names = listing.bins;
  }
  return !files.names.empty();
}

// hf_model_0002_1.pt of torchtune before 0.5: the second file of epoch 1.
struct EpochFile {
  uint64_t number, epoch;
};
std::optional<EpochFile> parse_epoch_file(std::string_view name) {
  constexpr std::string_view kStem = "hf_model_", kEnding = ".pt";
  if (!name.starts_with(kStem) || !name.ends_with(kEnding)) return std::nullopt;
  name.remove_prefix(kStem.size());
  name.remove_suffix(kEnding.size());
  const size_t at = std::min(name.find('_'), name.size());
  const auto number = text::number(name.substr(0, at), kMostFiles);
  const auto epoch =
      text::number(name.substr(std::min(at + 1, name.size())), UINT64_MAX);
  if (!number || !epoch || *number == 0) return std::nullopt;
  return EpochFile{*number, *epoch};
}

// Takes the last epoch, and leaves those before unread.
bool take_epoch(const std::string& directory, const Listing& listing,
                Files& files) {
  std::map<uint64_t, std::map<uint64_t, std::string>> epochs;
  for (const std::string& name : listing.others)
    if (const auto file = parse_epoch_file(name))
      epochs[file->epoch][file->number] = name;
  if (epochs.empty()) return false;
  const auto& [epoch, last] = *epochs.rbegin();
  uint64_t next = 1;
  for (const auto& [number, name] : last) {
    if (number != next++)
      throw input_error({io::join(directory, name), {}},
                        "is file {} of epoch {}, and file {} is missing",
                        number, epoch, next - 1);
    files.names.push_back(name);
  }
  for (const auto& [before, names] : epochs)
    for (const auto& [number, name] : names)
      if (before != epoch) files.unread.push_back(name);
  return true;
}

// Takes an index that is named as that of safetensors files.
bool take_foreign_index(const std::string& directory, Files& files) {
  files.index = formats::index_of_torch_files(directory);
  return !files.index.empty();
}

bool names_distributed(const std::vector<std::string>& globals) {
  return std::ranges::any_of(globals, [](const std::string& global) {
    return global.starts_with("torch.distributed.") &&
           (global.ends_with(" DTensor") || global.ends_with(" ShardedTensor"));
  });
}

// The first file decides, so one pickle is read.
bool take_ranks(const std::string& directory, const Listing& listing, bool flat,
                Files& files) {
  if (listing.others.empty()) return false;
  const std::string first = io::join(directory, listing.others[0]);
  if (!is_torch(first)) return false;
  try {
    Catalog scratch;
    const Container container = open_container(first, scratch);
    files.ranks = names_distributed(container.globals);
    if (!files.ranks && !flat && !fsdp::holds_flat(*container.document))
      return false;
  } catch (const Error&) {
    return false;
  }
  // DTensors and ShardedTensors themselves say which part they are.
  if (!files.ranks || flat) files.flat = fsdp::by_rank(listing.others);
  if (!files.flat.empty()) files.ranks = false;
  if (files.ranks) files.names = listing.others;
  return files.ranks || !files.flat.empty();
}

// Takes a directory's only torch file.
bool take_lone(const std::string& directory, const Listing& listing,
               Files& files) {
  if (listing.others.size() != 1) return false;
  if (!is_torch(io::join(directory, listing.others[0]))) return false;
  files.names = listing.others;
  return true;
}

}  // namespace

size_t count_torch_names(const std::string& directory) {
  return list(directory).others.size();
}

bool is_bin_index(const std::string& path) {
  return formats::is_index_name(io::base_name(path), kSuffix);
}

std::optional<Files> locate(const std::string& directory, bool flat) {
  const Listing listing = list(directory);
  Files files;
  const bool found =
      std::ranges::any_of(formats::weight_names(),
                          [&](const formats::WeightNames& names) {
                            return take_stem(names.torch, listing, files);
                          }) ||
      take_only(directory, listing, files) ||
      take_epoch(directory, listing, files) ||
      take_foreign_index(directory, files) ||
      take_ranks(directory, listing, flat, files) ||
      take_lone(directory, listing, files);
  if (!found) return std::nullopt;
  if (!files.ranks && files.flat.empty()) {
    formats::check_complete_sets(directory, files.names);
    std::ranges::set_difference(listing.bins, files.names,
                                std::back_inserter(files.unread));
  }
  return files;
}

}  // namespace ckpt::torch
