// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/same_file.h"

#include <algorithm>
#include <map>

#include "ckpt/error.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using text::printable;

// The bytes of tensors in a file, in order.
struct Use {
  uint64_t end = 0;
  size_t tensor = 0;  // the first of those sharing them
};
using Uses = std::map<uint64_t, Use>;

// Carries what is between the tensors.
TargetFile around(const Uses& uses, const File& file, uint32_t index) {
  TargetFile target;
  target.size = file.size;
  uint64_t at = 0;
  const auto carry = [&](uint64_t end) {
    if (end > at)
      target.carried.push_back({.offset = at,
                                .size = end - at,
                                .source_file = index,
                                .source_offset = at});
  };
  for (const auto& [begin, use] : uses) {
    carry(begin);
    at = use.end;
  }
  carry(file.size);
  return target;
}

}  // namespace

Target lay_out_same(Catalog& catalog, const std::string& step) {
  locate(catalog);
  Target target;
  target.catalog = formats::catalog_like(catalog, catalog.format);
  std::map<uint32_t, Uses> files;
  uint32_t ties = 0;
  for (size_t t = 0; t < catalog.tensors.size(); ++t) {
    const Tensor& tensor = catalog.tensors[t];
    const auto refuse = [&](const char* why) {
      throw unfaithful_error({catalog.path, printable(tensor.name)}, "{}", why)
          .with_hint("copy the step's folder: none of its files has ranks");
    };
    if (byte_size(tensor) == 0) {
      target.catalog.tensors[t].pieces = tensor.pieces;
      continue;
    }
    if (tensor.pieces.size() != 1 || tensor.pieces[0].flat ||
        !tensor.pieces[0].extent.strides.empty() ||
        tensor.pieces[0].transform != kNoTransform ||
        tensor.pieces[0].box != Box::whole(tensor.shape))
      refuse("does not lie in its file as it is");
    const Extent& extent = tensor.pieces[0].extent;
    if (catalog.files[extent.file].codec != Codec::kRaw)
      refuse("is compressed");
    Uses& uses = files[extent.file];
    const uint64_t end = extent.offset + byte_size(tensor);
    const auto [it, fresh] = uses.try_emplace(extent.offset, Use{end, t});
    if (!fresh) {
      Tensor& first = target.catalog.tensors[it->second.tensor];
      if (it->second.end != end) refuse("shares a part of another's bytes");
      if (first.tie == 0) first.tie = ++ties;
      target.catalog.tensors[t].tie = first.tie;
    } else if ((it != uses.begin() &&
                std::prev(it)->second.end > extent.offset) ||
               (std::next(it) != uses.end() && std::next(it)->first < end)) {
      refuse("overlaps with another");
    }
    target.catalog.tensors[t].pieces = tensor.pieces;
  }
  std::map<uint32_t, uint32_t> places;
  for (const auto& [index, uses] : files) {
    const File& file = catalog.files[index];
    places[index] = static_cast<uint32_t>(target.catalog.files.size());
    const std::string path = file.path.substr(step.size() + 1);
    target.catalog.files.push_back(
        {.path = path, .size = file.size, .fill = {}});
    target.files.push_back(around(uses, file, index));
    target.files.back().path = path;
  }
  for (Tensor& tensor : target.catalog.tensors) {
    if (byte_size(tensor) == 0) {
      // It has no bytes in any file.
      for (Piece& piece : tensor.pieces) piece.extent = {};
      if (target.catalog.files.empty()) tensor.pieces.clear();
      continue;
    }
    for (Piece& piece : tensor.pieces)
      piece.extent.file = places.at(piece.extent.file);
  }
  return target;
}

}  // namespace ckpt::runs
