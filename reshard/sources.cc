#include "reshard/sources.h"

#include <algorithm>
#include <cstring>

#include "ckpt/error.h"

namespace ckpt::reshard {
namespace {

// Byte i of the buffer is byte (offset + i) of `pattern` said over and over.
void repeat(const std::string& pattern, uint64_t offset,
            std::span<std::byte> buffer) {
  for (size_t i = 0; i < std::min(buffer.size(), pattern.size()); ++i)
    buffer[i] = std::byte(pattern[(offset + i) % pattern.size()]);
  for (size_t made = pattern.size(); made < buffer.size(); made *= 2)
    std::memcpy(buffer.data() + made, buffer.data(),
                std::min(made, buffer.size() - made));
}

}  // namespace

std::shared_ptr<const io::Handle> HandleCache::get(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (const auto found = open_.find(path); found != open_.end()) {
    order_.splice(order_.begin(), order_, found->second.used);
    return found->second.handle;
  }
  if (open_.size() >= most_) {
    open_.erase(order_.back());
    order_.pop_back();
  }
  auto handle = std::make_shared<const io::Handle>(
      writable_ ? io::Handle::open_write(path) : io::Handle::open_read(path));
  order_.push_front(path);
  open_[path] = {handle, order_.begin()};
  return handle;
}

const io::Handle& SourceReader::raw(uint32_t file) {
  if (current_ != file) {
    handle_ = handles_.get(files_[file].path);
    current_ = file;
  }
  return *handle_;
}

zip::InflateReader& SourceReader::inflated(uint32_t file) {
  if (inflated_ != file) {
    inflater_ = std::make_unique<zip::InflateReader>(
        handles_.get(files_[file].path), files_[file]);
    inflated_ = file;
  }
  return *inflater_;
}

void SourceReader::read(uint32_t file, uint64_t offset,
                        std::span<std::byte> buffer) {
  if (file >= files_.size())
    throw bug_error({}, "file {} of {}", file, files_.size());
  bytes_read_ += buffer.size();
  switch (files_[file].codec) {
    case Codec::kRaw:
      raw(file).read(offset, buffer);
      break;
    case Codec::kMemory:
      std::memcpy(buffer.data(), files_[file].memory + offset, buffer.size());
      break;
    case Codec::kFill:
      repeat(files_[file].fill, offset, buffer);
      break;
    default:
      inflated(file).read(offset, buffer);
      break;
  }
}

}  // namespace ckpt::reshard
