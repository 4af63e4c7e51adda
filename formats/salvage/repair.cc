// SPDX-License-Identifier: Apache-2.0
#include "formats/salvage/repair.h"

#include <algorithm>

#include "containers/hf/index.h"
#include "containers/safetensors/header.h"
#include "lib/hash/crc32.h"

namespace ckpt::salvage {

uint32_t crc_of(const io::Handle& file, Range range) {
  constexpr uint64_t kStep = uint64_t{1} << 20;
  uint32_t crc = 0;
  for (uint64_t at = range.begin; at < range.end; at += kStep) {
    const std::string bytes =
        file.read_string(at, std::min(kStep, range.end - at));
    crc = crc32(crc, std::as_bytes(std::span(bytes)));
  }
  return crc;
}

std::vector<Range> normalized(std::vector<Range> ranges) {
  std::erase_if(ranges, [](const Range& r) { return r.begin >= r.end; });
  std::ranges::sort(ranges, {}, &Range::begin);
  std::vector<Range> joined;
  for (const Range& range : ranges) {
    if (!joined.empty() && range.begin <= joined.back().end)
      joined.back().end = std::max(joined.back().end, range.end);
    else
      joined.push_back(range);
  }
  return joined;
}

std::vector<Range> without(Range range, const std::vector<Range>& gone) {
  std::vector<Range> rest;
  for (const Range& hole : gone) {
    if (hole.end <= range.begin) continue;
    if (hole.begin >= range.end) break;
    if (hole.begin > range.begin) rest.push_back({range.begin, hole.begin});
    range.begin = hole.end;
  }
  if (range.begin < range.end) rest.push_back(range);
  return rest;
}

Repair from_template(const std::string& like, std::vector<Range> payload) {
  Repair repair;
  repair.size = io::Handle::open_read(like).size();
  repair.gone = normalized(std::move(payload));
  for (const Range& kept : without({0, repair.size}, repair.gone))
    repair.copies.push_back(
        {like, kept.begin, kept.begin, kept.end - kept.begin});
  repair.notes.push_back(
      {.what = "lost; all but its tensors is from " + like, .inferred = true});
  return repair;
}

std::string index_of_shards(const std::string& directory,
                            const std::vector<std::string>& shards) {
  std::vector<safetensors::Header> headers;
  for (const std::string& shard : shards)
    headers.push_back(safetensors::read_header(
        io::Handle::open_read(io::join(directory, shard))));
  std::vector<formats::IndexEntry> entries;
  uint64_t bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const safetensors::Entry& entry : headers[i].entries) {
      entries.push_back({entry.name, shards[i]});
      bytes += entry.end - entry.begin;
    }
  }
  return formats::write_index(entries, bytes);
}

}  // namespace ckpt::salvage
