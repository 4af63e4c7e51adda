// SPDX-License-Identifier: Apache-2.0
#include "formats/scan/heads.h"

#include <algorithm>

#include "formats/scan/scanner.h"
#include "lib/io/file.h"

namespace ckpt::scan {

Heads::OfFile::iterator Heads::find(OfFile& heads, uint64_t begin) {
  return std::ranges::lower_bound(heads, begin, {}, &Head::begin);
}

bool Heads::leave(const std::string& path, uint64_t begin, uint64_t size) {
  const auto count = static_cast<uint32_t>(std::min(size, kHead));
  const std::lock_guard lock(mutex_);
  OfFile& heads = all_[path];
  if (!shown_) {
    heads.push_back({begin, count});
    return true;
  }
  const auto head = find(heads, begin);
  return head != heads.end() && head->begin == begin && head->size == count &&
         head->harmless;
}

void Heads::expect(const Catalog& catalog) {
  for (auto& [path, heads] : all_) std::ranges::sort(heads, {}, &Head::begin);
  of_.assign(catalog.files.size(), nullptr);
  for (size_t i = 0; i < of_.size(); ++i) {
    const auto found = all_.find(catalog.files[i].path);
    if (catalog.files[i].codec == Codec::kRaw && found != all_.end())
      of_[i] = &found->second;
  }
}

void Heads::see(uint32_t file, uint64_t offset,
                std::span<const std::byte> bytes) {
  if (file >= of_.size() || !of_[file]) return;
  OfFile& heads = *of_[file];
  const uint64_t end = offset + bytes.size();
  for (auto head = find(heads, offset);
       head != heads.end() && head->begin < end; ++head) {
    if (head->size > end - head->begin) continue;
    const auto front = bytes.subspan(head->begin - offset, head->size);
    const auto handle = io::Handle::of_memory(
        std::string(reinterpret_cast<const char*>(front.data()), front.size()),
        {});
    if (!acts_as_pickle(handle, front.size())) {
      const std::lock_guard lock(mutex_);
      head->harmless = true;
    }
  }
}

bool Heads::all_harmless() {
  const std::lock_guard lock(mutex_);
  shown_ = true;
  return std::ranges::all_of(all_, [](const auto& file) {
    return std::ranges::all_of(file.second, &Head::harmless);
  });
}

}  // namespace ckpt::scan
