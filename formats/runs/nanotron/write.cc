// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/nanotron/write.h"

#include <fmt/format.h>

#include <unordered_map>

#include "ckpt/error.h"
#include "containers/safetensors/file_plan.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs::nanotron {
namespace {

using text::printable;

class Writing {
 public:
  Writing(const std::string& folder, const Catalog& catalog,
          const Topology& topology)
      : folder_(folder),
        step_(read(folder, {})),
        ranks_(folder, step_, topology) {
    for (const Problem& problem : step_.catalog.problems)
      if (problem.kind == "unread_file")
        throw unfaithful_error({problem.file, {}},
                               "is not a parameter that is known: the step "
                               "would be written without it");
    for (size_t t = 0; t < catalog.tensors.size(); ++t)
      index_.emplace(catalog.tensors[t].name, t);
    target_.catalog = formats::catalog_like(catalog, "safetensors");
    target_.catalog.topology = topology;
  }

  Target build() {
    for (const auto& [name, weight] : step_.weights) add_weight(weight);
    add_states(
        folder_, step_, ranks_,
        [&](const std::string& name) -> Tensor& { return target_of(name); },
        target_);
    add_beside(folder_, step_, ranks_, target_);
    return std::move(target_);
  }

 private:
  Tensor& target_of(const std::string& name) {
    const auto found = index_.find(name);
    if (found == index_.end())
      throw bug_error({folder_, printable(name)}, "is not in the catalog");
    return target_.catalog.tensors[found->second];
  }

  uint32_t add_file(TargetFile file) {
    target_.catalog.files.push_back(
        {.path = file.path, .size = file.size, .fill = {}});
    target_.files.push_back(std::move(file));
    return static_cast<uint32_t>(target_.files.size() - 1);
  }

  void add_weight(const Weight& weight) {
    if (!weight.sharded)
      return add_part(weight, all_of(weight.tensor.shape),
                      weight.file + ".safetensors");
    for (uint64_t tp = 0; tp < ranks_.tp(); ++tp)
      add_part(weight, *ranks_.share(weight, tp),
               fmt::format("{}_pp-rank-{}-of-{}_tp-rank-{}-of-{}.safetensors",
                           weight.file, ranks_.stage(weight), ranks_.pp(), tp,
                           ranks_.tp()));
  }

  void add_part(const Weight& weight, const Share& share, std::string path) {
    Tensor& tensor = target_of(weight.tensor.name);
    auto metadata = weight.metadata;
    if (metadata && weight.sharded)
      for (auto& [key, value] : *metadata)
        if (key == "local_global_slices_pairs") value = to_text(share.slices);
    Tensor part{.name = "data", .dtype = tensor.dtype, .shape = share.shape};
    const auto described = safetensors::describe(part);
    const std::string header =
        safetensors::encode_header(std::span(&described, 1), metadata);
    const uint64_t begin = header.size();
    TargetFile file;
    file.path = std::move(path);
    file.size = begin + described.bytes;
    file.literals = {{0, header}};
    const Piece stored{
        .box = Box::whole(share.shape),
        .flat = std::nullopt,
        .extent = {
            .offset = begin, .strides = {}, .file = add_file(std::move(file))}};
    add_pieces(share, stored, tensor.dtype, tensor.pieces);
  }

  const std::string folder_;
  const Step step_;
  const Ranks ranks_;
  std::unordered_map<std::string_view, size_t> index_;
  Target target_;
};

}  // namespace

Target lay_out(const std::string& folder, const Catalog& catalog,
               const Topology& topology) {
  return Writing(folder, catalog, topology).build();
}

}  // namespace ckpt::runs::nanotron
