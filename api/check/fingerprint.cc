// SPDX-License-Identifier: Apache-2.0
#include "api/check/fingerprint.h"

#include <fmt/format.h>

#include <map>
#include <string_view>

#include "lib/hash/sha256.h"

namespace ckpt::library {

std::string fingerprint(const Catalog& catalog,
                        std::span<const Digest> digests) {
  std::map<std::string_view, size_t> model;
  for (size_t i = 0; i < catalog.tensors.size(); ++i)
    if (catalog.tensors[i].kind == Kind::model)
      model.emplace(catalog.tensors[i].name, i);
  if (model.empty() || digests.size() != catalog.tensors.size()) return "";
  Sha256 sum;
  for (const auto& [name, index] : model) {
    const Tensor& tensor = catalog.tensors[index];
    const std::string line =
        fmt::format("{}\t{}\t{}\t{}\n", name, ckpt::name(tensor.dtype),
                    to_string(tensor.shape), digests[index].hex());
    sum.update(std::as_bytes(std::span(line)));
  }
  return sum.hex();
}

}  // namespace ckpt::library
