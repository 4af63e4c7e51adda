// SPDX-License-Identifier: Apache-2.0
#include "formats/salvage/metadata.h"

#include <algorithm>
#include <map>

#include "formats/dcp/directory.h"
#include "formats/dcp/metadata_write.h"
#include "formats/salvage/item_scan.h"
#include "formats/salvage/match.h"
#include "lib/text/format.h"

namespace ckpt::salvage {
namespace {

struct Items {
  std::vector<Block> blocks;
  std::vector<dcp::WrittenItem> places;     // of each block
  std::map<std::string, uint64_t> objects;  // how many per file
};

Items items_of(const std::string& directory) {
  // By rank: __10_0 comes after __2_0.
  std::vector<std::pair<uint32_t, std::string>> files;
  for (const std::string& name : io::list_directory(directory))
    if (name.ends_with(".distcp"))
      files.emplace_back(dcp::rank_of(name).value_or(UINT32_MAX), name);
  std::ranges::sort(files);
  Items items;
  for (const auto& [rank, name] : files) {
    const std::string path = io::join(directory, name);
    for (ScannedItem& item : scan_items(io::Handle::open_read(path))) {
      if (!item.tensor) {
        ++items.objects[name];
        continue;
      }
      items.blocks.push_back({path, rank, std::move(*item.tensor), false});
      items.places.push_back({name, item.offset, item.length});
    }
  }
  return items;
}

using Matches = std::map<std::string_view, std::vector<Placed>>;

// Each match leaves fewer blocks for tensors of similar shapes.
Matches match_all(Items& items, const Manifest& manifest) {
  Matcher matcher(items.blocks);
  Matches matches;
  for (size_t before = SIZE_MAX; matches.size() != before;) {
    before = matches.size();
    for (const auto& [name, entry] : manifest.tensors) {
      if (matches.contains(name)) continue;
      if (auto placed = matcher.match(entry))
        matches.emplace(name, std::move(*placed));
    }
  }
  return matches;
}

std::string write(const Items& items, const Matches& matches,
                  const Manifest& manifest) {
  dcp::MetadataWriter writer;
  writer.begin_state_dict();
  for (const auto& [name, placed] : matches) {
    const auto& entry = manifest.tensors.find(std::string(name))->second;
    writer.begin_tensor(name, entry.dtype, entry.shape, false);
    for (const Placed& part : placed) writer.add_chunk(part.box);
    writer.end_tensor();
  }
  writer.begin_planner();
  for (const auto& [name, placed] : matches) {
    const dcp::PathElement whole{std::string(name)};
    writer.add_path(name, {&whole, 1});
  }
  writer.begin_storage();
  for (const auto& [name, placed] : matches)
    for (size_t i = 0; i < placed.size(); ++i)
      writer.add_stored(name, i, placed[i].box.offset,
                        items.places[placed[i].block]);
  return writer.finish(true);
}

}  // namespace

LostMetadata match_items(const std::string& directory,
                         const Manifest& manifest) {
  Items items = items_of(directory);
  const Matches matches = match_all(items, manifest);
  LostMetadata found;
  found.tensors = matches.size();
  for (const auto& [file, count] : items.objects)
    found.nameless.push_back(
        {file,
         fmt::format("{} that are objects (steps, settings): .metadata alone "
                     "had their names",
                     text::counted(count, "item")),
         false});
  std::map<std::string, std::vector<size_t>> unused;
  for (size_t i = 0; i < items.blocks.size(); ++i)
    if (!items.blocks[i].used) unused[items.places[i].file].push_back(i);
  for (const auto& [file, blocks] : unused) {
    const ScannedTensor& first = items.blocks[blocks[0]].tensor;
    found.nameless.push_back(
        {file,
         fmt::format("{} that are part of no tensor whose digest the manifest "
                     "has, the first one at byte {}: {} {}",
                     text::counted(blocks.size(), "item"),
                     items.places[blocks[0]].offset, name(first.dtype),
                     to_string(first.shape)),
         false});
  }
  if (!matches.empty()) found.bytes = write(items, matches, manifest);
  return found;
}

}  // namespace ckpt::salvage
