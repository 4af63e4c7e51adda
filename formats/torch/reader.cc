// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "containers/hf/index.h"
#include "containers/hf/weight_names.h"
#include "containers/torch/container.h"
#include "containers/torch/many.h"
#include "containers/torch/tree.h"
#include "formats/fsdp/expand.h"
#include "formats/fsdp/fairscale.h"
#include "formats/fsdp/rank_files.h"
#include "formats/torch/locate.h"
#include "formats/torch/rank_shares.h"
#include "formats/torch/rank_tensors.h"
#include "formats/torch/torch.h"
#include "lib/io/file.h"
#include "lib/pickle/json.h"
#include "lib/text/format.h"

namespace ckpt::torch {
namespace {

using formats::Support;
using text::printable;
using Severity = Problem::Severity;

constexpr std::string_view kFormat = "torch";

Support supports_file(const std::string& path) {
  if (is_bin_index(path)) return {true, "is the index of torch files"};
  Sniff sniffed = sniff(path);
  const bool yes = sniffed.what == Sniffed::kTorchZip ||
                   sniffed.what == Sniffed::kTorchLegacy ||
                   sniffed.what == Sniffed::kTorchTar;
  return {yes, std::move(sniffed.why)};
}

Support supports_directory(const std::string& path) {
  std::optional<Files> files;
  try {
    files = locate(path);
  } catch (const Error&) {
    return {true, "holds an incomplete set of .bin files"};
  }
  if (!files) {
    const size_t others = count_torch_names(path);
    if (others > 1)
      return {false, fmt::format("{} .pt, .pth, .bin or .ckpt files in it that "
                                 "don't belong together: name the one to open",
                                 others)};
    return {false, "no pytorch_model.bin, no index of .bin files"};
  }
  if (files->ranks || !files->flat.empty())
    return {true, "holds a file per rank with parts of tensors"};
  return {true, "holds " + printable(files->index.empty() ? files->names[0]
                                                          : files->index)};
}

std::string version_of(const Container& container) {
  switch (container.kind) {
    case ContainerKind::kZip:
      return "zip " + container.version;
    case ContainerKind::kLegacy:
      return "legacy " + container.version;
    case ContainerKind::kTar:
      return "tar";
  }
  return {};
}

struct OpenFile {
  Container container;
  Tree tree;
};

// Joins the files of a checkpoint.
class Assembly {
 public:
  Assembly(const std::string& path, const formats::ReadOptions& options)
      : options_(options) {
    catalog_.format = kFormat;
    catalog_.path = path;
    catalog_.family = options.family;
  }

  void open(const std::vector<std::string>& paths) {
    open_each(paths, catalog_, options_, [&](size_t, Container container) {
      if (container.constants && paths.size() > 1)
        throw input_error({container.path, {}},
                          "is a TorchScript archive, which stands alone");
      OpenFile& file = files_.emplace_back();
      file.container = std::move(container);
      file.tree = walk(file.container, file.container.document->root());
      catalog_.version = version_of(file.container);
    });
  }

  // Takes everything in the one file, and its nesting.
  void take_single() {
    const OpenFile& file = files_.front();
    if (file.container.constants) return take_script();
    add_to_catalog(catalog_, file.container, file.tree);
    set_skeleton(catalog_, file.container, file.tree);
    note_parts();
  }

  // Takes a TorchScript module: the tensors by the paths of their attributes,
  // as its state_dict() has them, and those of its code. Attributes of other
  // kinds are of use to its code alone, which is not read.
  void take_script() {
    OpenFile& file = files_.front();
    const Container& constants = *file.container.constants;
    OpenFile code{constants,
                  walk(constants, constants.document->root(), "CONSTANTS")};
    for (OpenFile* part : {&file, &code}) {
      part->tree.objects.clear();
      add_to_catalog(catalog_, part->container, part->tree);
    }
    catalog_.version += " of TorchScript";
    catalog_.problems.push_back(
        remark("script", {file.container.path, {}},
               "is a TorchScript archive: its tensors are read, its code and "
               "other attributes are not"));
  }

  // Takes files with different tensors.
  void take_all() {
    std::unordered_map<std::string_view, std::string_view> holders;
    for (const OpenFile& file : files_) {
      for (const NamedTensor& tensor : file.tree.tensors) {
        const auto [it, first] =
            holders.emplace(tensor.name, file.container.path);
        if (!first)
          throw input_error({catalog_.path, printable(tensor.name)},
                            "is in two files: {} and {}",
                            printable(io::base_name(it->second)),
                            printable(io::base_name(file.container.path)));
      }
    }
    for (const OpenFile& file : files_) add(file);
  }

  void take_indexed(const std::string& directory, const formats::Index& index) {
    std::vector<std::vector<std::string_view>> found;
    for (const OpenFile& file : files_) {
      auto& names = found.emplace_back();
      for (const NamedTensor& tensor : file.tree.tensors)
        names.push_back(tensor.name);
    }
    const auto taken =
        formats::select_indexed(directory, index, found, catalog_.problems);
    std::vector<std::set<uint32_t>> wanted(files_.size());
    std::set<std::pair<uint32_t, std::string_view>> copies;
    for (const formats::Located& at : taken) {
      wanted[at.file].insert(at.tensor);
      if (at.copy) copies.emplace(at.file, found[at.file][at.tensor]);
    }
    std::vector<Tensor> second;
    for (size_t f = 0; f < files_.size(); ++f) {
      OpenFile file{files_[f].container, {}};
      const Tree& tree = files_[f].tree;
      file.tree.objects = tree.objects;
      file.tree.problems = tree.problems;
      for (const uint32_t t : wanted[f])
        file.tree.tensors.push_back(tree.tensors[t]);
      const size_t before = catalog_.tensors.size();
      add(file);
      if (copies.empty()) continue;
      const auto tail = std::stable_partition(
          catalog_.tensors.begin() + static_cast<ptrdiff_t>(before),
          catalog_.tensors.end(), [&](const Tensor& tensor) {
            return !copies.contains({static_cast<uint32_t>(f), tensor.name});
          });
      std::move(tail, catalog_.tensors.end(), std::back_inserter(second));
      catalog_.tensors.erase(tail, catalog_.tensors.end());
    }
    formats::add_copies(catalog_, std::move(second));
    formats::check_index_metadata(index, std::array{bytes(true), bytes(false)},
                                  catalog_.problems);
  }

  // Takes files of ranks, with parts of the same tensors. `sets[r]` are rank
  // r's, in the order in which they were opened; none if their names don't
  // say whose they are.
  void take_ranks(const std::vector<std::vector<std::string>>& sets) {
    const auto ranks = ranks_of_files(sets);
    std::vector<RankFile> trees;
    for (size_t f = 0; f < files_.size(); ++f)
      trees.push_back({&files_[f].tree, ranks.empty() ? f : ranks[f]});
    const RankShares shares(trees, sets.size());
    take_parts(
        nullptr,
        [&](size_t file) { return ranks.empty() ? file : ranks[file]; },
        sets.size(), &shares);
    fsdp::expand_given(catalog_, options_);
    note_parts();
  }

  // Takes files of ranks that share FSDP's flat parameters: `sets[r]` are rank
  // r's, in the order in which they were opened.
  void take_flat(const std::vector<std::vector<std::string>>& sets) {
    const auto ranks = ranks_of_files(sets);
    std::vector<fsdp::ShardMetadata> stored;
    if (options_.flat_params_file.empty()) stored = read_metadata(sets.size());
    fsdp::FlatParameters all;
    if (!stored.empty()) all = stored[0].all;
    if (!options_.flat_params_file.empty())
      all = fsdp::read_flat_params(options_.flat_params_file);
    const auto padded = take_parts(
        &all, [&](size_t file) { return ranks[file]; }, sets.size());
    if (stored.empty()) {
      fsdp::expand_given(catalog_, options_, padded);
    } else {
      fsdp::check_padding(stored, catalog_);
      fsdp::expand(catalog_, all, padded);
      fsdp::finish(stored[0], catalog_);
    }
    catalog_.topology.dp = static_cast<uint32_t>(sets.size());
    note_parts();
  }

  Catalog& catalog() { return catalog_; }

 private:
  void add(const OpenFile& file) {
    OpenFile own{file.container, file.tree};
    std::erase_if(own.tree.objects, [&](const NamedObject& object) {
      return is_known(file.container, object);
    });
    add_to_catalog(catalog_, own.container, own.tree);
  }

  // An object that is the same in several files counts once; a different value
  // is worth a note.
  bool is_known(const Container& container, const NamedObject& object) {
    constexpr uint64_t kCompared = 1000;
    const auto text =
        pickle::to_json(*container.document, object.node, kCompared)
            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    const auto [it, first] = objects_.emplace(object.name, text);
    if (!first && it->second != text)
      catalog_.problems.push_back(
          remark("object_differs", {container.path, object.name},
                 "differs from an earlier file's; that one is kept"));
    return !first;
  }

  static std::vector<size_t> ranks_of_files(
      const std::vector<std::vector<std::string>>& sets) {
    std::vector<size_t> ranks;
    for (size_t r = 0; r < sets.size(); ++r)
      ranks.insert(ranks.end(), sets[r].size(), r);
    return ranks;
  }

  template <class RankOf>
  std::unordered_set<std::string> take_parts(
      const fsdp::FlatParameters* flat, RankOf rank_of, size_t ranks,
      const RankShares* shares = nullptr) {
    RankTensors tensors(
        catalog_, flat, shares,
        options_.shard_dims_file.empty()
            ? families::Rules()
            : families::Rules::from_file(options_.shard_dims_file));
    for (size_t f = 0; f < files_.size(); ++f) {
      const OpenFile& file = files_[f];
      OpenFile rest{file.container, {}};
      rest.tree.objects = file.tree.objects;
      rest.tree.problems = file.tree.problems;
      for (const NamedTensor& tensor : file.tree.tensors)
        tensors.add(file.container.path, rank_of(f), tensor);
      add(rest);
    }
    auto padded = tensors.finish(ranks);
    const auto [parts, own] = tensors.counts();
    if (parts > 0)
      catalog_.assumptions.push_back(
          fmt::format("{} tensors of optimizer state: each rank has a run of "
                      "its part of a flat parameter, joined in their order",
                      parts));
    if (own > 0)
      catalog_.problems.push_back(remark(
          "own_tensors", {catalog_.path, {}},
          "{} tensors are each rank's own, and nothing says how they join: "
          "they are kept apart, with the file's name before theirs",
          own));
    return padded;
  }

  // fairscale's metadata, one per rank; or none at all.
  std::vector<fsdp::ShardMetadata> read_metadata(size_t ranks) const {
    std::vector<fsdp::ShardMetadata> stored;
    for (const OpenFile& file : files_)
      if (auto one = fsdp::read_shard_metadata(*file.container.document,
                                               file.container.path))
        stored.push_back(*std::move(one));
    if (!stored.empty() && stored.size() != ranks)
      throw input_error({catalog_.path, {}},
                        "{} of {} ranks have metadata of their shards",
                        stored.size(), ranks);
    return stored;
  }

  // `once`: count only one of a tensor's several names.
  uint64_t bytes(bool once) const {
    uint64_t sum = 0;
    std::set<uint32_t> ties;
    for (const Tensor& tensor : catalog_.tensors)
      if (tensor.tie == 0 || !once || ties.insert(tensor.tie).second)
        sum += byte_size(tensor);
    return sum;
  }

  // Notes that absent ranks hold the rest.
  void note_parts() {
    for (const Tensor& tensor : catalog_.tensors) {
      std::set<std::pair<Dims, Dims>> boxes;
      uint64_t held = 0;
      for (const Piece& piece : tensor.pieces)
        if (boxes.emplace(piece.box.offset, piece.box.shape).second)
          held += volume(piece.box);
      const uint64_t all = element_count(tensor.shape).value_or(0);
      if (held >= all) continue;
      catalog_.problems.push_back(
          warning("missing_parts", {catalog_.path, tensor.name},
                  "{} of {} elements are here; the files of the other "
                  "ranks hold the rest (open their directory)",
                  held, all));
    }
  }

  const formats::ReadOptions& options_;
  Catalog catalog_;
  std::vector<OpenFile> files_;
  std::unordered_map<std::string, std::string> objects_;
};

void read_indexed(const std::string& directory, const std::string& name,
                  Assembly& assembly, std::vector<std::string>& unread) {
  const formats::Index index = formats::read_index(directory, name);
  assembly.open(io::join_each(directory, index.files));
  assembly.take_indexed(directory, index);
  std::erase_if(unread, [&](const std::string& file) {
    return std::ranges::binary_search(index.files, file);
  });
}

void read_directory(const std::string& directory,
                    const formats::ReadOptions& options, Assembly& assembly) {
  auto files = locate(directory, !options.flat_params_file.empty());
  if (!files)
    throw missing_error({directory, {}},
                        "no pytorch_model.bin, no index of .bin files and no "
                        "files of ranks");
  if (!files->index.empty()) {
    read_indexed(directory, files->index, assembly, files->unread);
    formats::check_opened_unasked(directory, files->index,
                                  assembly.catalog().problems);
  } else if (!files->flat.empty()) {
    std::vector<std::string> names;
    for (const auto& rank : files->flat)
      names.insert(names.end(), rank.begin(), rank.end());
    assembly.open(io::join_each(directory, names));
    assembly.take_flat(files->flat);
  } else {
    // Parts are joined in the order of the ranks: 2 before 10.
    std::vector<std::vector<std::string>> sets;
    if (files->ranks) sets = fsdp::by_rank(files->names);
    if (sets.size() < 2) sets.clear();
    if (files->ranks && sets.empty())
      for (const std::string& lost : fsdp::lost_of_ranks(files->names))
        assembly.catalog().problems.push_back(
            damage("missing_rank", {io::join(directory, lost), {}},
                   "is missing; the other ranks have theirs"));
    if (!sets.empty()) files->names.clear();
    for (const auto& rank : sets)
      files->names.insert(files->names.end(), rank.begin(), rank.end());
    assembly.open(io::join_each(directory, files->names));
    formats::check_has_index(directory, files->names,
                             assembly.catalog().problems);
    if (files->names.size() == 1)
      formats::check_opened_unasked(directory, files->names[0],
                                    assembly.catalog().problems);
    if (files->ranks)
      assembly.take_ranks(sets);
    else if (files->names.size() == 1)
      assembly.take_single();
    else
      assembly.take_all();
  }
  Catalog& catalog = assembly.catalog();
  if (!files->flat.empty())
    catalog.assumptions.push_back(fmt::format(
        "{} ranks' files with flat parameters: their order is the numbers' in "
        "the names, {} first",
        files->flat.size(), printable(files->flat[0][0])));
  if (files->ranks)
    catalog.assumptions.push_back(
        fmt::format("{} files: each holds one rank's parts of the same tensors",
                    files->names.size()));
  for (const std::string& name : files->unread)
    catalog.problems.push_back(remark("unread_file",
                                      {io::join(directory, name), {}},
                                      "is not part of the checkpoint"));
  formats::add_sidecars(directory, catalog);
}

Support supports(const std::string& path) {
  return io::is_directory(path) ? supports_directory(path)
                                : supports_file(path);
}

Catalog read_catalog(const std::string& path,
                     const formats::ReadOptions& options) {
  Assembly assembly(path, options);
  const bool directory = io::is_directory(path);
  std::vector<std::string> unread;
  if (directory) {
    read_directory(path, options, assembly);
  } else if (is_bin_index(path)) {
    read_indexed(io::parent(path), io::base_name(path), assembly, unread);
  } else {
    assembly.open({path});
    assembly.take_single();
  }
  formats::detect_dialect(directory ? path : io::parent(path),
                          assembly.catalog());
  return std::move(assembly.catalog());
}

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return formats::reader_of(kFormat, supports, read_catalog);
}

}  // namespace ckpt::torch
