// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "ckpt/error.h"
#include "formats/runs/file_names.h"
#include "formats/runs/merge.h"
#include "formats/runs/order.h"
#include "formats/runs/pattern.h"
#include "formats/runs/preorder.h"
#include "formats/torch/torch.h"
#include "lib/in_order.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using text::printable;

constexpr std::string_view kOfOneFile[] = {"missing_parts"};

// True if the only piece is whole, as in one rank's file.
bool is_whole(const Tensor& tensor) {
  return tensor.pieces.size() == 1 && !tensor.pieces[0].flat &&
         tensor.pieces[0].box == Box::whole(tensor.shape);
}

bool is_run(const Tensor& tensor) {
  if (tensor.shape.empty() || !whole_number(tensor.param)) return true;
  return tensor.shape.size() == 1 && is_whole(tensor) &&
         tensor.pieces[0].extent.strides.empty();
}

// Joins the ranks' tensors of the same name.
class Joiner {
 public:
  explicit Joiner(RankCatalog& out, bool join_runs)
      : out_(out), join_(join_runs) {}

  void add(const std::string& path, uint64_t rank, Catalog one) {
    Catalog& all = out_.catalog;
    std::vector<Tensor> tensors = std::move(one.tensors);
    one.tensors.clear();
    if (rank > 0) one.objects.clear();
    // FSDP1 has only runs; an FSDP2 DTensor may be whole on one rank too.
    if (rank == 0) join_ = join_ && std::ranges::all_of(tensors, is_run);
    const auto files = static_cast<uint32_t>(all.files.size());
    Merger(all).add(std::move(one), kOfOneFile);
    for (Tensor& tensor : tensors) {
      for (Piece& piece : tensor.pieces) piece.extent.file += files;
      tensor.tie = 0;
      add(path, rank, std::move(tensor));
    }
  }

  void finish(uint64_t ranks, const std::string& path) const {
    for (const auto& [name, entry] : index_)
      if (entry.count != ranks)
        throw input_error({path, printable(name)},
                          "is in the files of {} of {} ranks", entry.count,
                          ranks)
            .with_hint("the files are of different saves; fetch them again");
  }

 private:
  struct Entry {
    size_t tensor = 0;
    uint64_t count = 0;
    size_t runs = SIZE_MAX;  // in out_.runs
  };

  void add(const std::string& path, uint64_t rank, Tensor tensor) {
    auto& tensors = out_.catalog.tensors;
    const bool run = join_ && tensor.shape.size() == 1 && is_run(tensor);
    const auto [it, first] =
        index_.try_emplace(tensor.name, Entry{.tensor = tensors.size()});
    Entry& entry = it->second;
    if (!first && entry.count != rank)
      throw input_error({path, printable(tensor.name)},
                        "is not in the files of all ranks before");
    if (first && rank > 0)
      throw input_error({path, printable(tensor.name)},
                        "is in the file of rank {}, not in that of rank 0",
                        rank);
    ++entry.count;
    if (first && run) {
      entry.runs = out_.runs.size();
      out_.runs.push_back({.tensor = tensors.size(), .lengths = {}});
    }
    if (run) out_.runs[entry.runs].lengths.push_back(tensor.shape[0]);
    if (first) {
      tensors.push_back(std::move(tensor));
      return;
    }
    Tensor& whole = tensors[entry.tensor];
    if (run != (entry.runs != SIZE_MAX) || whole.dtype != tensor.dtype)
      throw input_error({path, printable(tensor.name)},
                        "is {} {}, in the files of other ranks {} {}",
                        name(tensor.dtype), to_string(tensor.shape),
                        name(whole.dtype), to_string(whole.shape));
    if (run) return add_run(path, whole, tensor);
    if (whole.shape != tensor.shape)
      throw input_error({path, printable(tensor.name)},
                        "has shape {}, in the files of other ranks {}",
                        to_string(tensor.shape), to_string(whole.shape));
    std::ranges::move(tensor.pieces, std::back_inserter(whole.pieces));
  }

  void add_run(const std::string& path, Tensor& whole, Tensor& part) const {
    const uint64_t at = whole.shape[0];
    const auto length = checked_add(at, part.shape[0]);
    if (!length || !byte_size(whole.dtype, Shape({*length})))
      throw input_error({path, printable(part.name)}, "overflows");
    whole.shape[0] = *length;
    Piece piece = std::move(part.pieces[0]);
    piece.box.offset[0] = at;
    whole.pieces.push_back(std::move(piece));
  }

  RankCatalog& out_;
  bool join_;
  std::map<std::string, Entry> index_;
};

// The parameters of a flat unit, one after another.
struct Unit {
  std::string name;  // "", "model.layers.0."
  std::vector<Parameter> parameters;
  uint64_t elements = 0;
};

uint64_t elements_of(const Parameter& parameter) {
  return element_count(parameter.shape).value_or(0);
}

// "model.layers.3." for a name below a numbered module; else nothing.
std::optional<std::pair<std::string, uint64_t>> layer_of(
    const std::string& name) {
  for (size_t at = 0; (at = name.find('.', at)) != name.npos;) {
    const size_t begin = ++at;
    const size_t end = name.find('.', begin);
    if (end == name.npos) return std::nullopt;
    if (const auto number = whole_number(name.substr(begin, end - begin)))
      return std::pair{name.substr(0, end + 1), *number};
  }
  return std::nullopt;
}

// The root's own parameters, then each layer's, as FSDP's auto-wrap of decoder
// layers arranges them.
std::vector<Unit> units_of(const ParameterOrder& order) {
  std::vector<Unit> units(1);
  std::map<std::string, size_t> known;
  for (const Parameter& parameter : order.parameters) {
    size_t unit = 0;
    if (const auto layer = layer_of(parameter.name)) {
      const auto [it, fresh] = known.emplace(layer->first, units.size());
      if (fresh) units.push_back({.name = layer->first});
      unit = it->second;
    }
    units[unit].elements += elements_of(parameter);
    units[unit].parameters.push_back(parameter);
  }
  return units;
}

// Cuts one state's flat tensor into its parameters.
void cut_run(const Tensor& flat, const RankCatalog::Runs& runs,
             const Unit& unit, std::vector<Tensor>& out) {
  const uint64_t item = element_size(flat.dtype);
  uint64_t begin = 0;
  for (const Parameter& parameter : unit.parameters) {
    const uint64_t end = begin + elements_of(parameter);
    Tensor tensor = flat;
    tensor.param = parameter.name;
    tensor.name = parameter.name + "." + flat.state;
    tensor.shape = parameter.shape;
    tensor.pieces.clear();
    uint64_t at = 0;
    for (size_t r = 0; r < runs.lengths.size(); ++r) {
      const uint64_t from = std::max(begin, at);
      const uint64_t to = std::min(end, at + runs.lengths[r]);
      if (from < to) {
        Piece piece = flat.pieces[r];
        piece.box = Box::whole(parameter.shape);
        piece.flat = FlatRange{from - begin, to - begin};
        piece.extent.offset += (from - at) * item;
        piece.extent.strides = {};
        tensor.pieces.push_back(std::move(piece));
      }
      at += runs.lengths[r];
    }
    out.push_back(std::move(tensor));
    begin = end;
  }
}

// True if the parts make up a flat parameter with that many elements: equal,
// and longer than it by less than one element per rank.
bool holds(const RankCatalog::Runs& runs, uint64_t elements, bool even) {
  uint64_t sum = 0;
  for (const uint64_t length : runs.lengths) {
    if (even && length != runs.lengths[0]) return false;
    sum += length;
  }
  if (!even) return sum == elements;
  return sum >= elements && sum - elements < runs.lengths.size();
}

}  // namespace

std::optional<RankFiles> rank_files(const std::string& folder,
                                    const std::string& pattern) {
  const std::vector<Name> names = names_like(folder, pattern);
  if (names.empty()) return std::nullopt;
  RankFiles files;
  std::set<uint64_t> worlds;
  std::map<uint64_t, std::string> by_rank;
  for (const Name& name : names) {
    worlds.insert(name.numbers.at("W"));
    by_rank.emplace(name.numbers.at("r"), name.path);
  }
  if (worlds.size() > 1)
    throw input_error({folder, {}},
                      "holds files of ranks of {} and of {} world sizes: {} "
                      "and others of {}",
                      *worlds.begin(), *worlds.rbegin(),
                      printable(names.front().path),
                      printable(names.back().path))
        .with_hint(
            "two saves are in one folder; move the files of the older one "
            "away");
  files.world = *worlds.begin();
  constexpr uint64_t kMostRanks = 1 << 20;
  if (files.world == 0 || files.world > kMostRanks ||
      by_rank.rbegin()->first >= files.world)
    throw input_error({folder, {}}, "holds {}, a rank outside of the world",
                      printable(by_rank.rbegin()->second));
  for (uint64_t rank = 0; rank < files.world; ++rank) {
    const auto found = by_rank.find(rank);
    if (found == by_rank.end())
      throw input_error(
          {io::join(folder, fill(pattern, {{"W", files.world}, {"r", rank}})),
           {}},
          "is missing: {} of {} ranks are there", by_rank.size(), files.world)
          .with_hint("fetch the files of all ranks");
    files.names.push_back(found->second);
  }
  return files;
}

RankCatalog read_ranks(const std::string& folder, const RankFiles& files,
                       bool join_runs, const formats::ReadOptions& options) {
  RankCatalog out;
  const auto reader = torch::make_reader();
  const auto paths = io::join_each(folder, files.names);
  // FSDP1 on one rank has flat parameters, too.
  Joiner joiner(out, join_runs);
  in_order<Catalog>(
      paths.size(),
      [&](size_t r) { return reader->read_catalog(paths[r], options); },
      [&](size_t r, Catalog one) {
        if (r == 0 && one.skeleton) out.document = one.skeleton->document;
        joiner.add(paths[r], r, std::move(one));
      });
  joiner.finish(paths.size(), folder);
  out.catalog.topology.dp = static_cast<uint32_t>(files.world);
  return out;
}

std::string name_runs(RankCatalog& ranks,
                      std::span<const Tensor* const> model) {
  if (std::string doubt = doubt_in_order(model); !doubt.empty()) return doubt;
  const ParameterOrder order = stored_order(model);
  std::set<uint64_t> numbers;
  for (const auto& runs : ranks.runs)
    numbers.insert(*whole_number(ranks.catalog.tensors[runs.tensor].param));
  const std::vector<Unit> units = units_of(order);
  const bool flat = numbers.size() == units.size();
  if (!flat && numbers.size() != order.parameters.size())
    return fmt::format(
        "{} flat parameters, the model has {} layers and {} "
        "parameters",
        numbers.size(), units.size() - 1, order.parameters.size());
  // Number i is unit i, or parameter i.
  const auto unit_of = [&](uint64_t number) -> Unit {
    if (flat) return units[number];
    const Parameter& one = order.parameters[number];
    return {.name = {}, .parameters = {one}, .elements = elements_of(one)};
  };
  const uint64_t count = flat ? units.size() : order.parameters.size();
  for (const auto& runs : ranks.runs) {
    const Tensor& tensor = ranks.catalog.tensors[runs.tensor];
    const uint64_t number = *whole_number(tensor.param);
    if (number >= count)
      return fmt::format("there is a parameter {} of {}", number, count);
    const Unit unit = unit_of(number);
    if (!holds(runs, unit.elements, flat))
      return fmt::format(
          "flat parameter {} has {} elements, {} has {}", number,
          tensor.shape[0],
          unit.name.empty() ? "the model's own part" : printable(unit.name),
          unit.elements);
  }
  std::map<size_t, const RankCatalog::Runs*> by_tensor;
  for (const auto& runs : ranks.runs) by_tensor[runs.tensor] = &runs;
  std::vector<Tensor> out;
  for (size_t t = 0; t < ranks.catalog.tensors.size(); ++t) {
    Tensor& tensor = ranks.catalog.tensors[t];
    const auto number = whole_number(tensor.param);
    const auto runs = by_tensor.find(t);
    if (runs != by_tensor.end()) {
      cut_run(tensor, *runs->second, unit_of(*number), out);
    } else if (number && *number < count && tensor.shape.empty()) {
      // A step is the same for each parameter.
      for (const Parameter& parameter : unit_of(*number).parameters) {
        Tensor& one = out.emplace_back(tensor);
        one.param = parameter.name;
        one.name = one.param + "." + one.state;
      }
    } else {
      tensor.name = "optimizer." + tensor.name;
      out.push_back(std::move(tensor));
    }
  }
  ranks.catalog.tensors = std::move(out);
  if (flat)
    for (const Unit& unit : units) ranks.units.push_back(unit.parameters);
  return {};
}

}  // namespace ckpt::runs
