// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/write/rewrite.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/deepspeed/ranks.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/find/trainer.h"
#include "formats/runs/nanotron/write.h"
#include "formats/runs/ranks/flat_write.h"
#include "formats/runs/ranks/grid.h"
#include "formats/runs/ranks/original_write.h"
#include "formats/runs/ranks/rank_write.h"
#include "formats/runs/read/run.h"
#include "formats/runs/write/same_file.h"
#include "formats/runs/write/whole_step.h"
#include "formats/stray.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/number.h"
#include "lib/text/other_json.h"

namespace ckpt::runs {
namespace {

using text::printable;

class Rewriting {
 public:
  Rewriting(const Catalog& source, const Layout& layout)
      : source_(source),
        trainer_(find_trainer(trainer_of(source))),
        whole_(read_again(source)),
        ranks_(layout.topology.dp),
        old_ranks_(count_ranks()),
        fsdp_size_(fsdp_size_of(layout)),
        fuse_qkv_(layout.option(kFuseQkv)) {
    target_.catalog = formats::catalog_like(source, kRunFormat);
    target_.catalog.topology = source.topology;
    target_.catalog.topology.dp = ranks_;
    target_.catalog.topology.tp = layout.topology.tp;
    target_.catalog.topology.pp = layout.topology.pp;
  }

  Target build() {
    check_whole();
    check_fsdp_size();
    check_fuse_qkv();
    for (Container& one : whole_.containers) add(one);
    check_placed();
    for (const SourceFile& file : source_.file_list) settle(file);
    say_reset();
    // Payload first, then the other files; what completes a container
    // (.metadata) is the last of its files.
    target_.files = std::move(payload_);
    std::ranges::move(rest_, std::back_inserter(target_.files));
    return std::move(target_);
  }

 private:
  // The number of ranks that wrote it: from the containers, else from the rank
  // files.
  uint32_t count_ranks() const {
    uint64_t ranks = source_.topology.dp;
    std::vector<std::string> folders = {source_.path};
    for (const std::string& role : trainer_.roles)
      folders.push_back(io::join(source_.path, role));
    for (const Part& part : trainer_.parts)
      for (const std::string& folder : folders)
        if (part.part == "rng" && has(part.file, "r"))
          ranks =
              std::max<uint64_t>(ranks, names_like(folder, part.file).size());
    return static_cast<uint32_t>(ranks);
  }

  bool same_ranks() const { return ranks_ == old_ranks_; }

  // Part of a run, or a run with other names, would make a folder that the
  // trainer takes for a whole step.
  void check_whole() {
    check_whole_step(source_, whole_.catalog, in_containers(whole_),
                     trainer_.name);
  }

  void check_fuse_qkv() const {
    if (fuse_qkv_.empty()) return;
    throw unfaithful_error({source_.path, {}},
                           "--{}: a step for other ranks trains the same "
                           "parameters",
                           kFuseQkv)
        .with_hint("ckpt convert --to run --trainer torchtitan, with it");
  }

  void check_fsdp_size() const {
    if (!fsdp_size_ || std::ranges::any_of(whole_.containers, [](auto& one) {
          return one.shards > 0;
        }))
      return;
    throw unfaithful_error({source_.path, {}},
                           "--{}: a step of {} has no files of FSDP's ranks",
                           kFsdpSize, trainer_.name)
        .with_hint("leave it out");
  }

  Target lay_out(Container& one) {
    one.catalog.sidecars.clear();
    if (one.read == "dcp") {
      load_objects(one.catalog);
      if (!same_ranks()) drop_of_ranks(one.catalog);
      Layout layout;
      layout.format = "dcp";
      layout.topology.dp = ranks_;
      return formats::find_format("dcp").writer->lay_out(one.catalog, layout);
    }
    if (one.read == "ranks")
      return lay_out_ranks(io::join(source_.path, one.at), one.file,
                           one.catalog, source_grid(one), grid(one),
                           ranks_ == 1 && has_flat());
    if (one.read == "flat" && !one.units.empty() && one.original)
      return lay_out_original(io::join(source_.path, one.at), one.file,
                              one.catalog, one.units, grid(one));
    if (one.read == "flat" && !one.units.empty())
      return lay_out_flat(io::join(source_.path, one.at), one.file, one.catalog,
                          one.units, grid(one));
    if (one.read == "nanotron")
      return nanotron::lay_out(source_.path, one.catalog,
                               target_.catalog.topology);
    if (one.read == "deepspeed")
      return deepspeed::lay_out_ranks(one.catalog, ranks_);
    if (one.read == "torch" || one.read == "safetensors")
      return lay_out_same(one.catalog, source_.path, has_computed(source_));
    throw unfaithful_error({source_.path, {}},
                           "{} of {} is not written for other ranks", one.read,
                           trainer_.name)
        .with_hint(one.read == "flat"
                       ? "nothing proves how FSDP1's optimizer is cut: --to "
                         "dcp keeps it by name"
                       : "--to safetensors or dcp keeps model and optimizer");
  }

  static std::optional<uint32_t> fsdp_size_of(const Layout& layout) {
    const auto size = text::number(layout.option(kFsdpSize), UINT32_MAX);
    if (!size) return std::nullopt;
    return static_cast<uint32_t>(*size);
  }

  static Grid source_grid(const Container& one) {
    const uint64_t ranks = one.catalog.topology.dp;
    return {.replicas = static_cast<uint32_t>(ranks / one.shards),
            .shards = static_cast<uint32_t>(one.shards)};
  }

  // A job's fsdp_size stays what it was.
  Grid grid(const Container& one) const {
    const Grid before = source_grid(one);
    std::optional<uint32_t> size = fsdp_size_;
    if (!size && before.hybrid()) size = before.shards;
    return grid_of(ranks_, size, source_.path);
  }

  // True for FSDP1, which has no DTensors on one rank.
  bool has_flat() const {
    return std::ranges::any_of(whole_.containers, [](const Container& one) {
      return one.read == "flat";
    });
  }

  void drop_of_ranks(Catalog& catalog) {
    std::erase_if(catalog.objects, [&](const Object& object) {
      const bool of_ranks = std::ranges::any_of(
          trainer_.of_ranks, [&](const std::string& beginning) {
            return object.name.starts_with(beginning);
          });
      if (of_ranks) reset_.insert(object.name);
      return of_ranks;
    });
  }

  // Makes a container's target part of the run's.
  void add(Container& one) {
    Target target = lay_out(one);
    const auto files = static_cast<uint32_t>(target_.catalog.files.size());
    const size_t payload = target.catalog.files.size();
    uint32_t ties = 0;
    for (const Tensor& tensor : target_.catalog.tensors)
      ties = std::max(ties, tensor.tie);
    for (size_t i = 0; i < target.catalog.tensors.size(); ++i) {
      const size_t at = first_ + i;
      if (at >= target_.catalog.tensors.size())
        throw bug_error({source_.path, {}}, "more tensors than the run has");
      Tensor& mine = target_.catalog.tensors[at];
      Tensor& its = target.catalog.tensors[i];
      mine.pieces = std::move(its.pieces);
      for (Piece& piece : mine.pieces) piece.extent.file += files;
      mine.tie = its.tie == 0 ? 0 : its.tie + ties;
    }
    first_ += target.catalog.tensors.size();
    // Files without tensors are copied.
    if (is_file(one))
      for (size_t f = 0; f < payload; ++f)
        converted_.insert(io::join(source_.path, target.catalog.files[f].path));
    else
      for (const File& file : one.catalog.files) converted_.insert(file.path);
    for (File& file : target.catalog.files) {
      file.path = one.at.empty() || is_file(one) ? file.path
                                                 : io::join(one.at, file.path);
      target_.catalog.files.push_back(std::move(file));
    }
    for (size_t f = 0; f < target.files.size(); ++f) {
      TargetFile& file = target.files[f];
      if (!one.at.empty() && !is_file(one))
        file.path = io::join(one.at, file.path);
      for (CarriedRange& range : file.carried)
        range.source_file += static_cast<uint32_t>(one.base);
      (f < payload ? payload_ : rest_).push_back(std::move(file));
    }
    std::ranges::move(target.problems, std::back_inserter(target_.problems));
    std::ranges::move(target.assumptions,
                      std::back_inserter(target_.assumptions));
    if (one.read == "dcp") folders_.insert(one.at);
    if (one.read == "nanotron")
      for (FileFate& fate : target.fates)
        settled_.emplace(fate.path, std::move(fate));
  }

  // True if the container's files already have paths relative to the step.
  bool is_file(const Container& one) const {
    return one.read == "torch" || one.read == "safetensors";
  }

  void check_placed() const {
    if (first_ != target_.catalog.tensors.size())
      throw bug_error({source_.path, {}}, "{} of {} tensors are placed", first_,
                      target_.catalog.tensors.size());
  }

  // The part that a file is, its numbers and its folder.
  struct Place {
    const Part* part = nullptr;
    Numbers numbers;
    std::string folder;
  };
  std::optional<Place> place_of(const std::string& path) const {
    const auto try_in = [&](const std::string& folder) -> std::optional<Place> {
      std::string rest = path;
      if (!folder.empty()) {
        if (!path.starts_with(folder + "/")) return std::nullopt;
        rest = path.substr(folder.size() + 1);
      }
      for (const Part& part : trainer_.parts)
        if (const auto numbers = match(part.file, rest))
          return Place{&part, *numbers, folder};
      return std::nullopt;
    };
    for (const std::string& role : trainer_.roles)
      if (auto place = try_in(role)) return place;
    return try_in("");
  }

  void settle(const SourceFile& file) {
    const std::string where = io::join(source_.file_root, file.path);
    const std::string inside = source_.path + "/";
    if (!where.starts_with(inside)) {
      leave(file, "it lies beside the step that was followed to");
      return;
    }
    const std::string path = where.substr(inside.size());
    if (const auto found = settled_.find(path); found != settled_.end()) {
      target_.fates.push_back(
          {file.path, found->second.fate, found->second.reason});
      return;
    }
    if (converted_.contains(where) || is_index(path)) {
      target_.fates.push_back({file.path, Fate::kConverted, {}});
      return;
    }
    const auto place = place_of(path);
    if (place && !place->part->world.empty() && !same_ranks())
      return rewrite_world(file, path, where, *place);
    if (place && has(place->part->file, "r") && !same_ranks())
      return settle_rank(file, path, *place);
    // A single rank's file has no number.
    if (place && place->part->part == "rng" && ranks_ > 1 && old_ranks_ == 1) {
      reset_.insert(path);
      return leave(file, "it is of one rank");
    }
    if (formats::is_stray(file, where))
      return leave(file, io::why_unreadable(where));
    copy(path, where, file.bytes);
  }

  // True for .metadata and whatever else a container's writer makes anew.
  bool is_index(const std::string& path) const {
    for (const std::string& folder : folders_) {
      const std::string name = folder.empty() ? path
                               : path.starts_with(folder + "/")
                                   ? path.substr(folder.size() + 1)
                                   : "";
      if (name == ".metadata" ||
          (name.ends_with(".distcp") && name.find('/') == name.npos))
        return true;
    }
    return false;
  }

  void leave(const SourceFile& file, std::string why) {
    target_.fates.push_back({file.path, Fate::kLeftOut, std::move(why)});
  }

  void copy(const std::string& path, const std::string& where, uint64_t bytes) {
    TargetFile file;
    file.path = path;
    file.size = bytes;
    file.copy_of = where;
    rest_.push_back(std::move(file));
  }

  // Not every rank may have such a file: with pipeline stages the data's
  // position belongs to fewer.
  uint64_t files_of(const Place& place) const {
    uint64_t count = 1;
    for (const Name& name :
         names_like(io::join(source_.path, place.folder), place.part->file))
      count = std::max(count, name.numbers.at("r") + 1);
    return count;
  }

  void settle_rank(const SourceFile& file, const std::string& path,
                   const Place& place) {
    reset_.insert(path);
    if (!place.part->demanded)
      return leave(file, fmt::format("it is of one of {} ranks", old_ranks_));
    const auto name = [&](uint64_t rank) {
      Numbers numbers = place.numbers;
      numbers["r"] = rank;
      if (has(place.part->file, "W")) numbers["W"] = ranks_;
      const std::string filled = fill(place.part->file, numbers);
      return place.folder.empty() ? filled : io::join(place.folder, filled);
    };
    const uint64_t mine = place.numbers.at("r");
    bool any = false;
    for (uint64_t rank = mine; rank < ranks_; rank += files_of(place)) {
      copy(name(rank), io::join(source_.path, path), file.bytes);
      any = true;
    }
    if (!any) leave(file, fmt::format("there are {} ranks now", ranks_));
  }

  // {"FSDP_version": 2, "world_size": 2}
  void rewrite_world(const SourceFile& file, const std::string& path,
                     const std::string& where, const Place& place) {
    constexpr uint64_t kMaxConfig = 1 << 20;
    auto json = text::parse_or_discard<nlohmann::ordered_json>(
        io::read_file(where, kMaxConfig));
    if (!json.is_object() || !json.contains(place.part->world))
      return copy(path, where, file.bytes);
    json[place.part->world] = ranks_;
    rest_.push_back(formats::literal_file(path, json.dump(4)));
    target_.fates.push_back({file.path, Fate::kConverted, {}});
  }

  void say_reset() {
    if (reset_.empty()) return;
    std::string names;
    for (const std::string& name : reset_)
      names += (names.empty() ? "" : ", ") + printable(name);
    target_.problems.push_back(
        warning("of_ranks", {},
                "from {} to {}: the state of each rank can't be carried on "
                "({})",
                text::counted(old_ranks_, "rank"), ranks_, names));
    if (!trainer_.reset_hint.empty())
      target_.problems.push_back(
          warning("of_ranks", {}, "{}", trainer_.reset_hint));
  }

  const Catalog& source_;
  const Trainer& trainer_;
  Whole whole_;
  const uint32_t ranks_;
  const uint32_t old_ranks_;
  const std::optional<uint32_t> fsdp_size_;
  const std::string fuse_qkv_;
  Target target_;
  size_t first_ = 0;  // first of the target's tensors not yet placed
  std::vector<TargetFile> payload_, rest_;
  std::set<std::string> converted_;  // paths of the source's files
  std::set<std::string> folders_;    // DCP folders in the step
  std::set<std::string> reset_;
  // What a container's own rules say of files in the step beside it.
  std::map<std::string, FileFate> settled_;
};

}  // namespace

std::vector<bool> in_containers(Whole& whole) {
  std::vector<bool> inside(whole.catalog.tensors.size());
  for (Container& one : whole.containers) {
    const bool same = one.read == "torch" || one.read == "safetensors";
    const std::vector<bool> have =
        same ? have_places(one.catalog)
             : std::vector<bool>(one.catalog.tensors.size(), true);
    std::copy(have.begin(), have.end(),
              inside.begin() + static_cast<ptrdiff_t>(one.first));
  }
  return inside;
}

const std::string& trainer_of(const Catalog& source) {
  if (!source.run)
    throw unfaithful_error({source.path, {}},
                           "is not a step of a trainer: there is none whose "
                           "folder it could be written as")
        .with_hint("name a format: --to dcp, --to safetensors");
  return source.run->trainer;
}

Whole read_again(const Catalog& source) {
  auto whole = read_containers(source.path, trainer_of(source), {});
  if (!whole) throw bug_error({source.path, {}}, "a step without containers");
  return *std::move(whole);
}

Target rewrite(const Catalog& source, const Layout& layout) {
  return Rewriting(source, layout).build();
}

}  // namespace ckpt::runs
