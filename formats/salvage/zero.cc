// SPDX-License-Identifier: Apache-2.0
#include "formats/salvage/zero.h"

#include <filesystem>
#include <map>
#include <set>
#include <string_view>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "containers/torch/container.h"
#include "lib/io/file.h"
#include "lib/zip/archive.h"

namespace ckpt::salvage {
namespace {

constexpr std::string_view kRank = "zero_pp_rank_";
constexpr std::string_view kModel = "_model_states.pt";
constexpr std::string_view kOptim = "_optim_states.pt";

// "zero_pp_rank_1_mp_rank_00" of either of its files; "" of any other.
std::string rank_of(const std::string& name, std::string_view ending) {
  const size_t at = name.find(kRank);
  if (at == name.npos || !name.ends_with(ending)) return "";
  return name.substr(at, name.size() - ending.size() - at);
}

// What the data-parallel ranks have in common: "mp_rank_00".
std::string group_of(const std::string& rank) {
  const size_t at = rank.find('_', kRank.size());
  return at == rank.npos ? "" : rank.substr(at + 1);
}

// The name of a file in the folder of another.
std::string beside(const std::string& file, const std::string& name) {
  return (std::filesystem::path(file).parent_path() / name).string();
}

bool has_parts(const std::string& path) {
  try {
    Catalog catalog;
    const torch::Container file = torch::open_container(path, catalog);
    const pickle::Document& document = *file.document;
    const auto parts = document.as_pairs(
        document.find(document.root(), "frozen_param_fragments"));
    return parts && !parts->empty();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
    return true;
  }
}

}  // namespace

std::vector<Twin> lost_model_states(const std::string& root,
                                    const std::vector<std::string>& files) {
  const std::set<std::string> there(files.begin(), files.end());
  std::map<std::string, std::string> models;  // of a group, the first
  for (const std::string& file : files)
    if (const std::string rank = rank_of(io::base_name(file), kModel);
        !rank.empty())
      models.try_emplace(beside(file, group_of(rank)), file);
  std::vector<Twin> lost;
  for (const std::string& file : files) {
    const std::string rank = rank_of(io::base_name(file), kOptim);
    if (rank.empty()) continue;
    const std::string model = beside(file, rank + std::string(kModel));
    const auto other = models.find(beside(file, group_of(rank)));
    if (other != models.end() && !there.contains(model) &&
        !has_parts(io::join(root, other->second)))
      lost.push_back({model, other->second});
  }
  return lost;
}

Repair archive_renamed(const std::string& path, const std::string& name) {
  constexpr uint64_t kMostRecord = uint64_t{256} << 20;
  const auto stem = [](const std::string& file) {
    return std::filesystem::path(file).stem().string();
  };
  const io::Handle file = io::Handle::open_read(path);
  const zip::Archive archive = zip::Archive::read(file);
  std::vector<zip::Record> records;
  std::string root;
  for (const zip::Entry& entry : archive.entries()) {
    const size_t slash = entry.name.find('/');
    if (slash == entry.name.npos)
      throw input_error({path, {}}, "record {} is in no folder", entry.name);
    root = entry.name.substr(0, slash);
    records.push_back({.name = entry.name.substr(slash + 1),
                       .size = entry.size,
                       .content = zip::read_entry(file, entry, kMostRecord)});
  }
  // torch before 1.12 calls all of them "archive".
  zip::PlannedArchive plan =
      zip::plan_archive(root == stem(path) ? stem(name) : root, records);
  Repair made;
  made.size = plan.size;
  made.literals = std::move(plan.literals);
  return made;
}

}  // namespace ckpt::salvage
