// SPDX-License-Identifier: Apache-2.0
#include "containers/zarr/chunks.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/codec/delta.h"
#include "lib/io/file.h"
#include "lib/lost_file.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::zarr {
namespace {

using text::printable;
using Severity = Problem::Severity;

// A decimal index as zarr writes it: no leading zeros.
std::optional<uint64_t> parse_index(std::string_view text) {
  return text::number(text, text::Zeros::kRefused);
}

// "0.3.1" with exactly `rank` numbers.
std::optional<Dims> parse_indices(std::string_view text, size_t rank) {
  Dims index;
  while (true) {
    const size_t dot = text.find('.');
    const auto value = parse_index(text.substr(0, dot));
    if (!value || index.size() == rank) return std::nullopt;
    index.push_back(*value);
    if (dot == std::string_view::npos) break;
    text.remove_prefix(dot + 1);
  }
  return index.size() == rank ? std::optional(index) : std::nullopt;
}

class Chunks {
 public:
  Chunks(const Array& array, Catalog& catalog, Tensor& tensor)
      : array_(array),
        catalog_(catalog),
        tensor_(tensor),
        item_(element_size(array.dtype)),
        grid_(grid_of(array.shape, array.chunks)),
        grid_strides_(row_major_strides(grid_)),
        count_(element_count(grid_).value_or(0)),
        bytes_(byte_size(array.dtype, array.chunks).value_or(0)),
        strides_(chunk_strides()) {}

  void add() {
    if (array_.separator == '/' && array_.shape.size() > 1)
      list_nested();
    else
      list_flat();
    std::ranges::sort(found_, {}, &Found::at);
    check_whole();
    for (const Found& found : found_) add_chunk(found);
    if (found_.size() < count_) add_fills();
    report_strangers();
  }

 private:
  struct Found {
    uint64_t at = 0;   // in the grid, row-major
    std::string name;  // relative to the array's directory
  };

  Where where() const {
    return {printable(array_.directory), printable(tensor_.name)};
  }

  // Bytes between neighbours in a chunk, in each dimension.
  Dims chunk_strides() const {
    Dims strides(array_.chunks.size(), item_);
    uint64_t step = item_;
    for (size_t i = 0; i < strides.size(); ++i) {
      const size_t d = array_.fortran ? i : strides.size() - 1 - i;
      strides[d] = step;
      step *= array_.chunks[d];  // at most the bytes of a chunk
    }
    return strides;
  }

  void list_flat() {
    for (std::string& name : io::list_directory(array_.directory)) {
      const auto index =
          array_.shape.empty()
              ? (name == "0" ? std::optional(Dims()) : std::nullopt)
              : parse_indices(name, array_.shape.size());
      take(std::move(name), index);
    }
  }

  // One directory level for each index except the last.
  void list_nested() {
    std::vector<std::pair<std::string, Dims>> open = {{"", {}}};
    while (!open.empty()) {
      const auto [below, begin] = std::move(open.back());
      open.pop_back();
      for (const std::string& name :
           io::list_directory(io::join(array_.directory, below))) {
        std::string path = below.empty() ? name : io::join(below, name);
        const auto value = parse_index(name);
        Dims index = begin;
        if (value) index.push_back(*value);
        if (!value || index.size() == array_.shape.size())
          take(std::move(path), value ? std::optional(index) : std::nullopt);
        else if (io::is_directory(io::join(array_.directory, path)))
          open.emplace_back(std::move(path), std::move(index));
        else
          take(std::move(path), std::nullopt);
      }
    }
  }

  void take(std::string name, const std::optional<Dims>& index) {
    if (name == ".zarray" || name == ".zattrs") return;
    if (index && count_) {
      uint64_t at = 0;
      bool inside = true;
      for (size_t d = 0; d < grid_.size(); ++d) {
        inside = inside && (*index)[d] < grid_[d];
        if (inside) at += (*index)[d] * grid_strides_[d];
      }
      if (inside) {
        found_.push_back({at, std::move(name)});
        return;
      }
    }
    if (strangers_++ == 0) stranger_ = std::move(name);
  }

  // A chunk that nobody wrote is a loss unless there is a fill value.
  void check_whole() const {
    if (array_.fill || found_.size() == count_) return;
    uint64_t missing = 0;
    while (missing < found_.size() && found_[missing].at == missing) ++missing;
    throw LostFile(
        input_error(where(),
                    "chunk {} is missing ({} of {} chunks are there, and the "
                    "array has no fill value)",
                    chunk_name(index_of(missing), array_.separator),
                    found_.size(), count_)
            .with_hint("copy or download the checkpoint again"));
  }

  Dims index_of(uint64_t at) const {
    Dims index(grid_.size(), 0);
    for (size_t d = 0; d < grid_.size(); ++d) {
      index[d] = at / grid_strides_[d];
      at %= grid_strides_[d];
    }
    return index;
  }

  // The elements of a box of chunks, clipped at the array's edge.
  Box elements(const Box& cells) const {
    Box box = cells;
    for (size_t d = 0; d < box.shape.size(); ++d) {
      const uint64_t chunk = array_.chunks[d];
      const uint64_t begin = cells.offset[d] * chunk;  // in the array
      const uint64_t last = cells.offset[d] + cells.shape[d] - 1;
      const uint64_t room = array_.shape[d] - last * chunk;
      box.offset[d] = begin;
      box.shape[d] = last * chunk - begin + std::min(chunk, room);
    }
    return box;
  }

  void add_chunk(const Found& found) {
    const std::string path = io::join(array_.directory, found.name);
    const uint64_t size = io::file_size(path).value_or(0);
    const bool stored = array_.codec == Codec::kRaw;
    const uint64_t wanted =
        array_.delta ? codec::stored_size(*array_.delta, bytes_).value_or(0)
                     : bytes_;
    if (stored && size != wanted)
      throw input_error({printable(path), printable(tensor_.name)},
                        "chunk of {} bytes, {} {} needs {}", size,
                        name(array_.dtype), to_string(array_.chunks), wanted)
          .with_hint(size < wanted ? "copy or download the file again" : "");
    File file{.path = path, .size = bytes_, .codec = array_.codec};
    if (stored && array_.delta) file.codec = Codec::kStored;
    if (file.codec != Codec::kRaw) file.packed_size = size;
    file.delta = array_.delta;
    Piece piece;
    piece.box = elements({index_of(found.at), Dims(grid_.size(), 1)});
    piece.extent.file = static_cast<uint32_t>(catalog_.files.size());
    piece.extent.strides = strides_of(piece.box.shape);
    if (array_.big_endian) piece.transform = kSwapBytes;
    catalog_.files.push_back(std::move(file));
    tensor_.pieces.push_back(std::move(piece));
  }

  // Empty if this part of a chunk is row-major without gaps.
  Dims strides_of(const Shape& shape) const {
    const Dims packed = row_major_strides(shape);
    for (size_t d = 0; d < shape.size(); ++d)
      if (shape[d] > 1 && packed[d] * item_ != strides_[d]) return strides_;
    return {};
  }

  // The chunks between two existing ones are a run of the grid, which a few
  // boxes cover.
  void add_fills() {
    File file{.path = array_.directory, .codec = Codec::kFill};
    file.size = byte_size(array_.dtype, array_.shape).value_or(0);
    file.fill = *array_.fill;
    const auto number = static_cast<uint32_t>(catalog_.files.size());
    catalog_.files.push_back(std::move(file));
    const Box grid = Box::whole(grid_);
    uint64_t at = 0;
    for (size_t i = 0; i <= found_.size(); ++i) {
      const uint64_t end = i < found_.size() ? found_[i].at : count_;
      if (at < end)
        for (const FlatPart& part : cut(grid, {at, end})) {
          Piece piece;
          piece.box = elements(part.box);
          piece.extent.file = number;
          tensor_.pieces.push_back(std::move(piece));
        }
      at = end + 1;
    }
    catalog_.assumptions.push_back(
        fmt::format("{}: {} of {} chunks have no file and are the fill value",
                    printable(tensor_.name), count_ - found_.size(), count_));
  }

  void report_strangers() {
    if (strangers_ == 0) return;
    catalog_.problems.push_back(warning(
        "foreign_file",
        {printable(io::join(array_.directory, stranger_)), tensor_.name}, "{}",
        strangers_ == 1 ? "is not a chunk of the array and is not read"
                        : fmt::format("and {} more are not chunks of the array "
                                      "and are not read",
                                      strangers_ - 1)));
  }

  const Array& array_;
  Catalog& catalog_;
  Tensor& tensor_;
  const uint64_t item_;       // bytes of an element
  const Dims grid_;           // chunks along each dimension
  const Dims grid_strides_;   // chunks
  const uint64_t count_;      // of chunks; no overflow: elements have none
  const uint64_t bytes_;      // of a chunk
  const Dims strides_;        // bytes, in a chunk
  std::vector<Found> found_;  // in the order of the grid
  uint64_t strangers_ = 0;
  std::string stranger_;  // the first one
};

}  // namespace

void add_chunks(const Array& array, Catalog& catalog, Tensor& tensor) {
  Chunks(array, catalog, tensor).add();
}

}  // namespace ckpt::zarr
