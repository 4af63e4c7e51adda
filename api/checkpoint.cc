// SPDX-License-Identifier: Apache-2.0
#include "ckpt/ckpt.h"
#include "formats/format.h"
#include "lib/text/suggest.h"
#include "reshard/read.h"

namespace ckpt {
namespace {

const Tensor& named(const Catalog& catalog, const std::string& name) {
  if (const Tensor* tensor = catalog.find(name)) return *tensor;
  std::vector<std::string> names;
  for (const Tensor& tensor : catalog.tensors) names.push_back(tensor.name);
  const std::string near = text::nearest(name, names);
  throw usage_error({catalog.path, name}, "there is no such tensor")
      .with_hint(near.empty() ? "" : "did you mean " + near + "?");
}

}  // namespace

Checkpoint::Checkpoint(Catalog catalog)
    : catalog_(std::make_shared<const Catalog>(std::move(catalog))) {}

Checkpoint open(const std::string& path, const OpenOptions& options) {
  return Checkpoint(
      formats::open(path, options.format,
                    {.family = options.family,
                     .shard_dims_file = options.shard_dims_file,
                     .restrict_globals = options.restrict_globals}));
}

TensorData Checkpoint::read(const std::string& name) const {
  return read(name, Box::whole(named(*catalog_, name).shape));
}

TensorData Checkpoint::read(const std::string& name, const Box& box) const {
  const Tensor& tensor = named(*catalog_, name);
  if (catalog_->archive_opener) {
    Catalog one;
    one.path = catalog_->path;
    one.files = catalog_->files;
    one.archive_opener = catalog_->archive_opener;
    one.tensors = {tensor};
    locate(one);
    return {tensor.dtype, box.shape,
            reshard::read_box(one, one.tensors[0], box)};
  }
  return {tensor.dtype, box.shape, reshard::read_box(*catalog_, tensor, box)};
}

}  // namespace ckpt
