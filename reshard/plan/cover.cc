// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/cover.h"

#include <algorithm>
#include <tuple>

#include "ckpt/error.h"
#include "reshard/plan/placed.h"

namespace ckpt::reshard {
namespace {

struct Span {
  uint32_t file = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t tie = 0;
  const Tensor* tensor = nullptr;  // null: a literal
};

uint64_t bytes_in_file(const Tensor& tensor, const Piece& piece) {
  if (element_size(tensor.dtype) == 0) return byte_size(tensor);
  const uint64_t count =
      piece.flat ? piece.flat->end - piece.flat->begin : volume(piece.box);
  return count * element_size(tensor.dtype);
}

// How many spans a file may have at most.
std::vector<uint64_t> count_spans(const Target& target) {
  std::vector<uint64_t> counts(target.files.size());
  for (size_t f = 0; f < target.files.size(); ++f) {
    const TargetFile& file = target.files[f];
    counts[f] = file.literals.size() + file.shared.size() + file.carried.size();
  }
  for (const Tensor& tensor : target.catalog.tensors)
    for (const Piece& piece : tensor.pieces) {
      if (!piece.extent.strides.empty())
        throw bug_error({target.catalog.path, tensor.name},
                        "a target piece has strides");
      if (piece.extent.file >= counts.size())
        throw bug_error({target.catalog.path, tensor.name},
                        "laid out in file {} of {}", piece.extent.file,
                        counts.size());
      ++counts[piece.extent.file];
    }
  return counts;
}

// Those of files [first, last), in order.
void find_spans(const Target& target, uint32_t first, uint32_t last,
                std::vector<Span>& spans) {
  for (const Tensor& tensor : target.catalog.tensors)
    for (const Piece& piece : tensor.pieces) {
      if (piece.extent.file < first || piece.extent.file >= last) continue;
      const uint64_t bytes = bytes_in_file(tensor, piece);
      if (bytes)
        spans.push_back({piece.extent.file, piece.extent.offset,
                         piece.extent.offset + bytes, tensor.tie, &tensor});
    }
  for (uint32_t f = first; f < last; ++f) {
    const TargetFile& file = target.files[f];
    const auto add = [&](uint64_t offset, uint64_t bytes) {
      if (bytes) spans.push_back({f, offset, offset + bytes, 0, nullptr});
    };
    for (const Literal& literal : file.literals)
      add(literal.offset, literal.bytes.size());
    for (const SharedLiteral& literal : file.shared)
      add(literal.offset, literal.bytes->size());
    for (const CarriedRange& range : file.carried)
      add(range.offset, range.size);
  }
  std::ranges::sort(spans, [](const Span& a, const Span& b) {
    return std::tie(a.file, a.begin, a.end) < std::tie(b.file, b.begin, b.end);
  });
  // Tied tensors are one run of bytes under several names.
  const auto same = [](const Span& a, const Span& b) {
    return a.tie && a.tie == b.tie && a.file == b.file && a.begin == b.begin &&
           a.end == b.end;
  };
  spans.erase(std::unique(spans.begin(), spans.end(), same), spans.end());
}

void prove_files(const Target& target, uint32_t first, uint32_t last,
                 const std::vector<Span>& spans) {
  auto span = spans.begin();
  for (uint32_t f = first; f < last; ++f) {
    const TargetFile& file = target.files[f];
    if (!file.copy_of.empty()) {
      if (span != spans.end() && span->file == f)
        throw bug_error({file.path, span->tensor ? span->tensor->name : ""},
                        "laid out in a copy of a file");
      continue;
    }
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
}

}  // namespace

// Some files at a time: the spans of all would be a third of what the target
// itself takes, and more than that while they grow.
void prove_file_cover(const Target& target) {
  constexpr uint64_t kSpans = 1 << 18;
  const std::vector<uint64_t> counts = count_spans(target);
  std::vector<Span> spans;
  const auto files = static_cast<uint32_t>(counts.size());
  for (uint32_t first = 0; first < files;) {
    uint64_t count = counts[first];
    uint32_t last = first + 1;
    while (last < files && count + counts[last] <= kSpans)
      count += counts[last++];
    spans.clear();
    spans.reserve(count);
    find_spans(target, first, last, spans);
    prove_files(target, first, last, spans);
    first = last;
  }
}

}  // namespace ckpt::reshard
