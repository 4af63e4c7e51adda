// SPDX-License-Identifier: Apache-2.0
#include "formats/salvage/item_scan.h"

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "containers/torch/item.h"
#include "lib/zip/headers.h"

namespace ckpt::salvage {
namespace {

constexpr uint64_t kBlock = uint64_t{4} << 20;

// Calls `found` with the offset of each header and end record.
template <class Function>
void for_each_signature(const io::Handle& file, Function found) {
  constexpr uint64_t kMark = 4;
  for (uint64_t at = 0; at < file.size(); at += kBlock) {
    // Includes the first bytes of the next block, for a mark across both.
    const std::string bytes =
        file.read_string(at, std::min(kBlock + kMark - 1, file.size() - at));
    for (size_t i = bytes.find("PK"); i != bytes.npos && i < kBlock;
         i = bytes.find("PK", i + 1)) {
      if (i + kMark > bytes.size()) break;
      const auto mark = zip::load<uint32_t>(bytes, i);
      if (mark == zip::kLocalSignature || mark == zip::kEndSignature)
        found(at + i, mark == zip::kEndSignature);
    }
  }
}

// True for the header of a record NAME/data.pkl, the first one of an archive.
bool begins_item(const io::Handle& file, uint64_t at) {
  constexpr std::string_view kFirst = "/data.pkl";
  constexpr uint64_t kNameLength = 26, kMostName = 256;
  const std::string head = file.read_string(
      at, std::min(zip::kLocalSize + kMostName, file.size() - at));
  if (head.size() < zip::kLocalSize) return false;
  const auto length = zip::load<uint16_t>(head, kNameLength);
  return head.size() >= zip::kLocalSize + length &&
         std::string_view(head)
             .substr(zip::kLocalSize, length)
             .ends_with(kFirst);
}

// Where the archive that the end record at `at` closes begins.
std::optional<uint64_t> begin_of(const io::Handle& file, uint64_t at) {
  if (file.size() - at < zip::kEndSize) return std::nullopt;
  const std::string end = file.read_string(at, zip::kEndSize);
  uint64_t size = zip::load<uint32_t>(end, 12);
  uint64_t offset = zip::load<uint32_t>(end, 16);
  uint64_t before = 0;
  constexpr uint64_t kBoth = zip::kEnd64Size + zip::kLocatorSize;
  if (at >= kBoth) {
    const std::string wide = file.read_string(at - kBoth, kBoth);
    if (zip::load<uint32_t>(wide, 0) == zip::kEnd64Signature) {
      size = zip::load<uint64_t>(wide, 40);
      offset = zip::load<uint64_t>(wide, 48);
      before = kBoth;
    }
  }
  const auto length = checked_add(size, offset);
  if (!length || *length > at - before) return std::nullopt;
  return at - before - *length;
}

std::optional<ScannedTensor> tensor_at(const io::Handle& file, uint64_t offset,
                                       uint64_t length) {
  const torch::Container container =
      torch::open_item(file.slice(offset, length), 0, offset);
  const pickle::Document& document = *container.document;
  const auto ref =
      torch::as_tensor(document, document.root(), container.storages);
  if (!ref || ref->distributed || ref->quantizer != pickle::kNoId ||
      ref->transform != kNoTransform || !ref->extent.strides.empty() ||
      element_size(ref->dtype) == 0)
    return std::nullopt;
  return ScannedTensor{ref->dtype, ref->shape, ref->extent.offset};
}

}  // namespace

std::vector<ScannedItem> scan_items(const io::Handle& file) {
  std::set<uint64_t> begins;
  std::vector<ScannedItem> items;
  for_each_signature(file, [&](uint64_t at, bool is_end) {
    if (!is_end) {
      if (begins_item(file, at)) begins.insert(at);
      return;
    }
    const auto begin = begin_of(file, at);
    if (!begin || !begins.contains(*begin)) return;
    // An archive inside this one's payload is part of it.
    while (!items.empty() && items.back().offset >= *begin) items.pop_back();
    items.push_back({*begin, at + zip::kEndSize - *begin, std::nullopt});
  });
  std::erase_if(items, [&](ScannedItem& item) {
    try {
      item.tensor = tensor_at(file, item.offset, item.length);
      return false;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kDamaged &&
          error.code() != ExitCode::kUnfaithful)
        throw;
      return true;
    }
  });
  return items;
}

}  // namespace ckpt::salvage
