// SPDX-License-Identifier: Apache-2.0
// The seam to what lies on other machines: a path that begins with a scheme is
// answered by lib/net, every other one by the file system. Local files pay one
// look at the path when they are opened, and nothing after that.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::io {

// https:// http:// hf:// s3:// gs:// az://
constexpr bool is_url(std::string_view path) {
  return path.starts_with("https://") || path.starts_with("http://") ||
         path.starts_with("hf://") || path.starts_with("s3://") ||
         path.starts_with("gs://") || path.starts_with("az://");
}

class Handle;

// An open file on another machine; for all threads.
class RemoteFile {
 public:
  virtual ~RemoteFile() = default;
  virtual uint64_t size() const = 0;
  // Fills the buffer; the caller has checked that the file has the bytes.
  // Throws kIo if they can't be had, or if the file has been replaced.
  virtual void read(uint64_t offset, std::span<std::byte> buffer) const = 0;
  // True if a read of these bytes would not wait.
  virtual bool has(uint64_t offset, uint64_t count) const = 0;
  // These bytes will be read once, soon. Doesn't wait; fails in silence.
  virtual void ask_for(uint64_t offset, uint64_t count) const = 0;
  // Bytes [offset, offset + count) into a file of this machine, from `at` on,
  // as they come: no memory holds them. `came` is told now and then how many of
  // the first ones stand there, and once more before this returns or throws.
  using Came = std::function<void(uint64_t)>;
  virtual void copy(uint64_t offset, uint64_t count,
                    const std::shared_ptr<const Handle>& to, uint64_t at,
                    const Came& came) const = 0;
};

// Where an open file lies; null if it is on this machine. Its fd() is a number
// below -1, which is not a descriptor.
const RemoteFile* remote_of(const Handle& file);

struct OpenedRemote {
  std::shared_ptr<const RemoteFile> file;
  std::string local;  // instead of a file: where a copy of it lies
  struct stat facts;
};

// As Handle::open_read: throws kMissing for what is not there.
OpenedRemote open_remote(const std::string& url);

// As stat(2); nothing if it does not exist. The inode and the times stand for
// the version that the other side names (ETag, Last-Modified, commit), so that
// what was replaced differs. Throws kIo if that can't be told.
std::optional<struct stat> stat_remote(const std::string& url);
// The same, asked for again.
std::optional<struct stat> stat_remote_again(const std::string& url);

// Names, sorted bytewise. Throws kMissing for what is not a directory.
std::vector<std::string> list_remote(const std::string& url);

// All files below a URL, by their paths relative to it.
struct RemoteEntry {
  std::string path;
  uint64_t bytes = 0;
};
std::vector<RemoteEntry> files_below(const std::string& url);

// 64 digits that the other side promises for a file; "" if it promises none.
std::string remote_sha256(const std::string& url);

// A URL as it may be shown and stored: without user, password and query. Those
// are kept in this process, and used for exactly that URL.
std::string take_secrets(const std::string& url);

// Bounds what was asked for and not yet read, of all files together, by a part
// of `bytes`, which it returns; 0 if nothing was read from another machine.
uint64_t share_remote_memory(uint64_t bytes);

// Requests so far, and bytes of bodies that came and that were sent.
struct RemoteTraffic {
  uint64_t requests = 0;
  uint64_t bytes = 0;
  uint64_t sent = 0;
};
RemoteTraffic remote_traffic();

// Why no URL can be opened here; "" if they can. Asks no host.
std::string remote_problem();

// stat(2) of a file or a URL; false if there is nothing that can be looked at.
bool stat_any(const std::string& path, struct stat& facts);

}  // namespace ckpt::io
