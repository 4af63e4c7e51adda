// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <map>

#include "api/salvage/salvager.h"
#include "lib/io/file.h"
#include "reshard/plan/planner.h"
#include "reshard/run/read.h"

namespace ckpt::library {
namespace {

bool same_place(const Piece& a, const Piece& b) {
  return a.box == b.box && a.flat == b.flat && a.transform == b.transform;
}

}  // namespace

const std::vector<salvage::Range>& Salvager::gone_of(const Piece& piece) const {
  static const std::vector<salvage::Range> kNone;
  const std::string file = file_of(piece.extent.file);
  const auto found = files_.gone.find(file);
  return file.empty() || found == files_.gone.end() ? kNone : found->second;
}

void Salvager::find_gone() {
  gone_.resize(catalog_.tensors.size());
  for (size_t t = 0; t < gone_.size(); ++t) {
    const Tensor& tensor = catalog_.tensors[t];
    for (const Piece& piece : tensor.pieces)
      gone_[t].push_back(gone_elements(tensor, piece, gone_of(piece)));
  }
}

// Writes elements of a piece; `bytes` begins with element `first`.
void Salvager::put(
    const Tensor& tensor, const Piece& piece, const Elements& elements,
    const std::function<std::string(uint64_t, uint64_t)>& bytes) {
  const io::Handle to = files_.edit(file_of(piece.extent.file));
  const uint64_t most =
      std::max<uint64_t>(1, (1 << 20) / element_size(tensor.dtype));
  for_each_run(tensor, piece, elements,
               [&](uint64_t first, uint64_t offset, uint64_t many) {
                 for (uint64_t i = 0; i < many; i += most)
                   to.write(offset + i * element_size(tensor.dtype),
                            std::string_view(
                                bytes(first + i, std::min(most, many - i))));
               });
}

void Salvager::from_replicas() {
  for (size_t t = 0; t < gone_.size(); ++t) {
    const Tensor& tensor = catalog_.tensors[t];
    for (size_t a = 0; a < tensor.pieces.size(); ++a)
      for (size_t b = 0; b < tensor.pieces.size() && !gone_[t][a].empty(); ++b)
        if (a != b && same_place(tensor.pieces[a], tensor.pieces[b]))
          copy_replica(t, a, b);
  }
}

void Salvager::copy_replica(size_t t, size_t a, size_t b) {
  const Tensor& tensor = catalog_.tensors[t];
  const Piece& from = tensor.pieces[b];
  const uint64_t size = element_size(tensor.dtype);
  const Elements good = minus(gone_[t][a], gone_[t][b]);
  if (good.empty() || size == 0) return;
  const io::Handle source =
      io::Handle::open_read(catalog_.files[from.extent.file].path);
  put(tensor, tensor.pieces[a], good, [&](uint64_t first, uint64_t many) {
    std::string bytes;
    for_each_run(tensor, from, {{first, first + many}},
                 [&](uint64_t, uint64_t offset, uint64_t count) {
                   bytes += source.read_string(offset, count * size);
                 });
    return bytes;
  });
  gone_[t][a] = minus(gone_[t][a], good);
  report_.rebuilt.push_back(
      {file_of(tensor.pieces[a].extent.file),
       fmt::format("{}: {} elements from the copy in {}", tensor.name,
                   count(good), file_of(from.extent.file)),
       false});
}

// The source's manifest; nothing if it is absent or damaged.
const Manifest* Salvager::manifest() {
  if (!looked_) {
    looked_ = true;
    const std::string path = manifest_path(source_);
    try {
      if (io::is_file(path)) manifest_ = read_manifest(path);
    } catch (const Error& error) {
      if (!is_answer(error)) throw;
    }
  }
  return manifest_ ? &*manifest_ : nullptr;
}

const Manifest::Entry* Salvager::entry_of(const Tensor& tensor) {
  if (!manifest() || shifted_.contains(tensor.name)) return nullptr;
  const auto entry = manifest_->tensors.find(tensor.name);
  return entry == manifest_->tensors.end() || !entry->second.unproven.empty() ||
                 entry->second.dtype != tensor.dtype ||
                 entry->second.shape != tensor.shape
             ? nullptr
             : &entry->second;
}

Digest Salvager::digest_of(const Catalog& catalog, Tensor tensor) {
  Catalog one = catalog_without_tensors(catalog);
  one.tensors = {std::move(tensor)};
  const reshard::Plan plan = reshard::make_read_plan(one, false);
  reshard::Output nowhere;
  return reshard::run(plan, one, nowhere, run_).source.at(0);
}

// A wrong digest does not say where the damage is; a copy may be right.
void Salvager::check_digests() {
  for (size_t t = 0; t < gone_.size(); ++t) {
    Tensor& tensor = catalog_.tensors[t];
    const Manifest::Entry* entry = entry_of(tensor);
    if (!entry || is_gone(t) || element_size(tensor.dtype) == 0 ||
        digest_of(catalog_, tensor) == entry->digest)
      continue;
    report_.rebuilt.push_back({file_of(tensor.pieces[0].extent.file),
                               tensor.name + " is not what the manifest says",
                               false});
    for (size_t p = 0; p < tensor.pieces.size(); ++p)
      gone_[t][p] = {{0, element_count(tensor.pieces[p])}};
    Tensor turned = tensor;
    std::ranges::reverse(turned.pieces);
    if (digest_of(catalog_, turned) != entry->digest) continue;
    // The last copy of each box is right.
    for (size_t p = tensor.pieces.size(); p-- > 0;) {
      bool first = true;
      for (size_t q = p + 1; q < tensor.pieces.size(); ++q)
        first = first && !same_place(tensor.pieces[p], tensor.pieces[q]);
      if (first) gone_[t][p].clear();
    }
    from_replicas();
  }
}

// A tensor shared by two parts of a model is stored twice, under two names: the
// manifest has one digest for both.
void Salvager::from_tied() {
  if (!manifest()) return;
  for (size_t t = 0; t < gone_.size(); ++t) {
    if (!is_gone(t)) continue;
    const Tensor& tensor = catalog_.tensors[t];
    for (size_t other = 0; other < gone_.size() && is_gone(t); ++other) {
      if (other == t || is_gone(other)) continue;
      if (take_same(catalog_, catalog_.tensors[other], t))
        report_.rebuilt.push_back({"",
                                   tensor.name + " from " +
                                       catalog_.tensors[other].name +
                                       ": the manifest has the same digest",
                                   false});
    }
  }
}

// Takes another step's tensor if its digest is the one that this one had.
void Salvager::from_like() {
  Catalog* like = files_.like();
  if (!like) return;
  for (size_t t = 0; t < gone_.size(); ++t) {
    if (!is_gone(t)) continue;
    const std::string& name = catalog_.tensors[t].name;
    const Tensor* other = like->find(name);
    if (other && take_same(*like, *other, t))
      report_.rebuilt.push_back({"",
                                 name + " from " + options_.like +
                                     ": the manifest has the same digest",
                                 false});
  }
}

// False if nothing proves that they are the same.
bool Salvager::take_same(const Catalog& from, const Tensor& other, size_t t) {
  const Tensor& tensor = catalog_.tensors[t];
  const Manifest::Entry* entry = entry_of(tensor);
  if (!entry || other.dtype != tensor.dtype || other.shape != tensor.shape)
    return false;
  if (const Manifest::Entry* theirs = entry_of(other);
      &from == &catalog_ && (!theirs || theirs->digest != entry->digest))
    return false;
  if (digest_of(from, other) != entry->digest) return false;
  for (size_t p = 0; p < tensor.pieces.size(); ++p)
    take_piece(from, other, t, p);
  return true;
}

void Salvager::take_piece(const Catalog& from, const Tensor& other, size_t t,
                          size_t p) {
  const Tensor& tensor = catalog_.tensors[t];
  const Piece& piece = tensor.pieces[p];
  if (gone_[t][p].empty() || piece.transform != kNoTransform) return;
  const uint64_t size = element_size(tensor.dtype);
  const std::vector<std::byte> box =
      reshard::read_box(from, other, piece.box, run_);
  const uint64_t base = piece.flat ? piece.flat->begin : 0;
  put(tensor, piece, gone_[t][p], [&](uint64_t first, uint64_t many) {
    return std::string(
        reinterpret_cast<const char*>(box.data()) + (base + first) * size,
        many * size);
  });
  gone_[t][p].clear();
}

// Elements are gone if no copy of them is left; then every copy is filled.
void Salvager::list_gone() {
  for (size_t t = 0; t < gone_.size(); ++t) {
    const Tensor& tensor = catalog_.tensors[t];
    const std::string fill = filler(tensor.dtype, options_.fill == Fill::kNan);
    for (size_t p = 0; p < tensor.pieces.size(); ++p) {
      const Piece& piece = tensor.pieces[p];
      if (gone_[t][p].empty()) continue;
      bool listed = false;
      for (size_t q = 0; q < p; ++q)
        listed = listed || same_place(piece, tensor.pieces[q]);
      if (!listed) list(tensor, piece, gone_[t][p]);
      if (options_.fill == Fill::kRefuse || element_size(tensor.dtype) == 0 ||
          (options_.fill == Fill::kZeros && widened_.contains(t)))
        continue;
      std::string one = fill;
      if (piece.transform & kSwapBytes) std::ranges::reverse(one);
      put(tensor, piece, gone_[t][p], [&](uint64_t, uint64_t many) {
        std::string bytes;
        for (uint64_t i = 0; i < many; ++i) bytes += one;
        return bytes;
      });
    }
  }
}

// Bytes that no tensor has: those of values. There is nothing to fill them with
// that would be right.
void Salvager::list_lost_values() {
  std::map<std::string, std::vector<salvage::Range>> held;
  for (const Tensor& tensor : catalog_.tensors)
    for (const Piece& piece : tensor.pieces) {
      const std::string file = file_of(piece.extent.file);
      if (file.empty() || !files_.gone.contains(file)) continue;
      for_each_run(tensor, piece, {{0, element_count(piece)}},
                   [&](uint64_t, uint64_t offset, uint64_t many) {
                     held[file].push_back(
                         {offset, offset + many * element_size(tensor.dtype)});
                   });
    }
  for (const auto& [file, gone] : files_.gone) {
    const auto own = salvage::normalized(held[file]);
    uint64_t bytes = 0;
    for (const salvage::Range& range : gone)
      for (const salvage::Range& rest : salvage::without(range, own))
        bytes += rest.end - rest.begin;
    if (bytes)
      report_.lost.push_back(
          {file, fmt::format("{} bytes of values inside objects", bytes),
           false});
  }
}

void Salvager::list(const Tensor& tensor, const Piece& piece,
                    const Elements& elements) {
  const uint64_t base = piece.flat ? piece.flat->begin : 0;
  for (const FlatRange& range : elements)
    report_.gone.push_back(
        {.tensor = tensor.name,
         .dtype = tensor.dtype,
         .box = piece.box,
         .elements = {base + range.begin, base + range.end},
         .bytes = (range.end - range.begin) * element_size(tensor.dtype),
         .file = file_of(piece.extent.file)});
}

bool Salvager::is_gone(size_t t) const {
  return std::ranges::any_of(
      gone_[t], [](const Elements& elements) { return !elements.empty(); });
}

}  // namespace ckpt::library
