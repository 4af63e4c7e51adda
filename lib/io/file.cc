// SPDX-License-Identifier: Apache-2.0
#include "lib/io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "ckpt/error.h"
#include "lib/io/huge_pages.h"
#include "lib/io/mount.h"
#include "lib/io/read_count.h"
#include "lib/io/remote.h"
#include "lib/io/retry.h"
#include "lib/io/writeback.h"
#include "lib/session.h"
#include "lib/trace.h"

namespace ckpt::io {
namespace {

std::atomic<uint64_t> read_so_far = 0;

int open_or_throw(const std::string& path, int flags, const char* operation) {
  const int fd = retry([&] { return ::open(path.c_str(), flags, 0666); });
  if (fd < 0) throw io_error(path, operation, errno);
  return fd;
}

Error write_error(const std::string& path, int errnum) {
  // Not for lack of room, which is found before anything is taken for written.
  if (errnum == EIO) return flush_error(path, "cannot write", errnum);
  Error error = io_error(path, "cannot write", errnum);
  if (errnum == EFBIG)
    return error.with_hint(
        "the file system, or `ulimit -f`, allows no file of that size");
  if (errnum == ENOSPC || errnum == EDQUOT)
    return error.with_hint("free some space, then go on");
  return error;
}

// Drops `count` bytes from the front of a list of parts.
std::span<iovec> consume(std::span<iovec> parts, size_t count) {
  while (!parts.empty() && count >= parts[0].iov_len) {
    count -= parts[0].iov_len;
    parts = parts.subspan(1);
  }
  if (count) {
    parts[0].iov_base = static_cast<char*>(parts[0].iov_base) + count;
    parts[0].iov_len -= count;
  }
  return parts;
}

}  // namespace

namespace {

// Opening a FIFO without a writer would block forever. A lease that another
// machine holds is worth waiting for.
int open_unblocked(const std::string& path) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC;
  const int fd =
      retry([&] { return ::open(path.c_str(), kFlags | O_NONBLOCK); });
  if (fd >= 0) return fd;
  if (errno == ENXIO)
    throw input_error({path, {}}, "is a socket or a device without a driver");
  if (errno != EWOULDBLOCK) throw io_error(path, "cannot open", errno);
  if (!is_file(path)) throw input_error({path, {}}, "is not a regular file");
  return open_or_throw(path, kFlags, "cannot open");
}

}  // namespace

namespace {

// Remote files, by numbers that are not descriptors: system calls refuse them.
struct RemoteNames {
  std::mutex mutex;
  int next = -2;
  std::unordered_map<int, const RemoteFile*> files;
};

RemoteNames& remote_names() {
  static RemoteNames* const all = new RemoteNames;
  return *all;
}

int name_remote(const RemoteFile* file) {
  RemoteNames& all = remote_names();
  const std::lock_guard lock(all.mutex);
  all.files[all.next] = file;
  return all.next--;
}

void forget_remote(int number) {
  RemoteNames& all = remote_names();
  const std::lock_guard lock(all.mutex);
  all.files.erase(number);
}

}  // namespace

const RemoteFile* remote_of(const Handle& file) {
  if (file.fd() >= -1) return nullptr;
  RemoteNames& all = remote_names();
  const std::lock_guard lock(all.mutex);
  const auto found = all.files.find(file.fd());
  return found == all.files.end() ? nullptr : found->second;
}

struct Handle::Descriptor {
  explicit Descriptor(int number) : fd(number) {}
  explicit Descriptor(std::shared_ptr<const RemoteFile> other)
      : fd(name_remote(other.get())), remote(std::move(other)) {}
  // EINTR: Linux has closed it all the same.
  ~Descriptor() {
    if (remote)
      forget_remote(fd);
    else if (::close(fd) != 0 && errno != EINTR)
      note_lost_write(session, errno);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int fd;
  const std::shared_ptr<const RemoteFile> remote;  // null: on this machine
  // Whose run lacks what a failed close lost, whichever thread closes it.
  const std::shared_ptr<Session> session = Session::current();
};

namespace {

void tell_watch(const std::string& path, const struct stat& facts) {
  if (const auto& session = Session::current())
    session->watch.opened(path, facts);
}

// The archive of a member that can be opened.
const std::string& archive_of(const Mounted& in, const std::string& path) {
  if (in.absent) throw io_error(path, "cannot open", ENOENT);
  if (in.entry.directory)
    throw input_error({path, {}}, "is a directory, not a regular file");
  return in.entry.archive;
}

}  // namespace

Handle Handle::open_read(const std::string& path) {
  if (const auto in = find_mounted(path); in && !is_archive(*in, path)) {
    Handle member = open_read(archive_of(*in, path))
                        .slice(in->entry.offset, in->entry.size);
    member.path_ = path;
    return member;
  }
  if (is_url(path)) {
    OpenedRemote opened = open_remote(path);
    if (!opened.local.empty()) return open_read(opened.local);
    tell_watch(path, opened.facts);
    Handle handle;
    handle.path_ = path;
    handle.size_ = opened.file->size();
    handle.file_ = std::make_shared<const Descriptor>(std::move(opened.file));
    handle.bounded_ = true;
    return handle;
  }
  const int fd = open_unblocked(path);
  struct stat facts;
  if (::fstat(fd, &facts) != 0) {
    const int errnum = errno;
    ::close(fd);
    throw io_error(path, "cannot stat", errnum);
  }
  if (!S_ISREG(facts.st_mode)) {
    ::close(fd);
    throw input_error({path, {}}, "is {}, not a regular file",
                      kind_of(facts.st_mode));
  }
  Handle handle(path, fd, static_cast<uint64_t>(facts.st_size));
  tell_watch(path, facts);
  return handle;
}

Handle Handle::create(const std::string& path) {
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  return Handle(path, open_or_throw(path, flags, "cannot create"), 0);
}

Handle Handle::open_write(const std::string& path) {
  const int fd = open_or_throw(path, O_RDWR | O_CLOEXEC, "cannot open");
  struct stat facts;
  const bool known = ::fstat(fd, &facts) == 0;
  return Handle(path, fd, known ? static_cast<uint64_t>(facts.st_size) : 0);
}

Handle::Handle(std::string path, int fd, uint64_t size)
    : path_(std::move(path)),
      file_(std::make_shared<const Descriptor>(fd)),
      size_(size) {}
Handle::~Handle() = default;

int Handle::fd() const { return file_ ? file_->fd : -1; }

Handle Handle::of_memory(std::string bytes, std::string path) {
  Handle handle;
  handle.path_ = std::move(path);
  handle.size_ = bytes.size();
  handle.memory_ = std::make_shared<const std::string>(std::move(bytes));
  handle.bounded_ = true;
  return handle;
}

Handle Handle::slice(uint64_t offset, uint64_t size) const {
  if (size > size_ || offset > size_ - size)
    throw input_error({path_, {}},
                      "file ends at byte {}, wanted {} bytes from byte {}",
                      size_, size, offset);
  Handle part;
  part.path_ = path_;
  part.size_ = size;
  part.file_ = file_;
  part.memory_ = memory_;
  part.base_ = base_ + offset;
  part.bounded_ = true;
  return part;
}

void Handle::read(uint64_t offset, std::span<std::byte> buffer) const {
  if (bounded_ && (buffer.size() > size_ || offset > size_ - buffer.size()))
    throw input_error({path_, {}}, "ends at byte {}, wanted bytes {}-{}", size_,
                      offset, offset + buffer.size());
  if (memory_) {
    std::memcpy(buffer.data(), memory_->data() + base_ + offset, buffer.size());
    return;
  }
  if (file_->remote) {
    file_->remote->read(base_ + offset, buffer);
    read_so_far.fetch_add(buffer.size(), std::memory_order_relaxed);
    return;
  }
  size_t done = 0;
  while (done < buffer.size()) {
    const ssize_t n = retry([&] {
      return ::pread(file_->fd, buffer.data() + done, buffer.size() - done,
                     static_cast<off_t>(base_ + offset + done));
    });
    if (n < 0)
      throw io_error(path_, fmt::format("cannot read byte {}", offset + done),
                     errno);
    if (n == 0)
      throw input_error({path_, {}}, "file ends at byte {}, wanted bytes {}-{}",
                        offset + done, offset, offset + buffer.size());
    done += static_cast<size_t>(n);
  }
  read_so_far.fetch_add(buffer.size(), std::memory_order_relaxed);
}

uint64_t bytes_read() { return read_so_far.load(std::memory_order_relaxed); }

std::string Handle::read_string(uint64_t offset, uint64_t count) const {
  if (count > size_ || offset > size_ - count)
    throw input_error({path_, {}}, "file ends at byte {}, wanted bytes {}-{}",
                      size_, offset, offset + count);
  std::string text;
  text.reserve(count);
  prefer_huge_pages(text.data(), count);
  text.resize(count);
  read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

void Handle::write(uint64_t offset, std::span<const std::byte> bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = retry([&] {
      return ::pwrite(file_->fd, bytes.data() + done, bytes.size() - done,
                      static_cast<off_t>(offset + done));
    });
    if (n < 0) throw write_error(path_, errno);
    done += static_cast<size_t>(n);
  }
}

void Handle::write(uint64_t offset, std::string_view bytes) const {
  write(offset, std::as_bytes(std::span(bytes)));
}

void Handle::writev(uint64_t offset, std::span<iovec> parts) const {
  parts = consume(parts, 0);
  while (!parts.empty()) {
    const int count = static_cast<int>(std::min<size_t>(parts.size(), IOV_MAX));
    const ssize_t n = retry([&] {
      return ::pwritev(file_->fd, parts.data(), count,
                       static_cast<off_t>(offset));
    });
    if (n < 0) throw write_error(path_, errno);
    offset += static_cast<uint64_t>(n);
    parts = consume(parts, static_cast<size_t>(n));
  }
}

// Not fallocate: it searches for free blocks at once, which took a quarter of a
// whole reshard on a file system that has been in use, and on tmpfs it writes
// zeros. Without it, that is left to the writeback (docs/engine.md).
void Handle::allocate(uint64_t size) const {
  if (size == 0) return;
  const auto length = static_cast<off_t>(size);
  if (retry([&] { return ::ftruncate(file_->fd, length); }) != 0)
    throw write_error(path_, errno);
}

void Handle::sync() const {
  const trace::Span span("sync");
  if (retry([&] { return ::fdatasync(file_->fd); }) != 0)
    throw flush_error(path_, "cannot sync", errno);
}

void Handle::drop_cache(uint64_t offset, uint64_t count) const {
  ::posix_fadvise(file_->fd, static_cast<off_t>(offset),
                  static_cast<off_t>(count), POSIX_FADV_DONTNEED);
}

void Handle::start_writeback(uint64_t offset, uint64_t count) const {
  ::sync_file_range(file_->fd, static_cast<off_t>(offset),
                    static_cast<off_t>(count), SYNC_FILE_RANGE_WRITE);
}

bool reflink(const Handle& from, uint64_t from_offset, const Handle& to,
             uint64_t to_offset, uint64_t count) {
  file_clone_range range{from.fd(), from.base() + from_offset, count,
                         to.base() + to_offset};
  return retry([&] { return ::ioctl(to.fd(), FICLONERANGE, &range); }) == 0;
}

void copy_range(const Handle& from, uint64_t from_offset, const Handle& to,
                uint64_t to_offset, uint64_t count) {
  auto in = static_cast<off_t>(from.base() + from_offset);
  auto out = static_cast<off_t>(to.base() + to_offset);
  while (count) {
    const ssize_t n = retry([&] {
      return ::copy_file_range(from.fd(), &in, to.fd(), &out, count, 0);
    });
    if (n <= 0) break;
    count -= static_cast<uint64_t>(n);
  }
  in -= static_cast<off_t>(from.base());
  out -= static_cast<off_t>(to.base());
  // One block of a remote file is many requests at once.
  const uint64_t block = remote_of(from) ? 16 << 20 : 1 << 20;
  std::vector<std::byte> buffer(std::min<uint64_t>(count, block));
  while (count) {
    const auto part =
        std::span(buffer).first(std::min<uint64_t>(count, buffer.size()));
    from.read(static_cast<uint64_t>(in), part);
    to.write(static_cast<uint64_t>(out), part);
    in += static_cast<off_t>(part.size());
    out += static_cast<off_t>(part.size());
    count -= part.size();
  }
}

std::string read_file(const std::string& path, uint64_t limit) {
  const Handle file = Handle::open_read(path);
  if (file.size() > limit)
    throw input_error({path, {}}, "{} bytes, more than the limit of {}",
                      file.size(), limit);
  return file.read_string(0, file.size());
}

std::string join(std::string_view directory, std::string_view name) {
  if (directory.empty() || name.starts_with('/')) return std::string(name);
  if (name.empty()) return std::string(directory);
  std::string path(directory);
  if (!path.ends_with('/')) path += '/';
  return path.append(name);
}

std::vector<std::string> join_each(std::string_view directory,
                                   const std::vector<std::string>& names) {
  std::vector<std::string> paths;
  for (const std::string& name : names) paths.push_back(join(directory, name));
  return paths;
}

std::string base_name(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  return std::string(
      slash == path.npos || path.size() == 1 ? path : path.substr(slash + 1));
}

std::string parent(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == path.npos) return ".";
  // A host, a bucket or an owner has no parent.
  if (is_url(path) && path[slash - 1] == '/') return std::string(path);
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

void sync_directory(const std::string& path) {
  const int fd =
      open_or_throw(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, "cannot open");
  const int result = retry([&] { return ::fsync(fd); });
  const int errnum = errno;
  ::close(fd);
  // Some file systems can't sync a directory, and need not.
  if (result != 0 && errnum != EINVAL && errnum != EROFS)
    throw flush_error(path, "cannot sync", errnum);
}

}  // namespace ckpt::io
