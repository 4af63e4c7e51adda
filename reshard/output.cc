#include "reshard/output.h"

#include <algorithm>
#include <array>
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

void Output::write(uint32_t file, uint64_t offset, std::span<iovec> parts) {
  if (!handles_) {
    for (const iovec& part : parts) {
      std::memcpy(buffers_[file].data() + offset, part.iov_base, part.iov_len);
      offset += part.iov_len;
    }
    return;
  }
  if (!target_->files[file].crcs.empty()) add_crc(file, offset, parts);
  handles_->get(paths_[file])->writev(offset, parts);
}

void Output::add_crc(uint32_t file, uint64_t offset,
                     std::span<const iovec> parts) {
  const std::vector<LateCrc>& crcs = target_->files[file].crcs;
  const auto record = std::ranges::upper_bound(
      crcs, offset, {}, [](const LateCrc& crc) { return crc.end; });
  if (record == crcs.end() || offset < record->begin) return;
  uint32_t value = 0;
  uint64_t bytes = 0;
  for (const iovec& part : parts) {
    value = crc32(value,
                  {static_cast<const std::byte*>(part.iov_base), part.iov_len});
    bytes += part.iov_len;
  }
  if (offset + bytes > record->end)
    throw bug_error({paths_[file], {}},
                    "a write crosses the record that ends "
                    "at byte {}",
                    record->end);
  crcs_[file][static_cast<size_t>(record - crcs.begin())] ^=
      crc32_contribution(value, record->end - offset - bytes);
}

void Output::write_literals(uint32_t file) {
  const TargetFile& described = target_->files[file];
  const auto handle = handles_->get(paths_[file]);
  for (const Literal& literal : described.literals)
    handle->write(literal.offset, std::string_view(literal.bytes));
  for (size_t i = 0; i < described.crcs.size(); ++i) {
    const uint32_t value = crcs_[file][i];
    std::array<char, 4> bytes;
    for (size_t b = 0; b < 4; ++b)
      bytes[b] = static_cast<char>(value >> (8 * b));
    for (const uint64_t at : described.crcs[i].at)
      handle->write(at, std::string_view(bytes.data(), bytes.size()));
  }
}

}  // namespace ckpt::reshard
