// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/nanotron/slices.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::runs::nanotron {
namespace {

using text::printable;

constexpr size_t kMaxSlices = 4096;
constexpr std::string_view kAll = "None";

[[noreturn]] void bad(const std::string& path, std::string_view what,
                      std::string_view text) {
  throw input_error({path, {}}, "{}: \"{}\" is malformed", what,
                    printable(text.substr(0, 100)));
}

std::vector<std::string_view> words_of(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

Box read_box(std::string_view text, const Shape& shape,
             std::vector<size_t>& numbers, const std::string& path) {
  const auto dims = words_of(text, '|');
  if (dims.size() != shape.size()) bad(path, "a slice", text);
  Box box;
  for (size_t d = 0; d < dims.size(); ++d) {
    const auto parts = words_of(dims[d], ',');
    if (parts.size() != 3 || (parts[2] != kAll && parts[2] != "1"))
      bad(path, "a slice", text);
    const auto begin =
        parts[0] == kAll ? std::optional<uint64_t>(0) : text::number(parts[0]);
    const auto end = parts[1] == kAll ? std::optional<uint64_t>(shape[d])
                                      : text::number(parts[1]);
    if (!begin || !end || *begin > *end || *end > shape[d])
      bad(path, "a slice", text);
    if (parts[0] != kAll || parts[1] != kAll) numbers.push_back(d);
    box.offset.push_back(*begin);
    box.shape.push_back(*end - *begin);
  }
  return box;
}

std::string box_text(const Box& box, const std::vector<size_t>& numbers) {
  std::string text;
  for (size_t d = 0; d < box.shape.size(); ++d) {
    if (d != 0) text += '|';
    if (std::ranges::find(numbers, d) == numbers.end())
      text += "None,None,None";
    else
      text += fmt::format("{},{},None", box.offset[d],
                          box.offset[d] + box.shape[d]);
  }
  return text;
}

Dims byte_strides(const Shape& shape, DType dtype) {
  Dims strides = row_major_strides(shape);
  for (uint64_t& stride : strides) stride *= element_size(dtype);
  return strides;
}

// True if the elements of `box` follow each other in rows of `strides`.
bool follows(const Box& box, const Dims& strides, DType dtype) {
  uint64_t next = element_size(dtype);
  for (size_t d = box.shape.size(); d-- > 0;) {
    if (box.shape[d] == 1) continue;
    if (strides[d] != next) return false;
    next *= box.shape[d];
  }
  return true;
}

// Of a rank's tensor the box `local`, whose first element is at `offset` bytes
// in the file: its pieces in the whole.
void add_box(const Share& share, const Box& local, const Piece& stored,
             uint64_t offset, const Dims& strides, DType dtype,
             std::vector<Piece>& out) {
  for (const Slice& slice : share.slices) {
    Piece piece = stored;
    piece.flat.reset();
    piece.box = slice.global;
    piece.extent.offset = offset;
    bool meets = true;
    for (size_t d = 0; d < strides.size() && meets; ++d) {
      const uint64_t begin = std::max(slice.local.offset[d], local.offset[d]);
      const uint64_t end =
          std::min(slice.local.offset[d] + slice.local.shape[d],
                   local.offset[d] + local.shape[d]);
      meets = begin < end;
      if (!meets) break;
      piece.box.offset[d] += begin - slice.local.offset[d];
      piece.box.shape[d] = end - begin;
      piece.extent.offset += (begin - local.offset[d]) * strides[d];
    }
    if (!meets) continue;
    piece.extent.strides =
        follows(piece.box, strides, dtype) ? Dims() : strides;
    out.push_back(std::move(piece));
  }
}

}  // namespace

// With numpy 2 "(np.int64(36), 12)".
Shape read_shape(std::string_view text, const std::string& path) {
  constexpr std::string_view kNumpy = "np.int64(";
  const std::string_view all = text;
  if (!text.starts_with('(') || !text.ends_with(')'))
    bad(path, "unsharded_shape", all);
  text = text.substr(1, text.size() - 2);
  Shape shape;
  for (std::string_view part : words_of(text, ',')) {
    while (part.starts_with(' ')) part.remove_prefix(1);
    if (part.empty()) continue;  // "(12,)"
    if (part.starts_with(kNumpy) && part.ends_with(')'))
      part = part.substr(kNumpy.size(), part.size() - kNumpy.size() - 1);
    const auto value = text::number(part);
    if (!value || shape.size() == kMaxRank) bad(path, "unsharded_shape", all);
    shape.push_back(*value);
  }
  return shape;
}

std::vector<Slice> read_slices(std::string_view text, const Shape& local,
                               const Shape& global, const std::string& path) {
  std::vector<Slice> slices;
  for (const std::string_view pair : words_of(text, ';')) {
    const auto sides = words_of(pair, '#');
    if (sides.size() != 2 || slices.size() == kMaxSlices)
      bad(path, "local_global_slices_pairs", text);
    Slice slice;
    slice.local = read_box(sides[0], local, slice.local_numbers, path);
    slice.global = read_box(sides[1], global, slice.global_numbers, path);
    if (slice.local.shape != slice.global.shape)
      bad(path, "local_global_slices_pairs", text);
    slices.push_back(std::move(slice));
  }
  return slices;
}

std::string to_text(const std::vector<Slice>& slices) {
  std::string text;
  for (const Slice& slice : slices) {
    if (!text.empty()) text += ';';
    text += box_text(slice.local, slice.local_numbers) + '#' +
            box_text(slice.global, slice.global_numbers);
  }
  return text;
}

std::optional<Cut> find_cut(const Shape& whole,
                            const std::vector<Share>& shares) {
  if (shares.empty() || shares[0].slices.empty()) return std::nullopt;
  const Slice& first = shares[0].slices[0];
  // One rank's slice is the whole; which dimension is cut, its numbers say.
  if (first.global_numbers.size() != 1) return std::nullopt;
  Cut cut{.dim = first.global_numbers[0],
          .chunks = {},
          .listed = !first.local_numbers.empty()};
  uint64_t sum = 0;
  for (const Slice& slice : shares[0].slices) {
    const auto chunk = checked_mul(slice.global.shape[cut.dim], shares.size());
    const auto total = chunk ? checked_add(sum, *chunk) : std::nullopt;
    if (!total || *total > whole[cut.dim]) return std::nullopt;
    cut.chunks.push_back(*chunk);
    sum = *total;
  }
  if (sum != whole[cut.dim]) return std::nullopt;
  for (const Share& share : shares) {
    const auto mine = share_of(cut, whole, share.tp, shares.size());
    if (!mine || mine->shape != share.shape ||
        mine->slices.size() != share.slices.size())
      return std::nullopt;
    for (size_t i = 0; i < mine->slices.size(); ++i)
      if (mine->slices[i].local != share.slices[i].local ||
          mine->slices[i].global != share.slices[i].global)
        return std::nullopt;
  }
  return cut;
}

std::optional<Share> share_of(const Cut& cut, const Shape& whole, uint64_t rank,
                              uint64_t ranks) {
  Share share{.tp = rank, .shape = whole, .slices = {}};
  uint64_t local = 0, global = 0;
  for (const uint64_t chunk : cut.chunks) {
    if (chunk % ranks != 0) return std::nullopt;
    const uint64_t length = chunk / ranks;
    Slice slice{.local = Box::whole(whole),
                .global = Box::whole(whole),
                .local_numbers = {},
                .global_numbers = {cut.dim}};
    slice.local.offset[cut.dim] = local;
    slice.global.offset[cut.dim] = global + rank * length;
    slice.local.shape[cut.dim] = slice.global.shape[cut.dim] = length;
    if (cut.listed) slice.local_numbers = {cut.dim};
    share.slices.push_back(std::move(slice));
    local += length;
    global += chunk;
  }
  share.shape[cut.dim] = local;
  return share;
}

Share all_of(const Shape& whole) {
  return {.tp = 0,
          .shape = whole,
          .slices = {{.local = Box::whole(whole),
                      .global = Box::whole(whole),
                      .local_numbers = {},
                      .global_numbers = {}}}};
}

void add_pieces(const Share& share, const Piece& stored, DType dtype,
                std::vector<Piece>& out) {
  const Dims& strides = stored.extent.strides;
  add_box(share, Box::whole(share.shape), stored, stored.extent.offset,
          strides.empty() ? byte_strides(share.shape, dtype) : strides, dtype,
          out);
}

FlatRange zero_run(uint64_t elements, uint64_t rank, uint64_t ranks) {
  const uint64_t each = elements / ranks, more = elements % ranks;
  const uint64_t begin = rank * each + std::min(rank, more);
  return {begin, begin + each + (rank < more ? 1 : 0)};
}

void add_run(const Share& share, const FlatRange& run, const Piece& stored,
             DType dtype, std::vector<Piece>& out) {
  for (const FlatPart& part : ckpt::cut(Box::whole(share.shape), run))
    add_box(share, part.box, stored,
            stored.extent.offset + part.at * element_size(dtype),
            byte_strides(part.box.shape, dtype), dtype, out);
}

}  // namespace ckpt::runs::nanotron
