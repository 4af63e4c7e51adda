// SPDX-License-Identifier: Apache-2.0
// Open files by path; the least recently used is closed when there are too
// many. Reopening costs more than reading a header, so keep what fits.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace ckpt::reshard {

// How many files one cache keeps open: a quarter of RLIMIT_NOFILE, from 2 to
// 4096.
size_t most_open_files();

// Thread-safe. `open` may return null, which is remembered too.
template <class File>
class FileCache {
 public:
  using Open = std::function<std::shared_ptr<const File>(const std::string&)>;
  FileCache(Open open, size_t most)
      : open_file_(std::move(open)), most_(most) {}

  std::shared_ptr<const File> get(const std::string& path) {
    const std::lock_guard lock(mutex_);
    if (const auto found = open_.find(path); found != open_.end()) {
      order_.splice(order_.begin(), order_, found->second.used);
      return found->second.file;
    }
    if (open_.size() >= most_) {
      open_.erase(order_.back());
      order_.pop_back();
    }
    std::shared_ptr<const File> file = open_file_(path);
    order_.push_front(path);
    open_[path] = {file, order_.begin()};
    return file;
  }

 private:
  using Order = std::list<std::string>;
  struct Entry {
    std::shared_ptr<const File> file;
    Order::iterator used;
  };
  const Open open_file_;
  const size_t most_;
  std::mutex mutex_;
  Order order_;  // most recently used first
  std::unordered_map<std::string, Entry> open_;
};

}  // namespace ckpt::reshard
