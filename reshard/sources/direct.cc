// SPDX-License-Identifier: Apache-2.0
#include "reshard/sources/direct.h"

#include "ckpt/error.h"
#include "lib/failures.h"

namespace ckpt::reshard {

DirectReader::DirectReader(const std::vector<File>& files, DirectCache& cache,
                           const DirectReads& reads, uint64_t block)
    : files_(files),
      cache_(cache),
      wanted_only_(reads.wanted_only),
      least_(block / 8),
      queue_(reads.ahead, block) {}

const io::ReadQueue::File& DirectReader::file(uint32_t file) {
  if (current_ != file) {
    file_ = cache_.get(files_[file].path);
    current_ = file;
  }
  return file_;
}

void DirectReader::want(uint32_t index, uint64_t offset, uint64_t bytes) {
  if (!takes(index, bytes)) return;
  if (const io::ReadQueue::File& wanted = file(index))
    queue_.want(wanted, offset, bytes);
}

bool DirectReader::read(uint32_t index, uint64_t offset,
                        std::span<std::byte> buffer) {
  if (!takes(index, buffer.size())) return false;
  const io::ReadQueue::File& wanted = file(index);
  try {
    if (wanted && queue_.take(wanted, offset, buffer)) return true;
  } catch (const Error& error) {
    // Direct reads were not requested: an ordinary one reports what is wrong,
    // or works if the file system only seems to support direct ones.
    if (!wanted_only_) throw;
    failures::withdraw(error);
  }
  if (wanted_only_) return false;
  if (!wanted)
    throw resource_error({files_[index].path, {}},
                         "its file system has no direct reads (O_DIRECT)")
        .with_hint("use --io buffered, or --io auto");
  queue_.read(*wanted, offset, buffer);
  return true;
}

}  // namespace ckpt::reshard
