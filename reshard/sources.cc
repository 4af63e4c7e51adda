// SPDX-License-Identifier: Apache-2.0
#include "reshard/sources.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "ckpt/error.h"
#include "lib/io/ahead.h"
#include "lib/processors.h"
#include "reshard/made.h"

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

bool SourceReader::is_cached(uint32_t file, uint64_t offset, uint64_t bytes) {
  if (files_[file].codec != Codec::kRaw) return true;
  return io::is_cached(*handles_.get(files_[file].path), offset, bytes);
}

void SourceReader::ask_for(uint32_t file, uint64_t offset, uint64_t bytes) {
  if (files_[file].codec != Codec::kRaw) return;
  io::ask_for(*handles_.get(files_[file].path), offset, bytes);
}

void SourceReader::ask_for(uint32_t file, std::span<const io::Range> ranges,
                           io::Asking how) {
  if (files_[file].codec != Codec::kRaw) return;
  io::ask_for(*handles_.get(files_[file].path), ranges, how);
}

bool SourceReader::is_there(uint32_t file, uint64_t offset, uint64_t bytes) {
  if (files_[file].codec != Codec::kRaw) return true;
  const io::Handle& handle = *handles_.get(files_[file].path);
  const io::RemoteFile* const remote = io::remote_of(handle);
  return !remote || remote->is_there(handle.base() + offset, bytes);
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
