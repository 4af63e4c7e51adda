// SPDX-License-Identifier: Apache-2.0
#include "api/aligned.h"
#include "api/memory.h"
#include "api/rank_part.h"
#include "ckpt/ckpt.h"
#include "formats/format.h"
#include "lib/text/suggest.h"
#include "reshard/prove/prove.h"
#include "reshard/run/read.h"

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

// Calls read(catalog, tensor) once the tensor's pieces have been located.
template <class Read>
auto located(const Catalog& catalog, const Tensor& tensor, Read read) {
  if (!catalog.archive_opener) return read(catalog, tensor);
  Catalog one;
  one.path = catalog.path;
  one.files = catalog.files;
  one.archive_opener = catalog.archive_opener;
  one.tensors = {tensor};
  locate(one);
  return read(one, one.tensors[0]);
}

}  // namespace

Checkpoint::Checkpoint(Catalog catalog)
    : catalog_(std::make_shared<const Catalog>(std::move(catalog))) {
  library::check_catalog(*catalog_);
}

Checkpoint open(const std::string& path, const OpenOptions& options) {
  const formats::ReadOptions read{.family = options.family,
                                  .shard_dims_file = options.shard_dims_file,
                                  .restrict_globals = options.restrict_globals};
  Catalog catalog = formats::open(path, options.format, read);
  library::apply_rules(catalog, read);
  return Checkpoint(std::move(catalog));
}

TensorData Checkpoint::read(const std::string& name) const {
  return read(name, Box::whole(named(*catalog_, name).shape));
}

TensorData Checkpoint::read(const std::string& name, const Box& box) const {
  const Tensor& tensor = named(*catalog_, name);
  reshard::prove_shared(*catalog_, tensor);
  return located(*catalog_, tensor,
                 [&](const Catalog& catalog, const Tensor& found) {
                   return TensorData{tensor.dtype, box.shape,
                                     reshard::read_box(catalog, found, box)};
                 });
}

library::Aligned library::read_aligned(const Checkpoint& checkpoint,
                                       const std::string& name,
                                       const std::optional<Box>& part) {
  return read_aligned(checkpoint, named(checkpoint.catalog(), name), part);
}

library::Aligned library::read_aligned(const Checkpoint& checkpoint,
                                       const Tensor& tensor,
                                       const std::optional<Box>& part) {
  const Box box = part.value_or(Box::whole(tensor.shape));
  reshard::prove_shared(checkpoint.catalog(), tensor);
  return located(
      checkpoint.catalog(), tensor,
      [&](const Catalog& catalog, const Tensor& found) {
        // A box that is outside is refused before any of it is filled.
        const bool fits = inside(box, found.shape);
        Aligned data(fits ? byte_size(found.dtype, box.shape).value_or(0) : 0);
        reshard::read_box(catalog, found, box, data.bytes());
        return data;
      });
}

}  // namespace ckpt
