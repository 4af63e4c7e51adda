// SPDX-License-Identifier: Apache-2.0
#include "reshard/cover.h"

#include <algorithm>
#include <tuple>

#include "ckpt/error.h"
#include "reshard/placed.h"

namespace ckpt::reshard {
namespace {

struct Span {
  uint32_t file = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t tie = 0;
  const Tensor* tensor = nullptr;  // null: a literal
};

uint64_t piece_bytes(const Tensor& tensor, const Piece& piece) {
  if (element_size(tensor.dtype) == 0) return byte_size(tensor);
  const uint64_t count =
      piece.flat ? piece.flat->end - piece.flat->begin : volume(piece.box);
  return count * element_size(tensor.dtype);
}

std::vector<Span> all_spans(const Target& target) {
  std::vector<Span> spans;
  for (const Tensor& tensor : target.catalog.tensors)
    for (const Piece& piece : tensor.pieces) {
      if (!piece.extent.strides.empty())
        throw bug_error({target.catalog.path, tensor.name},
                        "a target piece has strides");
      const uint64_t bytes = piece_bytes(tensor, piece);
      if (bytes)
        spans.push_back({piece.extent.file, piece.extent.offset,
                         piece.extent.offset + bytes, tensor.tie, &tensor});
    }
  for (uint32_t f = 0; f < target.files.size(); ++f)
    for (const Literal& literal : target.files[f].literals)
      if (!literal.bytes.empty())
        spans.push_back({f, literal.offset,
                         literal.offset + literal.bytes.size(), 0, nullptr});
  for (uint32_t f = 0; f < target.files.size(); ++f)
    for (const SharedLiteral& literal : target.files[f].shared)
      if (!literal.bytes->empty())
        spans.push_back({f, literal.offset,
                         literal.offset + literal.bytes->size(), 0, nullptr});
  for (uint32_t f = 0; f < target.files.size(); ++f)
    for (const CarriedRange& range : target.files[f].carried)
      if (range.size)
        spans.push_back({f, range.offset, range.offset + range.size, 0, {}});
  std::ranges::sort(spans, [](const Span& a, const Span& b) {
    return std::tie(a.file, a.begin, a.end) < std::tie(b.file, b.begin, b.end);
  });
  // Tied tensors are one run of bytes under several names.
  const auto same = [](const Span& a, const Span& b) {
    return a.tie && a.tie == b.tie && a.file == b.file && a.begin == b.begin &&
           a.end == b.end;
  };
  spans.erase(std::unique(spans.begin(), spans.end(), same), spans.end());
  return spans;
}

}  // namespace

void prove_file_cover(const Target& target) {
  const std::vector<Span> spans = all_spans(target);
  auto span = spans.begin();
  for (uint32_t f = 0; f < target.files.size(); ++f) {
    const TargetFile& file = target.files[f];
    if (!file.copy_of.empty()) continue;
    uint64_t at = 0;
    for (; span != spans.end() && span->file == f; ++span) {
      if (span->begin != at)
        throw bug_error({file.path, span->tensor ? span->tensor->name : ""},
                        "laid out at byte {}, expected {}", span->begin, at);
      at = span->end;
    }
    if (at != file.size)
      throw bug_error({file.path, {}}, "laid out to byte {} of {}", at,
                      file.size);
  }
  if (span != spans.end())
    throw bug_error({target.catalog.path, {}}, "laid out in file {} of {}",
                    span->file, target.files.size());
}

}  // namespace ckpt::reshard
