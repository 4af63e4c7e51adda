// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "containers/hf/hf.h"
#include "containers/hf/index.h"
#include "containers/safetensors/header.h"
#include "containers/torch/container.h"
#include "containers/torch/tree.h"
#include "formats/modelopt/config.h"
#include "formats/modelopt/locate.h"
#include "formats/modelopt/modelopt.h"
#include "formats/modelopt/names.h"
#include "formats/modelopt/owners.h"
#include "lib/io/file.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::modelopt {
namespace {

using formats::Index;
using text::printable;
using Severity = Problem::Severity;

// Checks whether the tensors agree with config.json.

class Checker {
 public:
  Checker(Catalog& catalog, const Naming& naming, const Config& config)
      : catalog_(catalog), naming_(naming), config_(config) {}

  void run() {
    if (config_.any_model && config_.layers &&
        *config_.layers != config_.blocks.size())
      report(Severity::kDamage, "block_configs", "",
             fmt::format("config.json has {} block_configs for {} layers",
                         config_.blocks.size(), *config_.layers));
    for (const Tensor& tensor : catalog_.tensors) {
      const Place place = naming_.place(tensor.name);
      if (place.part != Part::kBlock) continue;
      Halves& halves = held_[place.block];
      const Half half = naming_.half(place.rest);
      halves.attention |= half == Half::kAttention || half == Half::kBoth;
      halves.ffn |= half == Half::kFfn || half == Half::kBoth;
      if (place.block < config_.blocks.size())
        check_tensor(tensor, place, half, config_.blocks[place.block]);
    }
    check_held();
  }

 private:
  struct Halves {
    bool attention = false;
    bool ffn = false;
  };

  void report(Severity severity, std::string kind, std::string tensor,
              std::string message) {
    catalog_.problems.push_back({severity, std::move(kind), catalog_.path,
                                 std::move(tensor), std::move(message)});
  }

  void check_held() {
    const uint64_t count =
        config_.any_model ? config_.blocks.size() : config_.layers.value_or(0);
    const bool known = find_naming(config_.model_type) != nullptr;
    // A hybrid's block is attention or ffn; its own rules say which.
    const bool hybrid = !naming_.shared.empty();
    for (uint64_t b = 0; b < std::min<uint64_t>(count, 100'000); ++b) {
      BlockConfig wanted;
      if (config_.any_model) wanted = config_.blocks[b];
      const auto found = held_.find(static_cast<uint32_t>(b));
      if (found == held_.end()) {
        if (wanted.attention || wanted.ffn) absent(b, count);
        continue;
      }
      if (!known || hybrid) continue;
      missing_half(b, "attention", wanted.attention, found->second.attention);
      missing_half(b, "ffn", wanted.ffn, found->second.ffn);
    }
  }

  // A checkpoint of some blocks lacks others by design: not damage.
  void absent(uint64_t block, uint64_t count) {
    report(Severity::kWarning, "missing_block", "",
           fmt::format("block {} of {} is not here", block, count));
  }

  void missing_half(uint64_t block, const char* half, bool wanted, bool held) {
    if (!wanted || held) return;
    report(Severity::kDamage, "missing_block", "",
           fmt::format("block {} has no {} tensors, and config.json does not "
                       "say no_op",
                       block, half));
  }

  void check_tensor(const Tensor& tensor, const Place& place, Half half,
                    const BlockConfig& block) {
    const bool removed = (half == Half::kAttention && !block.attention) ||
                         (half == Half::kFfn && !block.ffn);
    if (removed && naming_.shared.empty())
      report(Severity::kWarning, "removed_tensor", tensor.name,
             "is stored, though config.json says no_op");
    const auto heads = block.kv_heads && config_.head_dim
                           ? checked_mul(*block.kv_heads, *config_.head_dim)
                           : std::nullopt;
    const bool is_kv = place.rest == "self_attn.k_proj.weight" ||
                       place.rest == "self_attn.v_proj.weight";
    if (block.plain_attention && heads && is_kv)
      want(tensor, 0, *heads, "num_key_value_heads");
    const bool is_up = place.rest == "mlp.up_proj.weight" ||
                       place.rest == "mlp.gate_proj.weight";
    if (block.plain_ffn && block.intermediate && is_up)
      want(tensor, 0, *block.intermediate, "intermediate_size");
    if (block.plain_ffn && block.intermediate &&
        place.rest == "mlp.down_proj.weight")
      want(tensor, 1, *block.intermediate, "intermediate_size");
    if (block.experts && place.rest.starts_with("mlp.experts.") &&
        place.rest.find('.', sizeof("mlp.experts.") - 1) == place.rest.npos)
      want(tensor, 0, *block.experts, "num_local_experts");
  }

  void want(const Tensor& tensor, size_t dim, uint64_t rows, const char* key) {
    // Packed types count in other units.
    if (tensor.shape.size() <= dim || tensor.dtype == DType::u8) return;
    if (tensor.shape[dim] == rows) return;
    report(Severity::kDamage, "block_configs", tensor.name,
           fmt::format("is {}; by {} of its block in config.json dimension {} "
                       "is {}",
                       to_string(tensor.shape), key, dim, rows));
  }

  Catalog& catalog_;
  const Naming& naming_;
  const Config& config_;
  std::map<uint32_t, Halves> held_;
};

// Adds a problem for each half of a block that is missing or should not be
// there, and for sizes that differ from block_configs.
void check_blocks(Catalog& catalog, const Naming& naming,
                  const Config& config) {
  Checker(catalog, naming, config).run();
}

std::string_view name_of(Form form) {
  switch (form) {
    case Form::kShards:
      return kShards;
    case Form::kPickledShards:
      return kPickledShards;
    case Form::kPickledBlocks:
      return kPickledBlocks;
    default:
      return kBlocks;
  }
}

// An index's entry for a tensor: its place among the names, and its file.
struct Indexed {
  uint32_t place = 0;
  std::string_view file;
};

// Joins the files; a name may be in several of them.
class Assembly {
 public:
  Assembly(const std::string& path, const formats::ReadOptions& options)
      : path_(path), options_(options) {
    catalog_.format = kFormat;
    catalog_.path = path;
    catalog_.dialect = "hf";
    catalog_.family = options.family;
  }

  Catalog read() {
    files_ = locate(path_);
    if (files_.form == Form::kNone)
      throw missing_error(
          {path_, {}}, "no {} folder and no index of rank shards", kBlockFolder)
          .with_hint(
              "an ordinary Hugging Face directory is --from "
              "safetensors");
    catalog_.version = name_of(files_.form);
    if (!files_.index.empty())
      index_ = formats::read_index(path_, files_.index, files_.folder);
    if (files_.folder.empty())
      read_ranks();
    else
      read_blocks();
    join();
    finish();
    return std::move(catalog_);
  }

 private:
  struct Found {
    Tensor tensor;
    std::string file;     // name in the directory
    bool listed = false;  // the index names the file
  };

  void report(Severity severity, std::string kind, const std::string& file,
              std::string tensor, std::string message) {
    catalog_.problems.push_back({severity, std::move(kind),
                                 io::join(path_, file), std::move(tensor),
                                 std::move(message)});
  }

  void read_blocks() {
    // The peer's loader takes everything in the folder.
    for (const std::string& name : files_.names) read_file(name, true);
    for (const std::string& name : index_.files)
      if (!std::ranges::binary_search(files_.names, name))
        read_file(name, true);
  }

  void read_ranks() {
    const RankFiles ranks = rank_files(path_, index_);
    catalog_.topology.pp = ranks.world;
    for (const std::string& name : index_.files) read_file(name, true);
    for (const std::string& name : ranks.idle) read_file(name, false);
    for (const std::string& name : ranks.missing)
      report(Severity::kDamage, "missing_shard", name, {},
             fmt::format("there are {} ranks, and this file of one is missing",
                         ranks.world));
    for (const std::string& name : ranks.unread)
      report(Severity::kNote, "unread_file", name, {},
             "is not part of the checkpoint that " + printable(files_.index) +
                 " names");
  }

  void read_file(const std::string& name, bool listed) {
    const size_t first = found_.size();
    const std::string path = io::join(path_, name);
    if (is_pickled(files_.form))
      read_pickle(path);
    else
      read_tensors(path);
    for (size_t i = first; i < found_.size(); ++i) {
      found_[i].file = name;
      found_[i].listed = listed;
    }
  }

  void read_tensors(const std::string& path) {
    const io::Handle file = io::Handle::open_read(path);
    safetensors::Header header = safetensors::read_header(file);
    const auto number = static_cast<uint32_t>(catalog_.files.size());
    catalog_.files.push_back({.path = path, .size = file.size()});
    for (safetensors::Entry& entry : header.entries)
      found_.emplace_back().tensor =
          safetensors::tensor_of(std::move(entry), number);
    if (header.metadata) keep_metadata(*header.metadata);
  }

  void read_pickle(const std::string& path) {
    const torch::Container container =
        torch::open_container(path, catalog_, options_);
    torch::Tree tree = torch::walk(container, container.document->root());
    for (const torch::NamedTensor& named : tree.tensors) {
      Tensor& tensor = found_.emplace_back().tensor;
      tensor = torch::make_tensor(named.name, named.ref);
    }
    tree.tensors.clear();
    torch::add_to_catalog(catalog_, container, tree);
  }

  // The peer writes {"format": "pt"} everywhere, or nothing.
  void keep_metadata(const safetensors::Metadata& metadata) {
    if (!metadata_) {
      metadata_ = std::make_shared<pickle::Document>();
      metadata_->set_root(metadata_->add_container(pickle::Type::kDict));
    }
    const pickle::Id root = metadata_->root();
    for (const auto& [key, value] : metadata)
      if (metadata_->find(root, key) == pickle::kNoId)
        metadata_->set(root, key, metadata_->add_string(value));
  }

  // One tensor per name, in index order; tensors not in the index follow in
  // file order.
  void join() {
    std::unordered_map<std::string_view, Indexed> indexed;
    for (uint32_t i = 0; const Index::Weight& weight : index_.weights)
      indexed.emplace(weight.tensor, Indexed{i++, index_.files[weight.file]});
    check_promises(indexed);
    const auto place = [&](const Found* found) {
      const auto at = indexed.find(found->tensor.name);
      const bool known = at != indexed.end();
      return std::tuple(known ? at->second.place : UINT32_MAX,
                        known && at->second.file != found->file);
    };
    std::vector<const Found*> order;
    for (const Found& found : found_) order.push_back(&found);
    std::ranges::stable_sort(order, {}, place);
    std::unordered_map<std::string_view, size_t> taken;
    for (const Found* found : order) {
      const auto [known, first] =
          taken.emplace(found->tensor.name, catalog_.tensors.size());
      if (!first) {
        add_copy(catalog_.tensors[known->second], *found);
        continue;
      }
      catalog_.tensors.push_back(found->tensor);
      if (!index_.path.empty() && !indexed.contains(found->tensor.name))
        unindexed(*found);
    }
  }

  void check_promises(
      const std::unordered_map<std::string_view, Indexed>& indexed) const {
    std::unordered_map<std::string_view, bool> kept;
    for (const Found& found : found_) {
      const auto at = indexed.find(found.tensor.name);
      if (at != indexed.end() && at->second.file == found.file)
        kept[found.tensor.name] = true;
    }
    for (const Index::Weight& weight : index_.weights)
      if (!kept.contains(weight.tensor))
        throw input_error({index_.path, weight.tensor},
                          "the index says it is in {}, but it is not",
                          printable(index_.files[weight.file]));
  }

  // No loader reads what is in a file that the index does not name.
  void unindexed(const Found& found) {
    report(found.listed ? Severity::kWarning : Severity::kDamage,
           "unindexed_tensor", found.file, found.tensor.name,
           found.listed ? "is not in the index"
                        : "is in a file that the index does not name: loaders "
                          "do not see it");
  }

  // A second copy must have the first's type; its elements are compared when
  // they are read.
  void add_copy(Tensor& tensor, const Found& found) const {
    const Tensor& copy = found.tensor;
    if (copy.dtype != tensor.dtype || copy.shape != tensor.shape)
      throw input_error({io::join(path_, found.file), copy.name},
                        "is {} {}, in {} it is {} {}", name(copy.dtype),
                        to_string(copy.shape),
                        printable(io::base_name(
                            catalog_.files[tensor.pieces[0].extent.file].path)),
                        name(tensor.dtype), to_string(tensor.shape));
    tensor.pieces.insert(tensor.pieces.end(), copy.pieces.begin(),
                         copy.pieces.end());
  }

  void finish() {
    uint64_t bytes = 0;  // copies count; parts of real files: no overflow
    for (const Found& found : found_) bytes += byte_size(found.tensor);
    uint64_t once = 0;
    for (const Tensor& tensor : catalog_.tensors) once += byte_size(tensor);
    if (!index_.path.empty())
      formats::check_index_metadata(index_, std::array{bytes, once},
                                    catalog_.problems);
    if (metadata_)
      catalog_.objects.push_back(
          {std::string(safetensors::kMetadata), metadata_, metadata_->root()});
    formats::add_sidecars(path_, catalog_);
    formats::detect_dialect(path_, catalog_);
    if (const auto config = config_of(catalog_))
      check_blocks(catalog_, naming_of(catalog_), *config);
    catalog_.assumptions.push_back(
        fmt::format("{}: {}", catalog_.version,
                    files_.index.empty() ? files_.folder : files_.index));
  }

  const std::string& path_;
  const formats::ReadOptions& options_;
  Files files_;
  Index index_;
  std::vector<Found> found_;
  std::shared_ptr<pickle::Document> metadata_;
  Catalog catalog_;
};

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return formats::reader_of(kFormat, supports, formats::read_with<Assembly>);
}

}  // namespace ckpt::modelopt
