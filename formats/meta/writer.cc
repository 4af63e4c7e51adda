// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/safetensors/file_plan.h"
#include "containers/safetensors/header.h"
#include "containers/torch/file_plan.h"
#include "containers/torch/tree.h"
#include "formats/beside.h"
#include "formats/meta/layout.h"
#include "formats/meta/locate.h"
#include "formats/meta/meta.h"
#include "formats/meta/params.h"
#include "formats/target.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::meta {
namespace {

using formats::Cut;
using Severity = Problem::Severity;

class Builder {
 public:
  Builder(const Catalog& source, const Layout& layout)
      : source_(source),
        ranks_(layout.topology.tp),
        params_(params_of(source)) {}

  Target build() {
    start_catalog();
    for (const Tensor& tensor : source_.tensors) add_cut(tensor);
    if (keeps_safetensors())
      add_one_file();
    else
      for (uint32_t rank = 0; rank < ranks_; ++rank) add_rank(rank);
    take_objects();
    add_sidecars();
    return std::move(target_);
  }

 private:
  Catalog& catalog() { return target_.catalog; }

  bool keeps_safetensors() const {
    return ranks_ == 1 && source_.format == kFormat &&
           source_.version == kSafetensors;
  }

  void start_catalog() {
    catalog() = formats::catalog_like(source_, kFormat);
    catalog().version = keeps_safetensors() ? kSafetensors : kPickled;
    catalog().dialect = kFormat;
    catalog().topology.tp = ranks_;
    if (!params_)
      warn("no_params", {},
           "there is no params.json: Meta's loader needs one beside the files");
  }

  void warn(std::string kind, std::string tensor, std::string message) {
    target_.problems.push_back(warning(std::move(kind), {{}, std::move(tensor)},
                                       "{}", std::move(message)));
  }

  void add_cut(const Tensor& tensor) {
    torch::check_materialisable(tensor, source_);
    const uint32_t held = source_.format == kFormat ? source_.topology.tp : 1;
    Cut cut = wanted_cut(source_, tensor, ranks_, held, params_);
    if (!cut.whole() && ranks_ > 1 && element_size(tensor.dtype) == 0)
      throw unfaithful_error({source_.path, tensor.name},
                             "{} has two values to a byte, which can't be cut "
                             "into ranks' parts",
                             name(tensor.dtype));
    tell_repeats(tensor, cut);
    cuts_.push_back(std::move(cut));
  }

  void tell_repeats(const Tensor& tensor, const Cut& cut) {
    if (!cut.whole() && cut.segments[0].repeat > 1 && !told_repeats_) {
      told_repeats_ = true;
      target_.assumptions.push_back(fmt::format(
          "each key/value head is in {} of {} files ({} …): n_kv_heads",
          cut.segments[0].repeat, ranks_, tensor.name));
    }
    if (role_of(tensor.name) == Role::kEmbedding && ranks_ > 1)
      target_.assumptions.push_back(fmt::format(
          "{} is cut along dimension {}{}", tensor.name, cut.dim,
          cut.dim == 1 ? ", as in Llama 1 and 2" : ", as in Llama 3"));
  }

  void add_rank(uint32_t rank) {
    pickle::Document document;
    const pickle::Id dict = document.add_container(pickle::Type::kDict);
    std::vector<torch::TensorSlot> slots;
    for (size_t i = 0; i < cuts_.size(); ++i) {
      const Tensor& tensor = source_.tensors[i];
      const Shape local = formats::local_shape(cuts_[i], tensor.shape, ranks_);
      const torch::TorchType type =
          torch::torch_type(tensor.name, tensor.dtype, local);
      document.set(dict, document.add_string(tensor.name),
                   torch::add_placeholder(document, slots.size()));
      slots.push_back({.dtype = torch::plain_type(type.dtype),
                       .shape = type.shape,
                       .requires_grad = tensor.requires_grad,
                       .parameter = tensor.parameter,
                       .tie = torch::kOwnStorage});
    }
    const std::string path = file_name(rank);
    torch::FilePlan plan =
        torch::plan_file(document, dict, slots, torch::archive_root_of(path));
    place(rank, path, plan.data_offsets, plan.file.size);
    plan.file.path = path;
    target_.files.push_back(std::move(plan.file));
  }

  void place(uint32_t rank, const std::string& path,
             const std::vector<uint64_t>& offsets, uint64_t size) {
    const auto file = static_cast<uint32_t>(catalog().files.size());
    for (size_t i = 0; i < cuts_.size(); ++i)
      formats::add_target_pieces(cuts_[i], ranks_, rank, file, offsets[i],
                                 catalog().tensors[i]);
    catalog().files.push_back({.path = path, .size = size});
  }

  void add_one_file() {
    std::vector<uint32_t> all(source_.tensors.size());
    for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
    safetensors::add_file(target_, std::string(kOneFile), all, std::nullopt);
  }

  void take_objects() {
    for (const Object& object : source_.objects) {
      if (object.name == kParamsObject) {
        add_params(object);
        continue;
      }
      const bool note = object.name == safetensors::kMetadata ||
                        object.name == safetensors::kIndexMetadata;
      target_.problems.push_back({note ? Severity::kNote : Severity::kWarning,
                                  "object_left_out",
                                  {},
                                  object.name,
                                  "meta cannot store this value; skipped"});
    }
  }

  void add_params(const Object& object) {
    constexpr bool kAscii = true;  // as Python's json module
    target_.files.push_back(formats::literal_file(
        std::string(kParams),
        plain_json(*object.document, object.node).dump(-1, ' ', kAscii)));
  }

  // The configuration of another dialect would contradict params.json.
  bool has_place(const Sidecar& sidecar) const {
    if (sidecar.name == kChecklist) return false;
    if (source_.format == kFormat) return true;
    if (sidecar.name == kParams) return !has_params_object();
    return sidecar.name != "config.json";
  }

  bool has_params_object() const {
    return std::ranges::find(source_.objects, kParamsObject, &Object::name) !=
           source_.objects.end();
  }

  void add_sidecars() {
    for (const Sidecar& sidecar : source_.sidecars) {
      if (!has_place(sidecar)) {
        formats::leave_out(
            sidecar, source_,
            sidecar.name == kChecklist
                ? "its MD5 sums are those of the source's files"
                : "the configuration of another dialect would contradict "
                  "params.json",
            target_);
        continue;
      }
      if (sidecar.name == kParams && has_params_object()) continue;
      target_.files.push_back(formats::copied_file(sidecar.name, sidecar));
    }
  }

  const Catalog& source_;
  const uint32_t ranks_;
  const std::optional<Params> params_;
  Target target_;
  std::vector<Cut> cuts_;  // one per tensor
  bool told_repeats_ = false;
};

void refuse(const Catalog& source, const Layout& layout) {
  if (layout.single_file)
    throw usage_error({}, "meta's checkpoints are directories")
        .with_hint("name a directory, or convert to torch for one file");
  if (layout.max_shard_size)
    throw usage_error({}, "--max-shard-size: meta has one file for each rank")
        .with_hint("more ranks make smaller files: --tp N");
  if (layout.topology.tp == 0 || layout.topology.tp > 1024)
    throw usage_error({}, "{} ranks, meta is written for 1 to 1024",
                      layout.topology.tp);
  if (!source.dialect.empty() && source.dialect != kFormat)
    throw unfaithful_error({source.path, {}},
                           "meta has names of its own, the source has those "
                           "of {}",
                           source.dialect)
        .with_hint("no rule of this family leads from there to Meta's names");
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::optim)
      throw unfaithful_error({{}, tensor.name},
                             "meta holds weights, no optimizer state")
          .with_hint("leave it out with --model-only");
}

Catalog review(Catalog source, const Layout& layout) {
  refuse(source, layout);
  if (source.format == kFormat) return source;
  std::ranges::stable_sort(source.tensors, {}, [](const Tensor& tensor) {
    return order_of(tensor.name);
  });
  return source;
}

}  // namespace

std::unique_ptr<formats::Writer> make_writer() {
  return formats::writer_of(kFormat, review, formats::build_with<Builder>);
}

}  // namespace ckpt::meta
