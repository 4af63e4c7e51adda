#include "reshard/output.h"

#include <algorithm>
#include <cstring>

#include "ckpt/error.h"
#include "lib/crc32.h"

namespace ckpt::reshard {

Output::Output(const Target& target, const std::string& root)
    : target_(&target), handles_(std::make_unique<HandleCache>(true)) {
  for (const TargetFile& file : target.files) {
    paths_.push_back(io::join(root, file.path));
    crcs_.push_back(
        std::make_unique<std::atomic<uint32_t>[]>(file.crcs.size()));
  }
}

Output::Output(std::vector<std::span<std::byte>> buffers)
    : buffers_(std::move(buffers)) {}

CrcPart Output::write(uint32_t file, uint64_t offset, std::span<iovec> parts) {
  if (!handles_) {
    for (const iovec& part : parts) {
      std::memcpy(buffers_[file].data() + offset, part.iov_base, part.iov_len);
      offset += part.iov_len;
    }
    return {};
  }
  const CrcPart crc = crc_of(file, offset, parts);
  add_crc(crc);
  handles_->get(paths_[file])->writev(offset, parts);
  return crc;
}

CrcPart Output::crc_of(uint32_t file, uint64_t offset,
                       std::span<const iovec> parts) const {
  const std::vector<LateCrc>& crcs = target_->files[file].crcs;
  const auto record = std::ranges::upper_bound(crcs, offset, {}, &LateCrc::end);
  if (record == crcs.end() || offset < record->begin) return {};
  uint32_t value = 0;
  uint64_t bytes = 0;
  for (const iovec& part : parts) {
    value = crc32(value,
                  {static_cast<const std::byte*>(part.iov_base), part.iov_len});
    bytes += part.iov_len;
  }
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

// CRCs stand inside literals (zip headers): they are put in there first, so
// that a file of hundreds of records does not cost two calls for each.
void Output::write_literals(uint32_t file) {
  const TargetFile& described = target_->files[file];
  std::vector<Literal> literals = described.literals;
  for (size_t i = 0; i < described.crcs.size(); ++i)
    for (const uint64_t at : described.crcs[i].at) {
      auto literal =
          std::ranges::upper_bound(literals, at, {}, &Literal::offset);
      if (literal == literals.begin() ||
          at + 4 >
              std::prev(literal)->offset + std::prev(literal)->bytes.size())
        throw bug_error({paths_[file], {}},
                        "the CRC at byte {} lies in no literal", at);
      std::string& bytes = (--literal)->bytes;
      for (size_t b = 0; b < 4; ++b)
        bytes[at - literal->offset + b] =
            static_cast<char>(crcs_[file][i] >> (8 * b));
    }
  const auto handle = handles_->get(paths_[file]);
  for (const Literal& literal : literals)
    handle->write(literal.offset, std::string_view(literal.bytes));
}

}  // namespace ckpt::reshard
