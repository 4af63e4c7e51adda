// SPDX-License-Identifier: Apache-2.0
// Megatron-Core's local ("non-persistent") checkpoints, as
// nvidia-resiliency-ext's LocalCheckpointManager keeps them on the nodes'
// disks: a torch.save file for each rank, and copies of other ranks' files.
//
//   ROOT/SESSION/3/iter_0000007_3_local.pt    rank 3's own
//   ROOT/SESSION/3/iter_0000007_1_local.pt    a copy of rank 1's
//
//   MCoreTensorAwareStateDict
//     .common                a dict, the same in all
//     .sharded_state_dict    dicts and lists of ShardedTensor, ShardedObject
//     ._is_hollow            True: without its tensors
//
// Instances of classes are data here: attributes are read, nothing is built.
#include <algorithm>
#include <map>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/container.h"
#include "containers/torch/many.h"
#include "containers/torch/tensors.h"
#include "containers/torch/walk.h"
#include "formats/megatron/dist/catalog.h"
#include "formats/megatron/megatron.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/state/common.h"
#include "lib/io/file.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::megatron {
namespace {

using formats::ReadOptions;
using formats::Support;
using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

constexpr size_t kMostNested = 512;

struct LocalName {
  uint64_t iteration = 0;
  uint64_t rank = 0;
};

// "iter_0000007_3_local.pt"
std::optional<LocalName> local_name(std::string_view name) {
  if (!name.starts_with("iter_")) return std::nullopt;
  name.remove_prefix(5);
  const auto iteration = text::take_number(name);
  if (!iteration || !name.starts_with('_')) return std::nullopt;
  name.remove_prefix(1);
  const auto rank = text::take_number(name);
  if (!rank || name != "_local.pt") return std::nullopt;
  return LocalName{*iteration, *rank};
}

// Files of one iteration, by rank; a rank's own file is preferred to copies.
using Ranks = std::map<uint64_t, std::string>;
using Iterations = std::map<uint64_t, Ranks>;

void add_directory(const std::string& directory, Iterations& all) {
  const auto home = text::number<uint64_t>(io::base_name(directory));
  for (const std::string& name : io::list_directory(directory)) {
    const auto local = local_name(name);
    if (!local) continue;
    std::string& path = all[local->iteration][local->rank];
    if (path.empty() || home == local->rank) path = io::join(directory, name);
  }
}

// Takes a session's directory, one rank's in it, or one file.
Iterations find_local(const std::string& path) {
  Iterations all;
  if (!io::is_directory(path)) {
    if (const auto local = local_name(io::base_name(path)))
      all[local->iteration][local->rank] = path;
    return all;
  }
  add_directory(path, all);
  for (const std::string& name : io::list_directory(path))
    if (text::number<uint64_t>(name) && io::is_directory(io::join(path, name)))
      add_directory(io::join(path, name), all);
  return all;
}

Support supports_local(const std::string& path) {
  const Iterations all = find_local(path);
  if (all.empty()) return {false, "no iter_N_RANK_local.pt in it"};
  return {true, "holds " + text::printable(io::base_name(
                               all.rbegin()->second.begin()->second))};
}

// The newest of the iterations with the most ranks: what the manager itself
// takes for complete, as far as files can tell.
uint64_t choose(const std::string& path, const Iterations& all,
                Catalog& catalog) {
  size_t most = 0;
  for (const auto& [iteration, ranks] : all)
    most = std::max(most, ranks.size());
  uint64_t chosen = 0;
  for (const auto& [iteration, ranks] : all)
    if (ranks.size() == most) chosen = iteration;
  if (all.size() > 1)
    catalog.assumptions.push_back(
        fmt::format("iteration {}: the newest of {} with files of {} ranks",
                    chosen, all.size(), most));
  for (const auto& [iteration, ranks] : all)
    if (iteration > chosen)
      catalog.problems.push_back(
          warning("unfinished_save", {path, {}},
                  "iteration {} is newer, but of {} ranks only files are "
                  "here; {} is read",
                  iteration, ranks.size(), chosen));
  return chosen;
}

// One rank's file.
class RankPart {
 public:
  RankPart(const torch::Container& container, Catalog& catalog,
           std::map<std::string, size_t, std::less<>>& tensors,
           std::set<std::string>& carriers)
      : container_(container),
        document_(*container.document),
        catalog_(catalog),
        tensors_(tensors),
        carriers_(carriers) {
    std::vector<Id> storages;
    for (const auto& [node, use] : container.storages.uses)
      storages.push_back(node);
    holders_ = torch::mark_holders(document_, storages);
  }

  void add() {
    const Id root = document_.root();
    const std::string type = document_.callable_name(root);
    if (type.ends_with(" BasicTensorAwareStateDict"))
      throw unfaithful_error(
          {container_.path, {}},
          "a BasicTensorAwareStateDict: its tensors don't say where they are "
          "in the whole")
          .with_hint("--from torch shows one rank's file");
    if (!type.ends_with(" MCoreTensorAwareStateDict"))
      throw input_error({container_.path, {}},
                        "holds a {}, not megatron-core's state of a rank",
                        text::printable(type.empty() ? "value" : type));
    const Id hollow = attribute(root, "_is_hollow");
    if (document_.is(hollow, Type::kBool) && document_.boolean(hollow))
      throw input_error({container_.path, {}},
                        "is hollow: its tensors were taken out before it was "
                        "saved");
    walk(attribute(root, "sharded_state_dict"), 0);
  }
  Common common() const {
    return {container_.document, attribute(document_.root(), "common"),
            container_.path};
  }

 private:
  [[noreturn]] void fail(const std::string& key, std::string why) const {
    throw Error(ExitCode::kDamaged, {container_.path, key}, std::move(why));
  }

  Id attribute(Id object, std::string_view name) const {
    if (!document_.is(object, Type::kCall)) return kNoId;
    return document_.find(document_.call(object).state, name);
  }
  std::string key_of(Id object) const {
    const Id key = attribute(object, "key");
    if (!document_.is(key, Type::kString))
      fail({}, "a sharded value without a key");
    return std::string(document_.text(key));
  }
  Dims dims(Id object, std::string_view name, const std::string& key) const {
    const auto values = torch::as_ints(document_, attribute(object, name));
    if (!values || values->size() > kMaxRank)
      fail(key, fmt::format("its {} is not a list of numbers", name));
    Dims dims;
    for (const int64_t value : *values) {
      if (value < 0) fail(key, fmt::format("its {} is negative", name));
      dims.push_back(static_cast<uint64_t>(value));
    }
    return dims;
  }

  void walk(Id node, size_t depth) {
    if (depth > kMostNested) fail({}, "is nested too deeply");
    if (const auto pairs = document_.as_pairs(node)) {
      for (size_t i = 1; i < pairs->size(); i += 2)
        walk((*pairs)[i], depth + 1);
      return;
    }
    if (document_.is(node, Type::kList) || document_.is(node, Type::kTuple)) {
      for (const Id item : document_.items(node)) walk(item, depth + 1);
      return;
    }
    const std::string type = document_.callable_name(node);
    if (type.ends_with(" ShardedTensor")) return add_tensor(node);
    if (type.ends_with(" ShardedObject")) return add_object(node);
    fail({}, fmt::format("a {} among what is sharded",
                         text::printable(type.empty() ? "value" : type)));
  }

  // Where the part is in the global tensor.
  Piece place(Id node, const std::string& key, const Shape& shape,
              const torch::TensorRef& data) const {
    const Shape local = dims(node, "local_shape", key);
    const auto axes = document_.as_int(attribute(node, "prepend_axis_num"));
    if (!axes || *axes < 0 ||
        local.size() + static_cast<uint64_t>(*axes) != shape.size())
      fail(key, "its local shape and prepended axes don't make its rank");
    Piece piece;
    piece.box.offset = dims(node, "global_offset", key);
    piece.box.shape = Shape(static_cast<size_t>(*axes), 1);
    for (const uint64_t n : local) piece.box.shape.push_back(n);
    if (piece.box.offset.size() != shape.size() || !inside(piece.box, shape))
      fail(key, fmt::format("no box at {} of shape {} in {}",
                            to_string(piece.box.offset),
                            to_string(piece.box.shape), to_string(shape)));
    piece.extent = data.extent;
    piece.transform = data.transform;
    const Id range = attribute(node, "flattened_range");
    if (document_.is(range, Type::kCall)) return flat(range, key, data, piece);
    if (data.shape != local)
      fail(key, fmt::format("its data has shape {}, it says {}",
                            to_string(data.shape), to_string(local)));
    if (!data.extent.strides.empty()) {
      Dims strides(static_cast<size_t>(*axes), 0);
      for (const uint64_t n : data.extent.strides) strides.push_back(n);
      piece.extent.strides = strides;
    }
    return piece;
  }

  // slice(begin, end): `data` is that run of the part's elements.
  Piece flat(Id range, const std::string& key, const torch::TensorRef& data,
             Piece piece) const {
    const Id args = document_.call(range).args;
    const auto bounds = document_.is(args, Type::kTuple)
                            ? document_.items(args)
                            : std::span<const Id>();
    const auto begin =
        bounds.size() < 2 ? std::nullopt : document_.as_int(bounds[0]);
    const auto end =
        bounds.size() < 2 ? std::nullopt : document_.as_int(bounds[1]);
    if (!begin || !end || *begin < 0 || *end < *begin ||
        static_cast<uint64_t>(*end) > volume(piece.box) ||
        data.shape != Shape{static_cast<uint64_t>(*end - *begin)} ||
        !data.extent.strides.empty())
      fail(key, "its flattened_range does not fit its data");
    piece.flat =
        FlatRange{static_cast<uint64_t>(*begin), static_cast<uint64_t>(*end)};
    return piece;
  }

  void add_tensor(Id node) {
    const std::string key = key_of(node);
    const Shape shape = dims(node, "global_shape", key);
    const auto dtype = torch::as_dtype(document_, attribute(node, "dtype"));
    if (!dtype) fail(key, "its dtype is not one of torch's");
    if (!byte_size(*dtype, shape)) fail(key, "its shape overflows");
    const auto [at, fresh] = tensors_.emplace(key, catalog_.tensors.size());
    if (fresh)
      catalog_.tensors.push_back(
          {.name = key, .dtype = *dtype, .shape = shape});
    Tensor& tensor = catalog_.tensors[at->second];
    if (tensor.dtype != *dtype || tensor.shape != shape)
      fail(key, fmt::format("is {} {} here, {} {} in another rank's file",
                            name(*dtype), to_string(shape), name(tensor.dtype),
                            to_string(tensor.shape)));
    const Id stored = attribute(node, "data");
    // Another rank of its group has the data (fully parallel).
    if (document_.is(stored, Type::kNone)) return;
    const auto data =
        torch::as_tensor(document_, stored, container_.storages, key);
    if (!data || data->distributed) fail(key, "its data is not a tensor");
    if (data->dtype != *dtype)
      fail(key, fmt::format("its data is {}, it says {}", name(data->dtype),
                            name(*dtype)));
    Piece piece = place(node, key, shape, *data);
    if (volume(piece.box) != 0) tensor.pieces.push_back(std::move(piece));
  }

  void add_object(Id node) {
    const std::string key = key_of(node);
    const Dims at = dims(node, "global_offset", key);
    const Dims grid = dims(node, "global_shape", key);
    const Id data = attribute(node, "data");
    if (data == kNoId) fail(key, "has no data");
    if (data < holders_.size() && holders_[data]) carriers_.insert(key);
    const std::string name =
        object_key(key, {at.begin(), at.end()}, {grid.begin(), grid.end()});
    const auto same = [&](const Object& other) { return other.name == name; };
    // Replicas are not compared, as in Megatron.
    if (std::ranges::any_of(catalog_.objects, same)) return;
    catalog_.objects.push_back(
        {.name = name, .document = container_.document, .node = data});
  }

  const torch::Container& container_;
  const Document& document_;
  Catalog& catalog_;
  std::map<std::string, size_t, std::less<>>& tensors_;
  std::set<std::string>& carriers_;
  std::vector<bool> holders_;
};

// Random states and the like contain tensors, which the value alone lacks.
void leave_out(const std::set<std::string>& carriers, Catalog& catalog) {
  for (const std::string& key : carriers) {
    std::erase_if(catalog.objects, [&](const Object& object) {
      const auto parsed = parse_object_key(object.name);
      return parsed && parsed->key == key;
    });
    catalog.problems.push_back(
        warning("object_with_tensors", {catalog.path, {}},
                "{}: values with tensors in them are not read from local "
                "checkpoints, and left out (random states: load with "
                "--no-load-rng)",
                text::printable(key)));
  }
}

// Finds what ranks of a group left to one that is not here.
void check_parts(const Catalog& catalog, uint64_t iteration) {
  for (const Tensor& tensor : catalog.tensors) {
    if (!tensor.pieces.empty() || element_count(tensor.shape) == 0u) continue;
    throw input_error({catalog.path, tensor.name},
                      "no file of iteration {} here has a part of it",
                      iteration)
        .with_hint(
            "local checkpoints lie on the nodes' own disks: bring the files of "
            "all ranks into one directory");
  }
}

Catalog read_catalog_local(const std::string& path,
                           const ReadOptions& options) {
  Catalog catalog;
  catalog.format = "megatron_local";
  catalog.path = path;
  catalog.family = options.family;
  const Iterations all = find_local(path);
  if (all.empty())
    throw missing_error({path, {}},
                        "is not a local checkpoint of Megatron-Core: no "
                        "iter_N_RANK_local.pt");
  const uint64_t iteration = choose(path, all, catalog);
  catalog.version = std::to_string(iteration);
  std::vector<std::string> paths;
  for (const auto& [rank, file] : all.at(iteration)) paths.push_back(file);
  std::map<std::string, size_t, std::less<>> tensors;
  std::set<std::string> carriers;
  Common common;
  torch::open_each(paths, catalog, options,
                   [&](size_t, const torch::Container& container) {
                     RankPart part(container, catalog, tensors, carriers);
                     part.add();
                     if (!common.document) common = part.common();
                   });
  leave_out(carriers, catalog);
  check_parts(catalog, iteration);
  finish_dist_catalog(catalog, common);
  return catalog;
}

}  // namespace

std::unique_ptr<formats::Reader> make_local_reader() {
  return formats::reader_of("megatron_local", supports_local,
                            read_catalog_local);
}

}  // namespace ckpt::megatron
