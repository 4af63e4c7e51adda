// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/hf_shard.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/name_table.h"
#include "lib/text/scan.h"

namespace ckpt::dcp {
namespace {

using safetensors::Entry;
using text::Scanner;

// A tensor's place as kShardInfo spells it.
struct Place {
  std::string name;
  Dims offsets;
};

bool read_place(Scanner& scan, Place& place) {
  if (scan.peek() != Scanner::Kind::kObject) return false;
  bool found = false;
  scan.enter_object();
  while (const auto key = scan.next_key()) {
    if (*key != "saved_offsets" || found ||
        scan.peek() != Scanner::Kind::kArray)
      return false;
    found = true;
    scan.enter_array();
    while (scan.next_item()) place.offsets.push_back(scan.unsigned_integer());
  }
  return found;
}

// Reads what torch writes, in one pass; returns false for anything else.
bool read_plain(const std::string& info, const std::string& path,
                std::vector<Place>& places) {
  try {
    Scanner scan(info, path);
    scan.enter_object();
    while (const auto name = scan.next_key()) {
      places.push_back({std::string(*name), {}});
      if (!read_place(scan, places.back())) return false;
    }
    scan.finish();
    return true;
  } catch (const Error&) {
    return false;  // the slow path says what is wrong
  }
}

// The offsets of each entry, or nothing if anything is odd.
std::optional<std::vector<Dims>> match(const std::string& info,
                                       const std::string& path,
                                       const std::vector<Entry>& entries) {
  std::vector<Place> places;
  places.reserve(entries.size());
  if (!read_plain(info, path, places)) return std::nullopt;
  text::NameTable names;
  names.reserve(places.size());
  for (uint32_t i = 0; i < places.size(); ++i) names.add(places[i].name, i);
  names.sort();
  if (names.duplicate()) return std::nullopt;
  std::vector<Dims> offsets;
  offsets.reserve(entries.size());
  for (const Entry& entry : entries) {
    const auto found = names.find(entry.name);
    if (found.empty()) return std::nullopt;
    Dims& place = places[found[0].id].offsets;
    if (place.size() != entry.shape.size()) return std::nullopt;
    offsets.push_back(std::move(place));
  }
  return offsets;
}

Dims read_offset(const std::string& path, const nlohmann::json& info,
                 const Entry& entry) {
  const auto fail = [&](std::string_view why) {
    throw input_error({path, text::printable(entry.name)}, "{}: {}", kShardInfo,
                      why);
  };
  const auto found = info.find(entry.name);
  if (found == info.end()) fail("does not name this tensor");
  if (!found->is_object()) fail("its entry is not an object");
  const auto list = found->find("saved_offsets");
  if (list == found->end() || !list->is_array())
    fail("saved_offsets is not a list");
  if (list->size() != entry.shape.size())
    fail(fmt::format("{} saved_offsets for {} dimensions", list->size(),
                     entry.shape.size()));
  Dims offset;
  for (const nlohmann::json& value : *list) {
    if (!value.is_number_unsigned())
      fail("saved_offsets is not a list of integers >= 0");
    offset.push_back(value.get<uint64_t>());
  }
  return offset;
}

std::vector<Dims> read_offsets(const std::string& info, const std::string& path,
                               const std::vector<Entry>& entries) {
  if (auto found = match(info, path, entries)) return *std::move(found);
  const nlohmann::json document = text::parse_json(info, path);
  if (!document.is_object())
    throw input_error({path, {}}, "{} is not a JSON object", kShardInfo);
  std::vector<Dims> offsets;
  for (const Entry& entry : entries)
    offsets.push_back(read_offset(path, document, entry));
  return offsets;
}

}  // namespace

Shard read_shard(const std::string& path) {
  const io::Handle file = io::Handle::open_read(path);
  Shard shard{.path = path,
              .size = file.size(),
              .header = safetensors::read_header(file),
              .offsets = {}};
  safetensors::Metadata none;
  safetensors::Metadata& metadata =
      shard.header.metadata ? *shard.header.metadata : none;
  const auto info = std::ranges::find(
      metadata, kShardInfo, &safetensors::Metadata::value_type::first);
  if (info == metadata.end())
    throw input_error({path, {}},
                      "has no {} in its header, which the other shards have",
                      kShardInfo);
  shard.offsets = read_offsets(info->second, path, shard.header.entries);
  metadata.erase(info);
  return shard;
}

}  // namespace ckpt::dcp
