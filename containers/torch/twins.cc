// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/twins.h"

#include <algorithm>
#include <unordered_map>

#include "lib/io/file.h"

namespace ckpt::torch {
namespace {

// Files of neighbouring stages are processed at the same time. Within one
// stage, the device in a pickle or rows that don't divide make a few kinds.
constexpr size_t kLayouts = 8;
constexpr size_t kKinds = 16;
constexpr size_t kMostContents = size_t{1} << 20;  // bytes, of each kind

// Records besides payload that torch reads.
std::vector<std::string> content_names(const zip::Archive& archive) {
  const std::string& first = archive.entries().front().name;
  const std::string root = first.substr(0, first.find('/') + 1);
  std::vector<std::string> names;
  for (const char* name : {"data.pkl", "byteorder", "version", ".data/version"})
    names.push_back(root + name);
  return names;
}

// The directory entries that `crcs` belong to; nothing if there are others.
std::optional<std::vector<size_t>> entries_of(
    const zip::Archive& archive, const std::vector<StoredCrc>& crcs) {
  std::unordered_map<std::string_view, size_t> numbers;
  for (size_t i = 0; i < archive.entries().size(); ++i)
    numbers.emplace(archive.entries()[i].name, i);
  std::vector<size_t> entries;
  for (const StoredCrc& crc : crcs) {
    const auto at = numbers.find(crc.record);
    if (at == numbers.end()) return std::nullopt;
    entries.push_back(at->second);
  }
  return entries;
}

}  // namespace

const Twins::Known* Twins::find_known(
    const std::vector<std::shared_ptr<const Known>>& all,
    const std::string& contents) {
  for (const auto& known : all)
    if (known->contents == contents) return known.get();
  return nullptr;
}

Twins::Layouts Twins::layouts() const {
  const std::lock_guard lock(mutex_);
  return layouts_;
}

std::optional<Twins::Twin> Twins::find(const io::Handle& file) const {
  for (const auto& layout : layouts()) {
    const auto own = layout->outline.match(file);
    if (!own) continue;
    const Known* const same = find_known(layout->known, own->contents);
    if (same == nullptr) return std::nullopt;
    Twin twin{{}, same->made};
    twin.aside.files.push_back({.path = file.path(), .size = file.size()});
    twin.aside.globals = same->globals;
    twin.aside.crcs = same->crcs;
    for (size_t i = 0; i < same->entries.size(); ++i)
      twin.aside.crcs[i].crc32 = own->crcs[same->entries[i]];
    return twin;
  }
  return std::nullopt;
}

void Twins::add(const io::Handle& file, const Catalog& aside,
                std::shared_ptr<const void> made) {
  if (aside.files.size() != 1 || !aside.problems.empty()) return;
  const zip::Archive archive =
      zip::Archive::read(file, zip::Headers::kComputed);
  if (archive.entries().empty()) return;
  auto entries = entries_of(archive, aside.crcs);
  const auto outline = zip::Outline::of(file, archive, content_names(archive));
  if (!entries || !outline) return;
  auto own = outline->match(file);
  if (!own || own->contents.size() > kMostContents) return;
  const auto known = std::make_shared<const Known>(
      Known{std::move(own->contents), aside.globals, aside.crcs,
            std::move(*entries), std::move(made)});

  const std::lock_guard lock(mutex_);
  Layout layout{*outline, {}};
  const auto at = std::ranges::find(
      layouts_, *outline,
      [](const auto& each) -> const auto& { return each->outline; });
  if (at != layouts_.end()) {
    layout.known = (*at)->known;
    if (find_known(layout.known, known->contents)) return;  // by two threads
    layouts_.erase(at);
  }
  if (layout.known.size() == kKinds) layout.known.pop_back();
  layout.known.insert(layout.known.begin(), known);
  if (layouts_.size() == kLayouts) layouts_.pop_back();
  layouts_.insert(layouts_.begin(),
                  std::make_shared<const Layout>(std::move(layout)));
}

}  // namespace ckpt::torch
