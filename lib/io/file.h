// SPDX-License-Identifier: Apache-2.0
// Files by position: open, read, write, copy. The loops over short transfers
// and EINTR are here and nowhere else. No payload is ever mapped.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::io {

// An open file, closed on destruction; copies share nothing.
class Handle {
 public:
  // Both throw an Error that names the path: kMissing if it does not exist,
  // else kIo. Directories and other non-files are refused.
  static Handle open_read(const std::string& path);
  // Creates the file (must not exist unless `existing`), for writing.
  static Handle create(const std::string& path);
  static Handle open_write(const std::string& path);

  // Bytes in memory as a file to read; `path` is for messages.
  static Handle of_memory(std::string bytes, std::string path);

  // Bytes [offset, offset + size) of this file as a file of its own, for
  // reading: a zip archive inside a bigger file. Shares the open file. Throws
  // input_error past the end.
  Handle slice(uint64_t offset, uint64_t size) const;

  Handle(Handle&&) noexcept = default;
  Handle& operator=(Handle&&) noexcept = default;
  ~Handle();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // when it was opened
  // Where a slice begins in the file of fd().
  uint64_t base() const { return base_; }
  int fd() const;

  // Reads exactly buffer.size() bytes at `offset`. Throws input_error past the
  // end ("file ends at byte X, wanted bytes A-B").
  void read(uint64_t offset, std::span<std::byte> buffer) const;
  // Bytes [offset, offset + count) as a string. For metadata; the caller has
  // checked count against a limit.
  std::string read_string(uint64_t offset, uint64_t count) const;

  void write(uint64_t offset, std::span<const std::byte> bytes) const;
  void write(uint64_t offset, std::string_view bytes) const;
  // Gathers `parts` (clobbered) into one contiguous range at `offset`.
  void writev(uint64_t offset, std::span<iovec> parts) const;

  // Sets the size; blocks are allocated as bytes are written (see file.cc). The
  // caller has checked that there is room. Throws kIo.
  void allocate(uint64_t size) const;
  void sync() const;
  // Tells the kernel that [offset, offset + count) won't be read again soon.
  void drop_cache(uint64_t offset, uint64_t count) const;
  void start_writeback(uint64_t offset, uint64_t count) const;

 private:
  struct Descriptor;
  Handle() = default;
  Handle(std::string path, int fd, uint64_t size);
  std::string path_;
  std::shared_ptr<const Descriptor> file_;     // null: in memory
  std::shared_ptr<const std::string> memory_;  // null: in the file
  uint64_t base_ = 0;
  uint64_t size_ = 0;
  bool bounded_ = false;  // a slice or memory: size() is the end
};

// Tries to share [from_offset, +count) of `from` with `to` inside the file
// system (FICLONERANGE). Returns false, with nothing written, if it can't.
bool reflink(const Handle& from, uint64_t from_offset, const Handle& to,
             uint64_t to_offset, uint64_t count);

// Copies bytes with the kernel's help where it can (copy_file_range), else
// through a buffer.
void copy_range(const Handle& from, uint64_t from_offset, const Handle& to,
                uint64_t to_offset, uint64_t count);

// A whole metadata file. Throws input_error if it is larger than `limit`.
std::string read_file(const std::string& path, uint64_t limit);

// What is at a path, following links. Only what the system says does not exist,
// under its own name, is absent. Everything else that can't be examined throws:
// a dangling link kMissing, a directory without permission or a stale handle
// kIo. Taken for absent, a file would be left out silently.
//
// Throws kDamaged for a FIFO, a socket or a device.
bool is_file(const std::string& path);
bool is_directory(const std::string& path);
// True for a symbolic link, wherever it leads; never for what is in an archive
// or on a server.
bool is_link(const std::string& path);
// nullopt if it is absent; throws as is_file does, for directories too.
std::optional<uint64_t> file_size(const std::string& path);
// "a FIFO", "a socket" …, from st_mode.
std::string_view kind_of(uint32_t mode);
// Names in a directory, sorted bytewise; without "." and "..".
std::vector<std::string> list_directory(const std::string& path);
std::string join(std::string_view directory, std::string_view name);
std::vector<std::string> join_each(std::string_view directory,
                                   const std::vector<std::string>& names);
std::string base_name(std::string_view path);
std::string parent(std::string_view path);
void sync_directory(const std::string& path);

}  // namespace ckpt::io
