// SPDX-License-Identifier: Apache-2.0
#include "reshard/sources/sources.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "ckpt/error.h"
#include "lib/io/ahead.h"
#include "lib/processors.h"
#include "reshard/sources/made.h"

namespace ckpt::reshard {
namespace {

// Sets byte i of the buffer to byte (offset + i) of `pattern` repeated
// endlessly.
void repeat(const std::string& pattern, uint64_t offset,
            std::span<std::byte> buffer) {
  for (size_t i = 0; i < std::min(buffer.size(), pattern.size()); ++i)
    buffer[i] = std::byte(pattern[(offset + i) % pattern.size()]);
  for (size_t made = pattern.size(); made < buffer.size(); made *= 2)
    std::memcpy(buffer.data() + made, buffer.data(),
                std::min(made, buffer.size() - made));
}

bool is_packed(const File& file) {
  return file.codec != Codec::kRaw && file.codec != Codec::kMemory &&
         file.codec != Codec::kFill;
}

}  // namespace

size_t most_open_files() {
  // Threads hold what they are working on, and other files than payload are
  // open.
  constexpr size_t kOthers = 32, kLeast = 2, kMost = 4096;
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kLeast;
  const size_t all = limit.rlim_cur;
  return std::clamp<size_t>((all - std::min(all, kOthers)) / 4, kLeast, kMost);
}

HandleCache::HandleCache(bool writable, size_t most)
    : FileCache(
          [writable](const std::string& path) {
            return std::make_shared<const io::Handle>(
                writable ? io::Handle::open_write(path)
                         : io::Handle::open_read(path));
          },
          most) {}

const io::Handle& SourceReader::raw(uint32_t file) {
  if (current_ != file) {
    handle_ = handles_.get(files_[file].path);
    current_ = file;
  }
  return *handle_;
}

SourceReader::Open& SourceReader::stream(uint32_t file) {
  if (const auto found = stream_of_.find(file); found != stream_of_.end()) {
    streams_.splice(streams_.begin(), streams_, found->second);
    return streams_.front();
  }
  auto opened = std::make_unique<codec::Stream>(handles_.get(files_[file].path),
                                                files_[file]);
  streams_.push_front({file, 0, std::move(opened)});
  stream_of_[file] = streams_.begin();
  return streams_.front();
}

// The last one used stays, however much it holds. Each keeps its file open, and
// a process may open only so many.
void SourceReader::close_some() {
  static const size_t most = std::clamp<size_t>(512 / processors(), 4, 64);
  while (streams_.size() > 1 &&
         (held_ > stream_memory_ || streams_.size() > most)) {
    held_ -= streams_.back().memory;
    stream_of_.erase(streams_.back().file);
    streams_.pop_back();
  }
}

void SourceReader::read_stream(uint32_t file, uint64_t offset,
                               std::span<std::byte> buffer) {
  Open& open = stream(file);
  open.stream->read(offset, buffer);
  held_ -= open.memory;
  open.memory = open.stream->memory();
  held_ += open.memory;
  close_some();
}

// A stream on a disk is read ahead by the kernel.
bool SourceReader::is_asked(uint32_t file) const {
  const File& one = files_[file];
  return one.codec == Codec::kRaw || (is_packed(one) && io::is_url(one.path));
}

io::Range SourceReader::stored(uint32_t file, uint64_t offset,
                               uint64_t bytes) const {
  const File& one = files_[file];
  if (!is_packed(one) || one.size == 0) return {offset, offset + bytes};
  constexpr uint64_t kStep = uint64_t{64} << 10;  // of a stream's reads
  const double share =
      static_cast<double>(one.packed_size) / static_cast<double>(one.size);
  const auto place = [&](uint64_t at) {
    const auto taken = static_cast<uint64_t>(static_cast<double>(at) * share);
    return std::min(one.packed_size, taken / kStep * kStep);
  };
  const uint64_t end = offset + bytes >= one.size
                           ? one.packed_size
                           : place(offset + bytes) + kStep;
  return {one.packed_offset + place(offset),
          one.packed_offset + std::min(end, one.packed_size)};
}

bool SourceReader::is_cached(uint32_t file, uint64_t offset, uint64_t bytes) {
  if (!is_asked(file)) return true;
  const auto [begin, end] = stored(file, offset, bytes);
  return io::is_cached(*handles_.get(files_[file].path), begin, end - begin);
}

void SourceReader::ask_for(uint32_t file, uint64_t offset, uint64_t bytes) {
  const io::Range range = stored(file, offset, bytes);
  ask_for(file, {&range, 1}, {});
}

void SourceReader::ask_for(uint32_t file, std::span<const io::Range> ranges,
                           io::Asking how) {
  if (!is_asked(file)) return;
  io::ask_for(*handles_.get(files_[file].path), ranges, how);
}

bool SourceReader::is_there(uint32_t file, uint64_t offset, uint64_t bytes) {
  if (!is_asked(file)) return true;
  const io::Handle& handle = *handles_.get(files_[file].path);
  const io::RemoteFile* const remote = io::remote_of(handle);
  const auto [begin, end] = stored(file, offset, bytes);
  return !remote || remote->is_there(handle.base() + begin, end - begin);
}

void SourceReader::make(const File& file, uint64_t offset,
                        std::span<std::byte> buffer) {
  made_of(file).read(
      offset, buffer,
      [this](const File& of, uint64_t at, std::span<std::byte> bytes) {
        if (is_made(of)) return make(of, at, bytes);
        if (is_decoded(of)) return decode(of, at, bytes);
        if (of.codec != Codec::kRaw)
          throw bug_error({of.path, {}}, "made of packed bytes");
        handles_.get(of.path)->read(at, bytes);
      });
}

void SourceReader::decode(const File& file, uint64_t offset,
                          std::span<std::byte> buffer) {
  if (!decode_) decode_ = std::make_unique<DecodeReader>(handles_);
  decode_->read(decoding_of(file), offset, buffer);
}

bool SourceReader::read(uint32_t file, uint64_t offset,
                        std::span<std::byte> buffer) {
  if (file >= files_.size())
    throw bug_error({}, "file {} of {}", file, files_.size());
  bytes_read_ += buffer.size();
  switch (files_[file].codec) {
    case Codec::kRaw:
      if (direct_ && direct_->read(file, offset, buffer)) return false;
      raw(file).read(offset, buffer);
      break;
    case Codec::kMemory:
      if (is_made(files_[file])) {
        make(files_[file], offset, buffer);
        break;
      }
      if (is_decoded(files_[file])) {
        bytes_read_ -= buffer.size();  // of what it is made from
        decode(files_[file], offset, buffer);
        break;
      }
      std::memcpy(buffer.data(), files_[file].memory + offset, buffer.size());
      break;
    case Codec::kFill:
      repeat(files_[file].fill, offset, buffer);
      break;
    default:
      read_stream(file, offset, buffer);
      break;
  }
  return true;
}

}  // namespace ckpt::reshard
