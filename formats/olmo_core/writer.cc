// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/file_plan.h"
#include "containers/torch/tree.h"
#include "formats/beside.h"
#include "formats/dcp/boxes.h"
#include "formats/dcp/flatten.h"
#include "formats/dcp/save.h"
#include "formats/dcp/value_item.h"
#include "formats/olmo_core/names.h"
#include "formats/olmo_core/olmo_core.h"
#include "formats/olmo_core/review.h"
#include "formats/olmo_core/shards.h"
#include "formats/olmo_core/sidecars.h"
#include "formats/olmo_core/v1/review.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "models/rules.h"

namespace ckpt::olmo_core {
namespace {

using dcp::Cutter;
using dcp::Mesh;
using text::printable;
using Severity = Problem::Severity;

// Smaller flat weights are whole on every rank (OLMoDDPTrainModule).
constexpr uint64_t kLeastFlat = 4096;

// Where the data goes: "model_and_optim", or "" if the source has none.
struct Place {
  std::string step;  // "step1000", if a training run was given
  std::string data;
};

Place place_of(const Catalog& source) {
  if (source.format != kFormat) return {{}, std::string(kDataFolder)};
  Place place;
  std::string above = source.root;
  while (above.ends_with('/')) above.pop_back();
  above += '/';
  if (!source.root.empty() && source.path.starts_with(above))
    place.step = source.path.substr(above.size());
  const std::string below = io::join(source.path, kDataFolder) + "/";
  const bool deep = std::ranges::any_of(source.files, [&](const File& file) {
    return file.path.starts_with(below);
  });
  place.data = deep ? io::join(place.step, kDataFolder) : place.step;
  return place;
}

Mesh mesh_of(const Topology& topology) {
  ranks_of(topology);  // throws for what a two-dimensional mesh can't have
  return {topology.dp, topology.tp};
}

class Builder {
 public:
  Builder(const Catalog& source, const Layout& layout)
      : source_(source),
        topology_(layout.topology),
        mesh_(mesh_of(layout.topology)),
        place_(place_of(source)),
        flattened_(is_flattened(source)),
        keyed_(source.dialect == kDialect || source.format != kFormat) {
    if (layout.max_shard_size != 0)
      throw usage_error({}, "--max-shard-size does not go with olmo_core")
          .with_hint("--dp N sets how many files there are");
  }

  Target build() {
    start();
    dcp::Save save(source_, target_, {.directory = place_.data});
    set_paths(save);
    add_objects(save);
    add_tensors(save);
    save.finish(mesh_.ranks());
    // From here on the catalog's own names, as a reader will give them.
    for (size_t t = 0; t < source_.tensors.size(); ++t)
      target_.catalog.tensors[t].name = source_.tensors[t].name;
    add_sidecars();
    return std::move(target_);
  }

 private:
  void start() {
    for (const Tensor& tensor : source_.tensors)
      torch::check_materialisable(tensor, source_);
    Catalog& catalog = target_.catalog;
    catalog = formats::catalog_like(source_, kFormat);
    if (source_.format != kFormat) catalog.dialect = kDialect;
    catalog.topology = topology_;
    for (Tensor& tensor : catalog.tensors) tensor.name = key(tensor).key;
  }

  Key key(const Tensor& tensor) const {
    if (!keyed_) return {tensor.name, {tensor.name}};
    return key_of(tensor, flattened_);
  }
  Key key(const std::string& object) const {
    if (!keyed_) return {object, {object}};
    return key_of_object(object, flattened_);
  }

  // Sets the nested dict, in its order. Keys of neither the model nor the
  // optimizer keep their place in the source.
  void set_paths(dcp::Save& save) {
    std::unordered_map<std::string, std::vector<dcp::PathElement>> own;
    for (auto& [name, path] : dcp::flatten(source_).paths)
      own.emplace(name, std::move(path));
    const auto set = [&](const std::string& name, Key key) {
      const auto found = own.find(name);
      if (key.path.size() == 1 && found != own.end()) key.path = found->second;
      save.set_path(key.key, std::move(key.path));
    };
    for (const Tensor& tensor : source_.tensors) set(tensor.name, key(tensor));
    for (const Object& object : source_.objects)
      set(object.name, key(object.name));
  }

  // Every rank has them; the lowest one writes.
  void add_objects(dcp::Save& save) {
    for (const Object& object : source_.objects) {
      if (object.bytes == 0 &&
          dcp::has_unknown_storage(source_, *object.document, object.node)) {
        target_.problems.push_back(
            warning("object_left_out", {{}, printable(object.name)},
                    "it refers to the bytes of tensors; skipped"));
        continue;
      }
      save.add_object(key(object.name).key, object, 0);
      target_.catalog.objects.push_back(object);
    }
  }

  // True for a buffer, or what the source has in one piece although it cut
  // others.
  bool is_whole(const Tensor& tensor) const {
    if (tensor.dp_replicated) return true;
    if (tensor.kind == Kind::other && tensor.pieces.size() == 1) return true;
    if (source_.format != kFormat) return false;
    if (source_.dialect == kDirectDialect && tensor.pieces.size() == 1)
      return element_count(tensor.shape).value_or(0) < kLeastFlat;
    return source_.topology.dp > 1 && tensor.pieces.size() == 1 &&
           tensor.pieces[0].box == Box::whole(tensor.shape);
  }

  void add_tensors(dcp::Save& save) {
    for (uint32_t t = 0; t < source_.tensors.size(); ++t) {
      const Tensor& tensor = source_.tensors[t];
      if (mesh_.tp > 1 && source_.dialect == kDirectDialect)
        throw unfaithful_error(
            {source_.path, printable(tensor.name)},
            "flat weights of OLMoDDPTrainModule are cut over all ranks alike, "
            "asked for tp={}",
            mesh_.tp)
            .with_hint("give the number of ranks with --dp, and --tp 1");
      const TpRule rule =
          tensor.kind == Kind::other ? TpRule::replicated() : tensor.tp;
      if (mesh_.tp > 1 && rule.state == TpRule::State::kUnknown)
        throw families::no_rule_error(source_.path, tensor, source_.family,
                                      mesh_.tp);
      add_tensor(save, t, Cutter(tensor, rule, !is_whole(tensor), mesh_));
    }
  }

  // Among ranks with equal boxes the lowest writes; empty boxes are not listed.
  void add_tensor(dcp::Save& save, uint32_t t, const Cutter& cutter) {
    const Tensor& tensor = source_.tensors[t];
    if (element_count(tensor.shape).value_or(0) == 0)
      return save.add_piece(t, Box::whole(tensor.shape), 0);
    for (uint32_t rank = 0; rank < mesh_.ranks(); ++rank) {
      if (cutter.replicas(rank).first != rank) continue;
      cutter.boxes(rank, [&](const Box& box) {
        if (volume(box) != 0) save.add_piece(t, box, rank);
      });
    }
  }

  void add_sidecars() {
    target_.beside = place_.step;
    if (source_.format != kFormat) return add_made();
    const bool keep_train = keeps_train();
    const Sidecar* note = nullptr;
    for (const Sidecar& sidecar : source_.sidecars) {
      if (sidecar.name == kNote)
        note = &sidecar;
      else if (keep_train || train_rank(sidecar.name).value_or(0) == 0)
        add_copy(sidecar);
      else
        formats::leave_out(sidecar, source_,
                           "the trainer's state of a rank that the target "
                           "does not have",
                           target_);
    }
    if (note != nullptr)
      add_copy(*note);
    else if (!place_.data.ends_with(kDataFolder))
      add_note();
  }

  // The trainer's state is per rank. Another number of ranks loads rank 0's,
  // and reseeds.
  bool keeps_train() {
    uint32_t ranks = 0;
    bool first = false;
    for (const Sidecar& sidecar : source_.sidecars)
      if (const auto rank = train_rank(sidecar.name)) {
        ++ranks;
        first = first || *rank == 0;
      }
    if (ranks < 2 || !first || ranks == mesh_.ranks() ||
        topology_ == source_.topology)
      return true;
    target_.problems.push_back(
        warning("train_state", {},
                "the trainer's state of {} ranks does not fit {}: only "
                "train/rank0.pt is copied, which OLMo-core loads on all "
                "of them",
                ranks, mesh_.ranks()));
    return false;
  }

  // .metadata alone looks like any other; this file tells whose it is.
  void add_note() {
    target_.files.push_back(formats::literal_file(io::join(place_.step, kNote),
                                                  "{\"version\": \"3.0.0\"}"));
    target_.assumptions.push_back(
        ".metadata.json: written, so that the checkpoint is known as one of "
        "OLMo-core's");
  }

  void add_copy(const Sidecar& sidecar) {
    target_.files.push_back(
        formats::copied_file(io::join(place_.step, sidecar.name), sidecar));
  }
  void add_made() {
    for (const Sidecar& sidecar : source_.sidecars)
      if (sidecar.text) add_copy(sidecar);
  }

  const Catalog& source_;
  const Topology topology_;
  const Mesh mesh_;
  const Place place_;
  const bool flattened_;
  const bool keyed_;  // names lack "model." and "optim."
  Target target_;
};

class OlmoWriter final : public formats::Writer {
 public:
  std::string_view name() const override { return kFormat; }
  Catalog review(Catalog source, const Layout&) const override {
    v1::split_groups(source);
    return review_names(std::move(source));
  }
  Target lay_out(const Catalog& source, const Layout& layout) const override {
    formats::refuse_quantized(source, kFormat);
    return Builder(source, layout).build();
  }
};

}  // namespace

std::unique_ptr<formats::Writer> make_writer() {
  return std::make_unique<OlmoWriter>();
}

}  // namespace ckpt::olmo_core
