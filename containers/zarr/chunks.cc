// SPDX-License-Identifier: Apache-2.0
#include "containers/zarr/chunks.h"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/codec/delta.h"
#include "lib/codec/pack.h"
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
std::optional<Dims> parse_indices(std::string_view text, char separator,
                                  size_t rank) {
  Dims index;
  while (true) {
    const size_t dot = text.find(separator);
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
        cell_(array.sharded ? array.inner : array.chunks),
        bytes_(byte_size(array.dtype, cell_).value_or(0)),
        strides_(chunk_strides()) {}

  void add() {
    if (array_.database)
      list_keys();
    else
      list_files();
    std::ranges::sort(found_, {}, &Found::at);
    check_whole();
    for (const Found& found : found_)
      !array_.sharded
          ? add_chunk(elements({index_of(found.at), Dims(grid_.size(), 1)},
                               array_.chunks),
                      place_of(found))
          : add_shard(found);
    if (found_.size() < count_) add_fills();
    report_strangers();
  }

 private:
  struct Found {
    uint64_t at = 0;                      // in the grid, row-major
    std::string name;                     // relative to the array's directory
    const ocdbt::Value* value = nullptr;  // in the database
  };

  Where where() const {
    return {printable(array_.directory), printable(tensor_.name)};
  }

  // Bytes between neighbours in a chunk, in each dimension.
  Dims chunk_strides() const {
    Dims strides(cell_.size(), item_);
    uint64_t step = item_;
    for (size_t i = 0; i < strides.size(); ++i) {
      const size_t d = array_.fortran ? i : strides.size() - 1 - i;
      strides[d] = step;
      step *= cell_[d];  // at most the bytes of a chunk
    }
    return strides;
  }

  void list_keys() {
    const ocdbt::Database& all = *array_.database;
    for (auto at = all.lower_bound(array_.key);
         at != all.end() && at->first.starts_with(array_.key); ++at)
      take(at->first.substr(array_.key.size()), &at->second);
  }

  // One directory level for each part of a chunk's name.
  void list_files() {
    const bool nested = array_.separator == '/';
    const size_t rank = array_.shape.size();
    const size_t levels =
        nested ? std::max<size_t>(1, rank + !array_.first.empty()) : 1;
    std::vector<std::pair<std::string, size_t>> open = {{"", 1}};
    while (!open.empty()) {
      const auto [below, level] = std::move(open.back());
      open.pop_back();
      for (std::string& name :
           io::list_directory(io::join(array_.directory, below))) {
        const bool part =
            parse_index(name) || (level == 1 && name == array_.first);
        std::string path = below.empty() ? name : io::join(below, name);
        if (level < levels && part &&
            io::is_directory(io::join(array_.directory, path)))
          open.emplace_back(std::move(path), level + 1);
        else
          take(std::move(path), nullptr);
      }
    }
  }

  // "c/0/1" -> {0, 1}
  std::optional<Dims> index_in(std::string_view name) const {
    const size_t rank = array_.shape.size();
    if (!array_.first.empty()) {
      if (!name.starts_with(array_.first)) return std::nullopt;
      name.remove_prefix(array_.first.size());
      if (rank == 0) return name.empty() ? std::optional(Dims()) : std::nullopt;
      if (!name.starts_with(array_.separator)) return std::nullopt;
      name.remove_prefix(1);
    } else if (rank == 0) {
      return name == "0" ? std::optional(Dims()) : std::nullopt;
    }
    return parse_indices(name, array_.separator, rank);
  }

  void take(std::string name, const ocdbt::Value* value) {
    if (name == ".zarray" || name == ".zattrs" || name == "zarr.json") return;
    const auto index = count_ ? index_in(name) : std::nullopt;
    if (index) {
      uint64_t at = 0;
      bool inside = true;
      for (size_t d = 0; d < grid_.size(); ++d) {
        inside = inside && (*index)[d] < grid_[d];
        if (inside) at += (*index)[d] * grid_strides_[d];
      }
      if (inside) {
        found_.push_back({at, std::move(name), value});
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

  // The elements of a box of cells, each of that size, clipped at the array's
  // edge.
  Box elements(const Box& cells, const Dims& cell) const {
    Box box = cells;
    for (size_t d = 0; d < box.shape.size(); ++d) {
      const uint64_t chunk = cell[d];
      const uint64_t begin = cells.offset[d] * chunk;  // in the array
      const uint64_t last = cells.offset[d] + cells.shape[d] - 1;
      const uint64_t room = array_.shape[d] - last * chunk;
      box.offset[d] = begin;
      box.shape[d] = last * chunk - begin + std::min(chunk, room);
    }
    return box;
  }

  // Where a stored chunk is.
  struct Place {
    std::string path;
    uint64_t offset = 0, size = 0;
    const std::string* inline_bytes = nullptr;  // it is in no file
    std::string_view bytes() const {
      return std::string_view(*inline_bytes).substr(offset, size);
    }
  };

  Place place_of(const Found& found) const {
    if (!found.value) {
      std::string path = io::join(array_.directory, found.name);
      const uint64_t size = io::file_size(path).value_or(0);
      return {std::move(path), 0, size, nullptr};
    }
    const ocdbt::Value& value = *found.value;
    if (!value.path.empty())
      return {value.path, value.offset, value.size, nullptr};
    return {io::join(array_.directory, array_.key + found.name), 0, value.size,
            &value.inline_bytes};
  }

  void add_chunk(const Box& box, const Place& place) {
    const bool stored = array_.codec == Codec::kRaw;
    const uint64_t wanted =
        array_.delta ? codec::stored_size(*array_.delta, bytes_).value_or(0)
                     : bytes_;
    if (stored && place.size != wanted)
      throw input_error({printable(place.path), printable(tensor_.name)},
                        "chunk of {} bytes, {} {} needs {}", place.size,
                        name(array_.dtype), to_string(cell_), wanted)
          .with_hint(place.size < wanted ? "copy or download the file again"
                                         : "");
    if (place.inline_bytes) return add_inline(box, place);
    File file{.path = place.path, .size = bytes_, .codec = array_.codec};
    if (stored && array_.delta) file.codec = Codec::kStored;
    Piece piece;
    if (file.codec != Codec::kRaw) {
      file.packed_offset = place.offset;
      file.packed_size = place.size;
    } else {
      file.size += place.offset;
      piece.extent.offset = place.offset;
    }
    file.delta = array_.delta;
    piece.box = box;
    piece.extent.file = static_cast<uint32_t>(catalog_.files.size());
    piece.extent.strides = strides_of(piece.box.shape);
    if (array_.big_endian) piece.transform = kSwapBytes;
    catalog_.files.push_back(std::move(file));
    tensor_.pieces.push_back(std::move(piece));
  }

  // A value in a node of a database is in no range of a file. It has 100 bytes
  // or so, packed, so its elements become pieces: a run of equal ones each.
  void add_inline(const Box& box, const Place& place) {
    constexpr uint64_t kMostBytes = uint64_t{16} << 20;
    constexpr size_t kMostRuns = 1 << 16;
    const Where where{printable(place.path), printable(tensor_.name)};
    if (bytes_ > kMostBytes || array_.big_endian || array_.delta)
      throw resource_error(where,
                           "a chunk in a node of the database, which ckpt "
                           "does not read: of {} bytes{}",
                           bytes_, array_.big_endian ? ", big-endian" : "");
    std::string plain(bytes_, '\0');
    const std::string_view packed = place.bytes();
    if (array_.codec == Codec::kRaw)
      plain = packed;
    else
      codec::unpack(array_.codec, std::as_bytes(std::span(packed)),
                    std::as_writable_bytes(std::span(plain)), where);
    const Box inside = Box::whole(box.shape);
    const Dims dense = row_major_strides(box.shape);
    const uint64_t count = element_count(box.shape).value_or(0);
    const auto element = [&](uint64_t at) {
      uint64_t byte = 0;
      for (size_t d = 0; d < dense.size(); ++d) {
        byte += at / dense[d] * strides_[d];
        at %= dense[d];
      }
      return std::string_view(plain).substr(byte, item_);
    };
    size_t runs = 0;
    for (uint64_t begin = 0; begin < count;) {
      uint64_t end = begin + 1;
      while (end < count && element(end) == element(begin)) ++end;
      if (++runs > kMostRuns)
        throw resource_error(where,
                             "a chunk in a node of the database has more "
                             "than {} different elements",
                             kMostRuns);
      const uint32_t file = fill_file(std::string(element(begin)));
      for (const FlatPart& part : cut(inside, {begin, end})) {
        Piece piece;
        piece.box = part.box;
        for (size_t d = 0; d < box.offset.size(); ++d)
          piece.box.offset[d] += box.offset[d];
        piece.extent.file = file;
        tensor_.pieces.push_back(std::move(piece));
      }
      begin = end;
    }
  }

  // A shard's index: offset and size of each chunk in it, row-major; all ones
  // for one that is not there.
  void add_shard(const Found& found) {
    const Place shard = place_of(found);
    const Where where{printable(shard.path), printable(tensor_.name)};
    const Dims grid = grid_of(array_.chunks, array_.inner);
    const uint64_t count = element_count(grid).value_or(0);
    const uint64_t most = shard.size / 16;
    const uint64_t size = 16 * std::min(count, most) + 4 * array_.index_sum;
    if (count > most || size > shard.size)
      throw input_error(where, "a shard of {} bytes, its index has {} chunks",
                        shard.size, count)
          .with_hint("copy or download the file again");
    const uint64_t at = array_.index_at_start ? 0 : shard.size - size;
    const std::string index = shard.inline_bytes
                                  ? std::string(shard.bytes().substr(at, size))
                                  : io::Handle::open_read(shard.path)
                                        .read_string(shard.offset + at, size);
    const auto number = [&](uint64_t byte, size_t width) {
      uint64_t value = 0;
      for (size_t i = 0; i < width; ++i)
        value |= uint64_t{static_cast<uint8_t>(index[byte + i])} << (8 * i);
      return value;
    };
    if (array_.index_sum &&
        number(16 * count, 4) !=
            ocdbt::crc32c(std::string_view(index).substr(0, 16 * count)))
      throw input_error(where, "its index does not have the CRC-32C beside it")
          .with_hint("copy or download the file again");
    const Dims outer = index_of(found.at);
    const Dims dense = row_major_strides(grid);
    for (uint64_t i = 0; i < count; ++i) {
      Box cell{outer, Dims(grid.size(), 1)};
      bool inside = true;
      uint64_t rest = i;
      for (size_t d = 0; d < grid.size(); ++d) {
        cell.offset[d] = outer[d] * grid[d] + rest / dense[d];
        rest %= dense[d];
        inside = inside && cell.offset[d] * cell_[d] < array_.shape[d];
      }
      if (!inside) continue;  // past the array's edge
      const uint64_t offset = number(16 * i, 8), bytes = number(16 * i + 8, 8);
      const Box box = elements(cell, cell_);
      if (offset == UINT64_MAX && bytes == UINT64_MAX) {
        add_absent(box, where);
        continue;
      }
      if (offset > shard.size || bytes > shard.size - offset)
        throw input_error(
            where, "its chunk {} is at {} with {} bytes, of {} there are", i,
            offset, bytes, shard.size)
            .with_hint("copy or download the file again");
      add_chunk(box,
                {shard.path, shard.offset + offset, bytes, shard.inline_bytes});
    }
  }

  void add_absent(const Box& box, const Where& where) {
    if (!array_.fill)
      throw input_error(where, "lacks a chunk, and the array has no fill value")
          .with_hint("copy or download the checkpoint again");
    Piece piece;
    piece.box = box;
    piece.extent.file = fill_file(*array_.fill);
    tensor_.pieces.push_back(std::move(piece));
  }

  uint32_t fill_file(const std::string& element) {
    const auto known = fills_.find(element);
    if (known != fills_.end()) return known->second;
    File file{.path = array_.directory, .codec = Codec::kFill};
    file.size = byte_size(array_.dtype, array_.shape).value_or(0);
    file.fill = element;
    const auto number = static_cast<uint32_t>(catalog_.files.size());
    catalog_.files.push_back(std::move(file));
    return fills_[element] = number;
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
    const uint32_t number = fill_file(*array_.fill);
    const Box grid = Box::whole(grid_);
    uint64_t at = 0;
    for (size_t i = 0; i <= found_.size(); ++i) {
      const uint64_t end = i < found_.size() ? found_[i].at : count_;
      if (at < end)
        for (const FlatPart& part : cut(grid, {at, end})) {
          Piece piece;
          piece.box = elements(part.box, array_.chunks);
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
  const Dims cell_;           // elements of a chunk that is packed by itself
  const uint64_t bytes_;      // of such a chunk
  const Dims strides_;        // bytes, in one
  std::vector<Found> found_;  // in the order of the grid
  uint64_t strangers_ = 0;
  std::string stranger_;                                // the first one
  std::map<std::string, uint32_t, std::less<>> fills_;  // files, by element
};

}  // namespace

void add_chunks(const Array& array, Catalog& catalog, Tensor& tensor) {
  Chunks(array, catalog, tensor).add();
}

}  // namespace ckpt::zarr
