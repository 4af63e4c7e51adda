// SPDX-License-Identifier: Apache-2.0
// The seam to other machines: a path that begins with a scheme is handled by
// lib/net, every other one by the file system. Local files cost one look at the
// path when they are opened, and nothing after that.
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
#include <unordered_map>
#include <vector>

namespace ckpt::io {

// https:// http:// hf:// s3:// gs:// az://
constexpr bool is_url(std::string_view path) {
  return path.starts_with("https://") || path.starts_with("http://") ||
         path.starts_with("hf://") || path.starts_with("s3://") ||
         path.starts_with("gs://") || path.starts_with("az://");
}

class Handle;

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct Asking {
  // Others will follow the last range: what would be a small request waits for
  // them.
  bool more = false;
  // Small looks at places in a file, not payload that is read once: what lies
  // between them may be fetched, too.
  bool looks = false;
};

// An open file on another machine; any thread may use it.
class RemoteFile {
 public:
  virtual ~RemoteFile() = default;
  virtual uint64_t size() const = 0;
  // Fills the buffer; the caller has checked that the file has the bytes.
  // Throws kIo if they can't be fetched, or if the file has been replaced.
  virtual void read(uint64_t offset, std::span<std::byte> buffer) const = 0;
  // True if these bytes are in memory or on their way.
  virtual bool has(uint64_t offset, uint64_t count) const = 0;
  // True if a read of these bytes would not block.
  virtual bool is_there(uint64_t offset, uint64_t count) const = 0;
  // Announces bytes that will be read soon; ranges in order. Those that lie
  // close together become one request. Doesn't block; fails silently.
  virtual void ask_for(std::span<const Range> ranges, Asking how) const = 0;
  // Streams bytes [offset, offset + count) into a local file, from `at` on: no
  // memory holds them. Calls `came` now and then with how many of the first
  // ones are there, and once more before it returns or throws.
  using Came = std::function<void(uint64_t)>;
  virtual void copy(uint64_t offset, uint64_t count,
                    const std::shared_ptr<const Handle>& to, uint64_t at,
                    const Came& came) const = 0;
};

// The remote file behind a handle; null if it is on this machine. Its fd() is a
// number below -1, which is not a descriptor.
const RemoteFile* remote_of(const Handle& file);

struct OpenedRemote {
  std::shared_ptr<const RemoteFile> file;
  std::string local;  // instead of a file: the path of a copy of it
  struct stat facts;
};

// Like Handle::open_read, throws kMissing for what does not exist.
OpenedRemote open_remote(const std::string& url);

// Like stat(2); nullopt if it does not exist. The inode and the times stand for
// the version that the other side reports (ETag, Last-Modified, commit), so a
// replaced file differs. Throws kIo if that can't be determined.
std::optional<struct stat> stat_remote(const std::string& url);
// The same, asked again.
std::optional<struct stat> stat_remote_again(const std::string& url);
// The same of those among many files that a few requests tell about: a store's
// listing. The others have to be asked for one by one.
std::unordered_map<std::string, struct stat> stat_remote_again(
    const std::vector<std::string>& urls);

// Names, sorted bytewise. Throws kMissing for anything but a directory.
std::vector<std::string> list_remote(const std::string& url);

// All files below a URL, by their paths relative to it.
struct RemoteEntry {
  std::string path;
  uint64_t bytes = 0;
};
std::vector<RemoteEntry> files_below(const std::string& url);

struct RemoteFacts {
  // The 64 digits that the other side promises; "" if it promises none.
  std::string sha256;
  // It says which version it is: else one that replaced it looks the same.
  bool versioned = false;
  // Parts of it can be asked for.
  bool ranges = true;
};
RemoteFacts remote_facts(const std::string& url);

// True if the object's ETag is the MD5 of this file, or of its parts as uploads
// cut them. False proves nothing: an ETag can be anything.
bool has_etag_of(const std::string& url, const Handle& file);

// What a copy of the file is called here: "a b" for https://HOST/a%20b.
std::string remote_name(const std::string& url);

// Returns a URL as it may be shown and stored: without user, password and
// query. Those are kept in this process and used for exactly that URL.
std::string take_secrets(const std::string& url);

// Bounds what all files together have requested and not yet read, by a part of
// `bytes`, which it returns; 0 if nothing was read from another machine.
uint64_t share_remote_memory(uint64_t bytes);
// That bound as it is now.
uint64_t remote_memory();

// Requests so far, and bytes of bodies received and sent.
struct RemoteTraffic {
  uint64_t requests = 0;
  uint64_t bytes = 0;
  uint64_t sent = 0;
};
RemoteTraffic remote_traffic();

// Why no URL can be opened here; "" if they can. Contacts no host.
std::string remote_problem();

// stat(2) of a file or a URL. False if nothing is there, or if it cannot be
// examined: that is noted as a failure (lib/failures.h), and errno says why.
bool stat_any(const std::string& path, struct stat& facts);

}  // namespace ckpt::io
