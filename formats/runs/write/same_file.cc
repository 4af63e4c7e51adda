// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/write/same_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "ckpt/error.h"
#include "formats/target.h"
#include "lib/decoding.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/zip/archive.h"

namespace ckpt::runs {
namespace {

using text::printable;

// The bytes of tensors in a file, in order.
struct Use {
  uint64_t end = 0;
  size_t tensor = 0;  // the first of those sharing them
};
using Uses = std::map<uint64_t, Use>;

// True if all bytes [begin, end) are tensors'.
bool covers(const Uses& uses, uint64_t begin, uint64_t end) {
  for (auto use = uses.lower_bound(begin); begin < end; ++use) {
    if (use == uses.end() || use->first != begin) return false;
    begin = use->second.end;
  }
  return begin == end;
}

// The checksums of the records that tensors are in.
std::vector<LateCrc> crcs_of(const Uses& uses, const File& file,
                             bool computed) {
  const io::Handle handle = io::Handle::open_read(file.path);
  const zip::Archive archive = zip::Archive::read(handle);
  const auto places = zip::crc_places(handle, archive);
  std::vector<LateCrc> crcs;
  for (size_t i = 0; i < places.size(); ++i) {
    const zip::Entry& entry = archive.entries()[i];
    const uint64_t begin = entry.data_offset, end = begin + entry.size;
    const auto first = uses.lower_bound(begin);
    if (first == uses.end() || first->first >= end) continue;
    if (covers(uses, begin, end)) {
      // A writer that left checksums out has zeros there.
      if (entry.crc32 != 0) crcs.push_back({begin, end, places[i]});
    } else if (computed) {
      throw unfaithful_error(
          {file.path, printable(entry.name)},
          "has elements that no tensor has in order, so its bytes can't be "
          "made of other tensors")
          .with_hint("--to dcp and --to safetensors write tensors anew");
    }
  }
  std::ranges::sort(crcs, {}, &LateCrc::begin);
  return crcs;
}

// Carries what is neither a tensor's nor a checksum of one.
TargetFile around(const Uses& uses, std::vector<LateCrc> crcs, const File& file,
                  uint32_t index) {
  std::map<uint64_t, uint64_t> holes;
  for (const auto& [begin, use] : uses) holes.emplace(begin, use.end);
  std::vector<Literal> literals;
  for (const LateCrc& crc : crcs)
    for (const uint64_t at : crc.at) {
      holes.emplace(at, at + sizeof(uint32_t));
      literals.push_back({at, std::string(sizeof(uint32_t), '\0')});
    }
  std::ranges::sort(literals, {}, &Literal::offset);
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
  for (const auto& [begin, end] : holes) {
    carry(begin);
    at = end;
  }
  carry(file.size);
  target.literals = std::move(literals);
  target.crcs = std::move(crcs);
  return target;
}

// True if its bytes are those of the tensor, in order.
bool is_plain(const Tensor& tensor) {
  return tensor.pieces.size() == 1 && !tensor.pieces[0].flat &&
         tensor.pieces[0].extent.strides.empty() &&
         tensor.pieces[0].transform == kNoTransform &&
         tensor.pieces[0].box == Box::whole(tensor.shape);
}

// Takes places in the order of the tensors; of two that overlap, the first.
class Placing {
 public:
  explicit Placing(const Catalog& catalog) : catalog_(catalog) {
    for (size_t t = 0; t < catalog.tensors.size(); ++t)
      have_.push_back(byte_size(catalog.tensors[t]) == 0 || take(t));
  }

  const std::vector<bool>& have() const { return have_; }
  const std::map<uint32_t, Uses>& files() const { return files_; }

 private:
  bool take(size_t t) {
    const Tensor& tensor = catalog_.tensors[t];
    if (!is_plain(tensor)) return false;
    const Extent& extent = tensor.pieces[0].extent;
    const uint64_t end = extent.offset + byte_size(tensor);
    Uses& uses = files_[extent.file];
    const auto next = uses.lower_bound(extent.offset);
    if (next != uses.end() && next->first == extent.offset)
      return next->second.end == end;
    if ((next != uses.begin() && std::prev(next)->second.end > extent.offset) ||
        (next != uses.end() && next->first < end))
      return false;
    uses.emplace(extent.offset, Use{end, t});
    return true;
  }

  const Catalog& catalog_;
  std::map<uint32_t, Uses> files_;
  std::vector<bool> have_;
};

// Keeps the tensors of `have`.
void keep(std::vector<Tensor>& tensors, const std::vector<bool>& have) {
  size_t at = 0;
  std::erase_if(tensors, [&](const Tensor&) { return !have[at++]; });
}

}  // namespace

std::vector<bool> have_places(Catalog& catalog) {
  locate(catalog);
  return Placing(catalog).have();
}

bool has_computed(const Catalog& source) {
  return std::ranges::any_of(source.tensors, [&](const Tensor& tensor) {
    return std::ranges::any_of(tensor.pieces, [&](const Piece& piece) {
      const File& file = source.files[piece.extent.file];
      return file.codec == Codec::kMemory || is_foreign(file);
    });
  });
}

Target lay_out_same(Catalog& catalog, const std::string& step, bool computed) {
  const std::vector<bool> have = have_places(catalog);
  for (const Tensor& tensor : catalog.tensors)
    for (const Piece& piece : tensor.pieces)
      if (byte_size(tensor) != 0 &&
          catalog.files[piece.extent.file].codec != Codec::kRaw)
        throw unfaithful_error({catalog.path, printable(tensor.name)},
                               "is compressed")
            .with_hint("copy the step's folder: none of its files has ranks");
  keep(catalog.tensors, have);
  const Placing taken(catalog);
  const std::map<uint32_t, Uses>& files = taken.files();
  Target target;
  target.catalog = formats::catalog_like(catalog, catalog.format);
  if (const size_t left = std::ranges::count(have, false))
    target.assumptions.push_back(fmt::format(
        "{}: {} in it go along as the file's bytes: they are strided or "
        "overlap with others",
        printable(catalog.path), text::counted(left, "tensor")));
  uint32_t ties = 0;
  for (size_t t = 0; t < catalog.tensors.size(); ++t) {
    const Tensor& tensor = catalog.tensors[t];
    target.catalog.tensors[t].pieces = tensor.pieces;
    if (byte_size(tensor) == 0) continue;
    const Extent& extent = tensor.pieces[0].extent;
    const size_t first = files.at(extent.file).at(extent.offset).tensor;
    if (first == t) continue;
    Tensor& shared = target.catalog.tensors[first];
    if (shared.tie == 0) shared.tie = ++ties;
    target.catalog.tensors[t].tie = shared.tie;
  }
  std::map<uint32_t, uint32_t> places;
  for (const auto& [index, uses] : files) {
    const File& file = catalog.files[index];
    places[index] = static_cast<uint32_t>(target.catalog.files.size());
    const std::string path = file.path.substr(step.size() + 1);
    target.catalog.files.push_back(
        {.path = path, .size = file.size, .fill = {}});
    const bool has_crcs =
        std::ranges::find(catalog.crcs, index, &StoredCrc::file) !=
        catalog.crcs.end();
    target.files.push_back(around(
        uses, has_crcs ? crcs_of(uses, file, computed) : std::vector<LateCrc>(),
        file, index));
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
