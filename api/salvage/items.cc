// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "api/salvage/salvager.h"
#include "lib/io/file.h"
#include "lib/zip/headers.h"
#include "reshard/run/crc_check.h"

namespace ckpt::library {

// Each item that can't be opened is gone, but not its neighbours.
void Salvager::locate_all() {
  Catalog all = catalog_;
  try {
    locate(all);
    catalog_ = std::move(all);
    return;
  } catch (const Error& error) {
    if (!is_answer(error)) throw;
  }
  Catalog one = catalog_;
  const auto opener = one.archive_opener;
  one.tensors.resize(1);
  for (Tensor& tensor : catalog_.tensors) {
    for (Piece& piece : tensor.pieces) {
      if (!piece.extent.archive) continue;
      one.tensors[0] = tensor;
      one.tensors[0].pieces = {piece};
      one.archive_opener = opener;
      try {
        locate(one);
        piece = one.tensors[0].pieces[0];
      } catch (const Error& error) {
        if (!is_answer(error)) throw;
        rebuild_item(tensor, piece, error);
      }
    }
  }
  catalog_.files = one.files;
  catalog_.crcs = one.crcs;
  catalog_.archive_opener = nullptr;
}

// Values in items of their own: another step's is better than none, but it is
// not this step's.
void Salvager::check_objects() {
  try {
    Catalog all = catalog_;
    load_objects(all);
    catalog_.crcs = std::move(all.crcs);  // with those of values
    return;
  } catch (const Error& error) {
    if (!is_answer(error)) throw;
  }
  Catalog one = catalog_without_tensors(catalog_);
  for (const Object& object : catalog_.objects) {
    if (object.document || object.bytes == 0) continue;
    one.objects = {object};
    one.object_opener = catalog_.object_opener;
    try {
      load_objects(one);
    } catch (const Error& error) {
      if (!is_answer(error)) throw;
      replace_object(object, error);
    }
  }
  std::ranges::move(one.crcs, std::back_inserter(catalog_.crcs));
}

void Salvager::replace_object(const Object& object, const Error& error) {
  const std::string file = file_of(object.file);
  const Catalog* like = files_.like();
  const Object* other = nullptr;
  if (like)
    for (const Object& theirs : like->objects)
      if (theirs.name == object.name && theirs.bytes == object.bytes)
        other = &theirs;
  if (file.empty() || !other || like->files[other->file].codec != Codec::kRaw)
    throw error;
  const std::string from = like->files[other->file].path;
  io::copy_range(io::Handle::open_read(from), other->offset, files_.edit(file),
                 object.offset, object.bytes);
  report_.lost.push_back(
      {file, fmt::format("{}: its value is that of {}", object.name, from),
       true});
}

// An item that can't be opened gets a frame as torch writes it.
void Salvager::rebuild_item(const Tensor& tensor, Piece& piece,
                            const Error& error) {
  const std::string file = file_of(piece.extent.file);
  const uint64_t begin = piece.extent.offset;
  const auto item =
      file.empty() || element_size(tensor.dtype) == 0
          ? std::nullopt
          : salvage::repair_item(
                files_.shadow().path(file), begin, piece.extent.archive,
                tensor.dtype,
                piece.flat ? Shape{piece.flat->end - piece.flat->begin}
                           : piece.box.shape);
  if (!item)
    throw input_error({source_, tensor.name},
                      "the item that holds it can't be rebuilt: {}",
                      error.problem())
        .with_hint("--like OTHER, another step, may have the file whole");
  const io::Handle to = files_.edit(file);
  for (const Literal& literal : item->literals)
    to.write(literal.offset, std::string_view(literal.bytes));
  files_.crcs[file].push_back(item->crc);
  report_.rebuilt.push_back(
      {file,
       fmt::format("{}: the frame of the item at byte {}", tensor.name, begin),
       false});
  auto& gone = files_.gone[file];
  // What is still gone of the item is now its payload, or nothing.
  std::vector<salvage::Range> rest;
  for (const salvage::Range& range : gone)
    std::ranges::copy(
        salvage::without(range, {{begin, begin + piece.extent.archive}}),
        std::back_inserter(rest));
  gone = std::move(rest);
  if (!item->payload_is_right) gone.push_back(item->payload);
  gone = salvage::normalized(std::move(gone));
  piece.extent.offset = item->payload.begin;
  piece.extent.archive = 0;
  piece.extent.strides = {};
}

void Salvager::check_crcs() {
  std::vector<uint32_t> all(catalog_.crcs.size());
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  progress_.begin("checking", reshard::crc_bytes(catalog_));
  reshard::RunOptions run = run_;
  run.progress = progress_;
  for (const auto& [index, problem] : reshard::check_crcs(catalog_, all, run)) {
    const StoredCrc& crc = catalog_.crcs[index];
    const std::string file = file_of(crc.file);
    if (file.empty())
      throw input_error({source_, {}}, "a compressed record is damaged: {}",
                        problem.message);
    auto& gone = files_.gone[file];
    gone.push_back({crc.begin, crc.end});
    gone = salvage::normalized(std::move(gone));
    report_.rebuilt.push_back({file, problem.message, false});
    remember_crc(file, crc);
  }
  progress_.end();
}

// Where a record's checksum is stored: in the descriptor after it and in its
// directory entry.
void Salvager::remember_crc(const std::string& file, const StoredCrc& crc) {
  constexpr uint64_t kFar = 1 << 16;
  const io::Handle handle = io::Handle::open_read(files_.shadow().path(file));
  const std::string tail =
      handle.read_string(crc.end, std::min(kFar, handle.size() - crc.end));
  LateCrc late{.begin = crc.begin, .end = crc.end, .at = {}};
  if (tail.size() >= 8 &&
      zip::load<uint32_t>(tail, 0) == zip::kDescriptorSignature)
    late.at.push_back(crc.end + 4);
  for (size_t at = tail.find("PK\1\2"); at != tail.npos;
       at = tail.find("PK\1\2", at + 4)) {
    if (at + zip::kDirectoryEntrySize > tail.size()) break;
    if (zip::load<uint32_t>(tail, at + zip::kCrcInEntry) != crc.crc32) continue;
    late.at.push_back(crc.end + at + zip::kCrcInEntry);
    break;
  }
  files_.crcs[file].push_back(late);
}

std::string Salvager::file_of(uint32_t index) const {
  const File& file = catalog_.files[index];
  return file.codec == Codec::kRaw ? files_.name_of(file.path) : "";
}

Catalog Salvager::catalog_without_tensors(const Catalog& catalog) {
  Catalog one;
  one.format = catalog.format;
  one.path = catalog.path;
  one.files = catalog.files;
  return one;
}

}  // namespace ckpt::library
