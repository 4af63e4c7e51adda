// SPDX-License-Identifier: Apache-2.0
// Reads a checkpoint of OLMo-core up to 0.1.0 (v1.h).
#include <algorithm>
#include <set>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/olmo_core/shards.h"
#include "formats/olmo_core/sidecars.h"
#include "formats/olmo_core/v1/index.h"
#include "formats/olmo_core/v1/locate.h"
#include "formats/olmo_core/v1/optimizer.h"
#include "formats/olmo_core/v1/shards.h"
#include "formats/olmo_core/v1/v1.h"
#include "lib/io/file.h"
#include "lib/manifest.h"
#include "lib/text/format.h"

namespace ckpt::olmo_core::v1 {
namespace {

using formats::ReadOptions;
using formats::Support;
using text::printable;
using Severity = Problem::Severity;

constexpr std::string_view kDialect = "olmo_core";

std::string_view version_of(const Part& part) {
  switch (part.index.spelling) {
    case Spelling::kPair:
      return "before 2024-05-07";
    case Spelling::kPairs:
      return "before 2024-05-13";
    case Spelling::kSpecs:
      break;
  }
  return "0.1.0";
}

// Carries all other files below the checkpoint's directory unchanged: the
// trainer's state of each rank, config.yaml. Does not follow links to folders
// (a problem says so); strays among the parts' files already have a problem.
void add_sidecars(const Found& found, Catalog& catalog) {
  const auto is_part = [&](const std::string& below, bool) {
    if (below == kManifestName) return true;
    const size_t slash = below.rfind('/');
    const std::string folder =
        slash == below.npos ? std::string() : below.substr(0, slash);
    const std::string name = io::base_name(below);
    return std::ranges::find(found.parts, folder) != found.parts.end() &&
           (name == kIndexName || rank_of_file(name).has_value());
  };
  collect_sidecars(found.home, is_part,
                   "move the checkpoint into a folder of its own", catalog);
}

// How the parts were cut: flat shards over dp ranks, boxes over tp ranks.
class Survey {
 public:
  void add(const Part& part) {
    for (const Entry& entry : part.index.entries) {
      std::set<Dims> begins;
      uint32_t boxes = 0, flats = 0;
      for (const Shard& shard : entry.shards) {
        ++(shard.box ? boxes : flats);
        if (shard.box && shard.elements) begins.insert(shard.box->offset);
      }
      const bool sharded = entry.sharded.value_or(entry.shards.size() > 1);
      if (sharded) flat_ = std::max(flat_, flats);
      boxed_ = std::max(boxed_, boxes);
      distinct_ = std::max<uint64_t>(distinct_, begins.size());
    }
  }

  bool any_boxes() const { return boxed_ > 0; }
  bool any_sharded() const { return flat_ > 0 || boxed_ > 0; }
  Topology topology() const {
    Topology topology;
    topology.dp = std::max<uint32_t>(1, flat_);
    if (flat_ > 1 || boxed_ == 0) return topology;
    topology.tp = static_cast<uint32_t>(std::max<uint64_t>(1, distinct_));
    // A rank with nothing of the largest tensor is still a tp rank.
    if (boxed_ % topology.tp != 0) topology.tp = boxed_;
    topology.dp = boxed_ / topology.tp;
    return topology;
  }

 private:
  uint32_t flat_ = 0;
  uint32_t boxed_ = 0;
  uint64_t distinct_ = 0;
};

// What the boxes of a tensor say about its split.
TpRule rule_of_boxes(const Tensor& tensor) {
  if (tensor.pieces.empty()) return {};
  TpRule rule = TpRule::replicated();
  for (const Piece& piece : tensor.pieces) {
    if (piece.flat) return {};
    for (uint32_t d = 0; d < tensor.shape.size(); ++d) {
      if (piece.box.shape[d] == tensor.shape[d]) continue;
      if (rule.state == TpRule::State::kSplit && rule.dim != d) return {};
      rule = TpRule::split(d);
    }
  }
  return rule;
}

class Assembler {
 public:
  Assembler(const Found& found, const ReadOptions& options)
      : found_(found), options_(options) {
    catalog_.format = kFormat;
    catalog_.dialect = kDialect;
    catalog_.path = found.home;
    catalog_.family = options.family;
  }

  Catalog assemble() {
    for (const std::string& folder : found_.parts) {
      parts_.push_back(read_part(found_.home, folder, catalog_));
      survey_.add(parts_.back());
    }
    catalog_.version = version_of(parts_[0]);
    catalog_.topology = survey_.topology();
    for (Part& part : parts_) add(part);
    set_rules(catalog_);
    set_buffers();
    check_moments(catalog_);
    check_names();
    add_sidecars(found_, catalog_);
    return std::move(catalog_);
  }

 private:
  void add(Part& part) {
    const bool optim = part.folder == kOptimFolder || is_optimizer(part);
    if (optim) take_objects(part, catalog_, options_);
    for (size_t i = 0; i < part.tensors.size(); ++i) {
      Tensor& tensor = part.tensors[i];
      if (survey_.any_boxes()) tensor.tp = rule_of_boxes(tensor);
      if (!part.sharded[i]) whole_.insert(tensor.name);
      if (!names_.insert(tensor.name).second)
        throw input_error({found_.home, printable(tensor.name)},
                          "is a name in model/ and in optim/")
            .with_hint("open one of the two folders");
      catalog_.tensors.push_back(std::move(tensor));
    }
  }

  // Keeps whole what was whole although others were cut, and what the optimizer
  // does not know.
  void set_buffers() {
    std::unordered_set<std::string> params;
    for (const Object& object : catalog_.objects)
      if (group_of(object.name))
        for (std::string& name : parameter_names(object))
          params.insert(std::move(name));
    for (Tensor& tensor : catalog_.tensors) {
      const bool buffer = tensor.kind == Kind::model && !params.empty() &&
                          !params.contains(tensor.name);
      tensor.dp_replicated =
          tensor.shape.empty() || buffer ||
          (survey_.any_sharded() && whole_.contains(tensor.name));
    }
  }

  // Finds groups that name missing parameters.
  void check_names() {
    if (std::ranges::find(found_.parts, kModelFolder) == found_.parts.end())
      return;
    for (const Object& object : catalog_.objects) {
      if (!group_of(object.name)) continue;
      for (const std::string& name : parameter_names(object))
        if (!names_.contains(name))
          catalog_.problems.push_back(
              warning("missing_parameter",
                      {io::join(found_.home, kOptimFolder), printable(name)},
                      "{} names it, model/ does not have it", object.name));
    }
  }

  const Found& found_;
  const ReadOptions& options_;
  Catalog catalog_;
  std::vector<Part> parts_;
  Survey survey_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> whole_;  // not sharded
};

void note_followed(const Found& found, const std::string& path,
                   Catalog& catalog) {
  if (!found.chosen.empty())
    catalog.assumptions.push_back(
        fmt::format("{}: the newest complete checkpoint in {}",
                    printable(found.chosen), printable(path)));
  for (const std::string& name : found.unfinished)
    catalog.problems.push_back(
        warning("unfinished_save", {io::join(path, name), {}},
                "{} is newer, but an incomplete save; {} is read",
                printable(name), printable(found.chosen)));
}

[[noreturn]] void throw_unfinished(const Found& found) {
  const std::string folder = io::join(found.home, found.broken);
  throw input_error({folder, {}},
                    "has files of ranks, but no metadata.json, which is "
                    "written last: incomplete save")
      .with_hint(
          found.parts.empty()
              ? "use an earlier checkpoint"
              : fmt::format("use an earlier checkpoint, or open {} "
                            "alone",
                            printable(io::join(found.home, found.parts[0]))));
}

class V1Reader final : public formats::Reader {
 public:
  std::string_view name() const override { return kFormat; }

  Support supports(const std::string& path) const override {
    const Found found = locate(path);
    return {!found.home.empty(), found.why};
  }

  Catalog read_catalog(const std::string& path,
                       const ReadOptions& options) const override {
    Found found = locate(path);
    if (found.home.empty()) found = forced(path, found);
    if (!found.finished()) throw_unfinished(found);
    Catalog catalog = Assembler(found, options).assemble();
    if (found.home != path) catalog.root = path;
    note_followed(found, path, catalog);
    return catalog;
  }

 private:
  // --from olmo_core_v1: any directory with an index, so that what is wrong
  // with it is reported.
  static Found forced(const std::string& path, const Found& found) {
    const std::string home = io::is_directory(path) ? path : io::parent(path);
    Found result{.why = {}, .home = home};
    for (const std::string_view folder : {kModelFolder, kOptimFolder})
      if (io::is_file(io::join(io::join(home, folder), kIndexName)))
        result.parts.emplace_back(folder);
    if (result.parts.empty() && io::is_file(io::join(home, kIndexName)))
      result.parts = {""};
    if (result.parts.empty())
      throw missing_error(
          {path, {}}, "is not a checkpoint of OLMo-core 0.1: {}", found.why);
    return result;
  }
};

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return std::make_unique<V1Reader>();
}

}  // namespace ckpt::olmo_core::v1
