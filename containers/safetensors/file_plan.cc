// SPDX-License-Identifier: Apache-2.0
#include "containers/safetensors/file_plan.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/utf8.h"

namespace ckpt::safetensors {
namespace {

using text::printable;

[[noreturn]] void refuse_dtype(const Tensor& tensor) {
  const bool complex =
      tensor.dtype == DType::c128 || tensor.dtype == DType::c32;
  const std::string leave_out = fmt::format(
      "leave it out with --exclude '{}', or write a format that "
      "has this type: --to torch",
      printable(tensor.name));
  throw unfaithful_error({{}, tensor.name}, "safetensors has no dtype for {}",
                         name(tensor.dtype))
      .with_hint(complex ? "cast it with --dtype c64; or " + leave_out
                         : leave_out);
}

using Ordered = std::vector<std::pair<Described, Tensor*>>;

constexpr uint64_t kBlock = 4096;  // of file systems that share blocks
constexpr uint64_t kWorthPadding = 64 * kBlock;

// Where a tensor's bytes are in the source, if they are one run there.
std::optional<uint64_t> run_in(const Catalog& source, uint32_t id) {
  const Tensor& tensor = source.tensors.at(id);
  if (tensor.pieces.size() != 1 || !tensor.grid.empty()) return {};
  const Piece& piece = tensor.pieces[0];
  const Extent& extent = piece.extent;
  const bool plain = !piece.flat && piece.transform == kNoTransform &&
                     extent.archive == 0 && extent.strides.empty() &&
                     piece.box == Box::whole(tensor.shape);
  if (!plain || source.files.at(extent.file).codec != Codec::kRaw) return {};
  return extent.offset;
}

// How many bytes to put before the data, which would otherwise begin at
// `begin`, so that most of them are aligned as in the source and a file system
// that can will share them. Failing that, the data begin at a block, as in all
// such files of ours, so that one file can share tensors of several.
uint64_t padding(const Catalog* source, const Target& target,
                 const Ordered& ordered, uint64_t begin) {
  std::map<uint64_t, uint64_t> votes;  // bytes by padding
  uint64_t at = begin;
  for (const auto& [entry, tensor] : ordered) {
    const auto id =
        static_cast<uint32_t>(tensor - target.catalog.tensors.data());
    if (const auto from = source ? run_in(*source, id) : std::nullopt)
      votes[(*from % kBlock + kBlock - at % kBlock) % kBlock] += entry.bytes;
    at += entry.bytes;
  }
  if (at - begin < kWorthPadding) return 0;
  const auto best = std::ranges::max_element(
      votes, {}, [](const auto& vote) { return vote.second; });
  // Readers expect the data at a multiple of 8.
  if (best != votes.end() && best->first % 8 == 0 &&
      best->second >= std::max(kWorthPadding, (at - begin) / 2))
    return best->first;
  return (kBlock - begin % kBlock) % kBlock;
}

void pad(std::string& header, uint64_t spaces) {
  header.append(spaces, ' ');
  const uint64_t length = header.size() - 8;
  for (size_t i = 0; i < 8; ++i)
    header[i] = static_cast<char>(length >> (8 * i));
}

}  // namespace

std::string_view stored_as(DType dtype) {
  switch (dtype) {
    case DType::qi8:
      return "I8";
    case DType::qu8:
      return "U8";
    case DType::qi32:
      return "I32";
    case DType::f4x2:
      return "F4";
    default:
      return info(dtype).safetensors;
  }
}

Described describe(const Tensor& tensor) {
  Described described{.name = tensor.name,
                      .dtype = stored_as(tensor.dtype),
                      .shape = tensor.shape,
                      .bytes = 0};
  if (described.dtype.empty()) refuse_dtype(tensor);
  if (tensor.name == kMetadata || !text::is_utf8(tensor.name))
    throw unfaithful_error({{}, tensor.name},
                           "safetensors can't hold a tensor of this name")
        .with_hint("give it another one with --rename");
  if (tensor.dtype == DType::f4x2) {
    const auto doubled = described.shape.empty()
                             ? std::nullopt
                             : checked_mul(described.shape.back(), 2);
    if (!doubled)
      throw unfaithful_error({{}, tensor.name},
                             "f4x2 {} has no dimension that counts F4 values",
                             to_string(tensor.shape));
    described.shape.back() = *doubled;
  }
  const auto bytes = byte_size(tensor.dtype, tensor.shape);
  const uint32_t bits = info(tensor.dtype).bits;
  if (!bytes || (bits % 8 && *element_count(tensor.shape) * bits % 8))
    throw unfaithful_error({{}, tensor.name},
                           "{} {} fills no whole number of bytes",
                           name(tensor.dtype), to_string(tensor.shape));
  described.bytes = *bytes;
  return described;
}

void add_file(Target& target, const std::string& path,
              std::span<const uint32_t> tensors,
              const std::optional<Metadata>& metadata, const Catalog* source) {
  std::vector<std::pair<size_t, Tensor*>> by_rank;
  for (const uint32_t id : tensors) {
    Tensor& tensor = target.catalog.tensors.at(id);
    by_rank.emplace_back(dtype_rank(stored_as(tensor.dtype)), &tensor);
  }
  std::ranges::sort(by_rank, {}, [](const auto& item) {
    return std::pair(item.first, std::string_view(item.second->name));
  });
  Ordered ordered;
  for (const auto& [rank, tensor] : by_rank)
    ordered.emplace_back(describe(*tensor), tensor);
  std::vector<Described> described;
  for (const auto& item : ordered) described.push_back(item.first);
  std::string header = encode_header(described, metadata);
  const bool alike = source && source->format == kFormat;
  pad(header,
      padding(alike ? source : nullptr, target, ordered, header.size()));
  if (header.size() - 8 > kMaxHeader)
    throw unfaithful_error({path, {}},
                           "a header of {} bytes for {} tensors, safetensors "
                           "allows {}",
                           header.size() - 8, tensors.size(), kMaxHeader)
        .with_hint("spread them over files with --max-shard-size");

  const auto number = static_cast<uint32_t>(target.catalog.files.size());
  uint64_t at = header.size();
  for (const auto& [entry, tensor] : ordered) {
    tensor->pieces.push_back(
        {.box = Box::whole(tensor->shape),
         .flat = {},
         .extent = {.offset = at, .strides = {}, .file = number}});
    const auto end = checked_add(at, entry.bytes);
    if (!end)
      throw unfaithful_error({path, tensor->name},
                             "file size overflows 64 bits");
    at = *end;
  }
  target.catalog.files.push_back({.path = path, .size = at});
  TargetFile& file = target.files.emplace_back();
  file.path = path;
  file.size = at;
  file.literals.push_back({0, std::move(header)});
}

}  // namespace ckpt::safetensors
