// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "containers/torch/tree.h"
#include "formats/dcp/boxes.h"
#include "formats/dcp/dcp.h"
#include "formats/dcp/flatten.h"
#include "formats/dcp/save.h"
#include "formats/dcp/subclass.h"
#include "formats/dcp/value_item.h"
#include "formats/run_state.h"
#include "formats/target.h"
#include "formats/traits.h"
#include "lib/text/format.h"
#include "models/rules.h"

namespace ckpt::dcp {
namespace {

using text::printable;
using Severity = Problem::Severity;

// Which rank writes what several ranks hold: the one that writes least so far,
// the lowest among equals. A part counts as its whole tensor's size, a value as
// one byte (torch, since 2.3).

class Assigner {
 public:
  explicit Assigner(uint32_t ranks) : sizes_(ranks, 0) {}

  // `bytes`: of the whole tensor. Both return the rank that writes it.
  uint32_t take(const Cutter::Replicas& among, uint64_t bytes);
  uint32_t take(std::span<const uint32_t> among, uint64_t bytes);

 private:
  void add(uint32_t rank, uint64_t bytes);
  std::vector<uint64_t> sizes_;
};

uint32_t Assigner::take(const Cutter::Replicas& among, uint64_t bytes) {
  uint32_t best = among.first;
  for (uint32_t i = 1; i < among.count; ++i) {
    const uint32_t rank = among.first + i * among.step;
    if (sizes_[rank] < sizes_[best]) best = rank;
  }
  add(best, bytes);
  return best;
}

uint32_t Assigner::take(std::span<const uint32_t> among, uint64_t bytes) {
  const uint32_t best = *std::ranges::min_element(
      among, {}, [&](uint32_t rank) { return sizes_[rank]; });
  add(best, bytes);
  return best;
}

void Assigner::add(uint32_t rank, uint64_t bytes) {
  uint64_t& size = sizes_[rank];
  size = checked_add(size, std::max<uint64_t>(bytes, 1))
             .value_or(std::numeric_limits<uint64_t>::max());
}

// The parameters by name, so that optimizer state is cut like them.
using Params = std::unordered_map<std::string_view, const Tensor*>;

Params params_of(const Catalog& source) {
  Params params;
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::model) params.emplace(tensor.name, &tensor);
  return params;
}

TpRule rule_of(const Tensor& tensor, const Params& params) {
  if (tensor.tp.state != TpRule::State::kUnknown) return tensor.tp;
  const auto param = params.find(tensor.param);
  if (tensor.kind == Kind::optim && param != params.end() &&
      param->second->shape == tensor.shape)
    return param->second->tp;
  // Steps; RNG states and the like.
  if (tensor.shape.empty() || tensor.kind == Kind::other)
    return TpRule::replicated();
  return tensor.tp;
}

// True for a buffer, or for what the source has in one piece although it cut
// other tensors over its ranks: each rank then holds the whole.
bool is_whole_on_ranks(const Tensor& tensor, const Catalog& source) {
  if (tensor.dp_replicated) return true;
  if (tensor.kind == Kind::other && tensor.pieces.size() == 1) return true;
  return source.format == kFormat && source.topology.dp > 1 &&
         tensor.pieces.size() == 1 &&
         tensor.pieces[0].box == Box::whole(tensor.shape);
}

class Builder {
 public:
  Builder(const Catalog& source, const Layout& layout)
      : source_(source),
        mesh_(mesh_of(layout)),
        assigner_(mesh_.ranks()),
        parts_(find_parts(source)) {
    for (const auto& [part, object] : parts_)
      wholes_.insert(&source.objects[object]);
  }

  Target build() {
    start();
    Flattened flat = flatten(source_);
    rename_grids(flat);
    for (Problem& problem : flat.problems)
      target_.problems.push_back(std::move(problem));
    Save save(source_, target_, {});
    add_entries(save, entries_of(flat));
    for (auto& [name, path] : flat.paths) save.set_path(name, std::move(path));
    for (const auto& [part, object] : parts_)
      save.add_part(part, source_.objects[object],
                    source_.tensors[part].pieces.at(0));
    save.finish(mesh_.ranks());
    add_sidecars();
    return std::move(target_);
  }

 private:
  Catalog& catalog() { return target_.catalog; }

  static Mesh mesh_of(const Layout& layout) {
    const Topology& topology = layout.topology;
    for (const auto& [size, what] :
         {std::pair(topology.pp, "pp"), std::pair(topology.ep, "ep")})
      if (size != 1)
        throw unfaithful_error({},
                               "a distributed checkpoint has no {0} ranks, "
                               "asked for {0}={1}",
                               what, size)
            .with_hint(fmt::format(
                "leave --{0} away, or give --{0} 1: the files of dp x tp ranks "
                "hold all layers and experts",
                what));
    if (layout.max_shard_size != 0)
      throw usage_error({}, "--max-shard-size does not go with dcp")
          .with_hint("--dp N sets how many files there are");
    if (uint64_t{topology.dp} * topology.tp > kMostRanks)
      throw unfaithful_error({}, "{} files, at most {}",
                             uint64_t{topology.dp} * topology.tp, kMostRanks);
    return {topology.dp, topology.tp};
  }

  void start() {
    catalog() = formats::catalog_like(source_, kFormat);
    catalog().topology = {.tp = mesh_.tp, .dp = mesh_.dp};
  }

  void warn(Severity severity, std::string kind, const std::string& name,
            std::string message) {
    target_.problems.push_back(
        {severity, std::move(kind), {}, printable(name), std::move(message)});
  }

  // "key/shard_0_1" is Megatron's name for an object. A checkpoint with such
  // keys but without Megatron's own files is an unfinished one.
  void rename_grids(Flattened& flat) {
    if (!source_.format.starts_with("megatron")) return;
    std::string last;
    for (FlatValue& value : flat.values) {
      const size_t slash = value.name.rfind("/shard_");
      if (slash == std::string::npos) continue;
      last = value.name;
      value.name[slash] = '.';
    }
    if (!last.empty())
      target_.assumptions.push_back(fmt::format(
          "objects named as Megatron names them get a dot for the slash: {}",
          printable(last)));
  }

  // What will be written, in the order of the state dict.
  struct Entry {
    uint32_t tensor = 0;
    const FlatValue* value = nullptr;  // if set, `tensor` is unused
  };
  std::vector<Entry> entries_of(const Flattened& flat) {
    std::unordered_map<std::string_view, Entry> by_name;
    std::vector<Entry> entries;
    const auto add = [&](const std::string& name, const Entry& entry) {
      if (!by_name.emplace(name, entry).second) throw name_clash(name);
    };
    for (uint32_t t = 0; t < source_.tensors.size(); ++t)
      if (!parts_.contains(t)) add(source_.tensors[t].name, {.tensor = t});
    for (const FlatValue& value : flat.values)
      if (is_selected(*value.object) &&
          (value.object->bytes || can_write(*value.object, value)))
        add(value.name, {.value = &value});
    const auto take = [&](const std::string& name) {
      const auto found = by_name.find(name);
      if (found == by_name.end()) return;
      entries.push_back(found->second);
      by_name.erase(found);
    };
    for (const auto& [name, path] : flat.paths) take(name);
    for (const Tensor& tensor : source_.tensors) take(tensor.name);
    for (const FlatValue& value : flat.values) take(value.name);
    return entries;
  }

  // A tensor subclass is selected together with its parts.
  bool is_selected(const Object& object) const {
    return wholes_.contains(&object) || !subclass_of(object);
  }

  // Every rank has every value; one writes it.
  void add_value(Save& save, const FlatValue& value) {
    const Object& object = *value.object;
    const uint32_t rank = assigner_.take({0, 1, mesh_.ranks()}, 1);
    if (wholes_.contains(&object))
      save.add_subclass(value.name, object, rank);
    else if (object.bytes)
      save.add_object(value.name, object, rank);
    else
      save.add_value(value.name, *object.document, value.node, rank);
    if (value.node == object.node) catalog().objects.push_back(object);
  }
  bool can_write(const Object& object, const FlatValue& value) {
    if (std::ranges::any_of(formats::traits_of(source_.format).about_files,
                            [&](std::string_view prefix) {
                              return value.name.starts_with(prefix);
                            })) {
      warn(Severity::kNote, "object_left_out", value.name,
           "tells about the files of the source; it is left out");
      return false;
    }
    if (!object.document) {
      warn(Severity::kWarning, "object_left_out", value.name,
           "its value is not known; skipped");
      return false;
    }
    if (!has_unknown_storage(source_, *object.document, value.node))
      return true;
    warn(Severity::kWarning, "object_left_out", value.name,
         "it refers to the bytes of tensors; skipped");
    return false;
  }

  std::vector<Cutter> cutters() {
    const Params params = params_of(source_);
    std::vector<Cutter> cutters;
    cutters.reserve(source_.tensors.size());
    for (const Tensor& tensor : source_.tensors) {
      torch::check_materialisable(tensor, source_);
      const TpRule rule = rule_of(tensor, params);
      if (mesh_.tp > 1 && rule.state == TpRule::State::kUnknown)
        throw families::no_rule_error(source_.path, tensor, source_.family,
                                      mesh_.tp);
      cutters.emplace_back(tensor, rule, !is_whole_on_ranks(tensor, source_),
                           mesh_);
    }
    return cutters;
  }

  // Goes rank by rank, in the order in which ranks would bring their plans, so
  // that what several have is written by the same rank as with torch.
  void add_entries(Save& save, const std::vector<Entry>& entries) {
    const std::vector<Cutter> cutters = this->cutters();
    empties_.resize(cutters.size());
    for (uint32_t rank = 0; rank < mesh_.ranks(); ++rank)
      for (const Entry& entry : entries) {
        if (!entry.value)
          cutters[entry.tensor].boxes(rank, [&](const Box& box) {
            add_box(save, cutters[entry.tensor], entry.tensor, box, rank);
          });
        else if (rank == 0)
          add_value(save, *entry.value);
      }
  }

  void add_box(Save& save, const Cutter& cutter, uint32_t t, const Box& box,
               uint32_t rank) {
    const uint64_t bytes = byte_size(catalog().tensors[t]);
    if (volume(box) == 0) {
      add_empty(save, cutter, t, Box(box), rank);
      return;
    }
    const Cutter::Replicas replicas = cutter.replicas(rank);
    if (replicas.first == rank)
      save.add_piece(t, box, assigner_.take(replicas, bytes));
  }

  // Ranks that hold nothing of a tensor share one empty box, or a few if two
  // dimensions are cut.
  void add_empty(Save& save, const Cutter& cutter, uint32_t t, const Box& box,
                 uint32_t rank) {
    std::vector<Dims>& seen = empties_[t];
    if (std::ranges::find(seen, box.offset) != seen.end()) return;
    seen.push_back(box.offset);
    std::vector<uint32_t> among;
    for (uint32_t other = rank; other < mesh_.ranks(); ++other)
      cutter.boxes(other, [&](const Box& its) {
        if (its == box) among.push_back(other);
      });
    save.add_piece(t, box,
                   assigner_.take(among, byte_size(catalog().tensors[t])));
  }

  void add_sidecars() {
    const bool keep = source_.dialect == "hf";
    for (const Sidecar& sidecar : source_.sidecars) {
      if (!keep && !sidecar.text) continue;
      // .metadata stays last.
      target_.files.insert(target_.files.end() - 1,
                           formats::copied_file(sidecar.name, sidecar));
    }
  }

  // The rank count of the largest machines, with room to spare.
  static constexpr uint64_t kMostRanks = 1 << 20;

  const Catalog& source_;
  Mesh mesh_;
  Assigner assigner_;
  Target target_;
  std::vector<std::vector<Dims>> empties_;  // offsets, by tensor
  // Tensors that are parts of subclasses, and the subclasses.
  const std::unordered_map<uint32_t, uint32_t> parts_;
  std::unordered_set<const Object*> wholes_;
};

Catalog review(Catalog source, const Layout&) {
  return runs::as_state_dict(std::move(source));
}

}  // namespace

std::unique_ptr<formats::Writer> make_writer() {
  return formats::writer_of(kFormat, review, formats::build_with<Builder>);
}

}  // namespace ckpt::dcp
