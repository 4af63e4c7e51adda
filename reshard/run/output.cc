// SPDX-License-Identifier: Apache-2.0
#include "reshard/run/output.h"

#include <algorithm>
#include <cstring>

#include "ckpt/error.h"
#include "lib/hash/crc32.h"
#include "lib/io/writeback.h"

namespace ckpt::reshard {
namespace {

struct Known {
  uint64_t offset = 0;
  std::string_view bytes;
};

// Literals of both kinds, in the order of the file.
std::vector<Known> known_bytes(const TargetFile& file) {
  std::vector<Known> known;
  known.reserve(file.literals.size() + file.shared.size());
  for (const Literal& literal : file.literals)
    known.push_back({literal.offset, literal.bytes});
  for (const SharedLiteral& literal : file.shared)
    known.push_back({literal.offset, *literal.bytes});
  std::ranges::sort(known, {}, &Known::offset);
  return known;
}

}  // namespace

Output::Output(const Target& target, const std::string& root)
    : target_(&target), handles_(std::make_unique<HandleCache>(true)) {
  for (const TargetFile& file : target.files) {
    paths_.push_back(io::join(root, file.path));
    crcs_.push_back(
        std::make_unique<std::atomic<uint32_t>[]>(file.crcs.size()));
    if (!file.crcs.empty()) add_known(static_cast<uint32_t>(paths_.size() - 1));
  }
}

// Known bytes count in the checksum of the record that they are in: the gaps of
// a flat buffer.
void Output::add_known(uint32_t file) {
  for (const Literal& literal : target_->files[file].literals) {
    iovec part{const_cast<char*>(literal.bytes.data()), literal.bytes.size()};
    add_crc(crc_of(file, literal.offset, {&part, 1}));
  }
}

Output::Output(std::vector<std::span<std::byte>> buffers)
    : buffers_(std::move(buffers)) {}

CrcPart Output::write(uint32_t file, uint64_t offset, std::span<iovec> parts,
                      std::optional<uint32_t> known) {
  if (!handles_) {
    for (const iovec& part : parts) {
      std::memcpy(buffers_[file].data() + offset, part.iov_base, part.iov_len);
      offset += part.iov_len;
    }
    return {};
  }
  const CrcPart crc = crc_of(file, offset, parts, known);
  add_crc(crc);
  if (is_remote(file)) {
    carrier_->deliver(file, offset, parts);
    return crc;
  }
  handles_->get(paths_[file])->writev(offset, parts);
  return crc;
}

void Output::clone(const io::Handle& from, uint64_t from_offset, uint32_t file,
                   uint64_t offset, uint64_t count, uint64_t& head,
                   uint64_t& tail) {
  constexpr uint64_t kBlock = 4096;  // on XFS and btrfs on x86
  head = tail = count;
  if (!handles_ || !*clones_ ||
      (from.base() + from_offset) % kBlock != offset % kBlock)
    return;
  if (!target_->files[file].crcs.empty() || is_remote(file)) return;
  const uint64_t begin = (kBlock - offset % kBlock) % kBlock;
  const uint64_t end = count - std::min(count, (offset + count) % kBlock);
  if (begin >= end) return;
  if (!io::reflink(from, from_offset + begin, *handles_->get(paths_[file]),
                   offset + begin, end - begin)) {
    *clones_ = false;
    return;
  }
  head = begin;
  tail = end;
}

void Output::start_writeback(uint32_t file, uint64_t offset,
                             uint64_t count) const {
  if (handles_ && !is_remote(file))
    handles_->get(paths_[file])->start_writeback(offset, count);
}

void Output::settle(uint32_t file, uint64_t offset, uint64_t count) const {
  if (!handles_ || is_remote(file)) return;
  const auto handle = handles_->get(paths_[file]);
  io::wait_writeback(*handle, offset, count);
  handle->drop_cache(offset, count);
}

CrcPart Output::crc_of(uint32_t file, uint64_t offset,
                       std::span<const iovec> parts,
                       std::optional<uint32_t> known) const {
  const std::vector<LateCrc>& crcs = target_->files[file].crcs.get();
  const auto record = std::ranges::upper_bound(crcs, offset, {}, &LateCrc::end);
  if (record == crcs.end()) return {};
  if (offset < record->begin) {
    uint64_t end = offset;
    for (const iovec& part : parts) end += part.iov_len;
    if (end > record->begin)
      throw bug_error({paths_[file], {}},
                      "a write crosses the record that begins at byte {}",
                      record->begin);
    return {};
  }
  uint32_t value = 0;
  uint64_t bytes = 0;
  for (const iovec& part : parts) {
    if (!known)
      value = crc32(
          value, {static_cast<const std::byte*>(part.iov_base), part.iov_len});
    bytes += part.iov_len;
  }
  if (known) value = *known;
  if (offset + bytes > record->end)
    throw bug_error({paths_[file], {}},
                    "a write crosses the record that ends at byte {}",
                    record->end);
  return {file, static_cast<uint32_t>(record - crcs.begin()),
          crc32_contribution(value, record->end - offset - bytes)};
}

void Output::add_crc(const CrcPart& part) {
  if (part.file == kNone) return;
  if (part.file >= crcs_.size() ||
      part.index >= target_->files[part.file].crcs.size())
    throw bug_error({}, "no CRC {} of file {}", part.index, part.file);
  crcs_[part.file][part.index] ^= part.value;
}

std::vector<CrcPart> Output::crc_parts() const {
  std::vector<CrcPart> parts;
  for (uint32_t f = 0; f < crcs_.size(); ++f)
    for (uint32_t i = 0; i < target_->files[f].crcs.size(); ++i)
      if (const uint32_t value = crcs_[f][i]) parts.push_back({f, i, value});
  return parts;
}

// CRCs are inside literals (zip headers), so they are filled in first. Adjacent
// literals are written together, so that a file of thousands of records does
// not cost several calls for each.
void Output::write_literals(uint32_t file) {
  constexpr size_t kMostRun = 1 << 20;
  const std::vector<Known> known = known_bytes(target_->files[file]);
  const std::vector<Patch> patches = patches_of(file);
  auto patch = patches.begin();
  const auto handle = handles_->get(paths_[file]);
  std::string run;
  for (size_t i = 0; i < known.size();) {
    const uint64_t begin = known[i].offset;
    for (run.clear(); i < known.size() && run.size() < kMostRun &&
                      known[i].offset == begin + run.size();
         ++i)
      run += known[i].bytes;
    for (; patch != patches.end() && patch->at < begin + run.size(); ++patch) {
      if (patch->at < begin || patch->at + 4 > begin + run.size()) break;
      for (size_t b = 0; b < 4; ++b)
        run[patch->at - begin + b] = static_cast<char>(patch->crc >> (8 * b));
    }
    handle->write(begin, std::string_view(run));
  }
  if (patch != patches.end())
    throw bug_error({paths_[file], {}}, "the CRC at byte {} lies in no literal",
                    patch->at);
}

void Output::write_crc(uint32_t file, uint32_t index) {
  const uint32_t crc = crcs_[file][index];
  std::string bytes;
  for (size_t b = 0; b < 4; ++b) bytes += static_cast<char>(crc >> (8 * b));
  const auto handle = handles_->get(paths_[file]);
  for (const uint64_t at : target_->files[file].crcs.get()[index].at)
    handle->write(at, std::string_view(bytes));
}

std::vector<Output::Patch> Output::patches_of(uint32_t file) const {
  const std::vector<LateCrc>& crcs = target_->files[file].crcs.get();
  std::vector<Patch> patches;
  for (size_t i = 0; i < crcs.size(); ++i)
    for (const uint64_t at : crcs[i].at)
      patches.push_back({at, crcs_[file][i]});
  std::ranges::sort(patches, {}, &Patch::at);
  return patches;
}

}  // namespace ckpt::reshard
