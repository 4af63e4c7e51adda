// SPDX-License-Identifier: Apache-2.0
// An open file on a server: a few blocks of it in memory, the rest by ranges.
//
//   small reads   fetch and keep a block of 64 KiB or more: headers and
//                 directories are read in many small steps
//   large reads   fetch exactly that, 4 MiB per request, all at once. What
//                 came is kept as long as there is room: a tensor whose
//                 rows change places is read by several overlapping reads
//   ask_for       fetches it before it is read, 8 MiB per request, with what
//                 little lies between two ranges
//   copy          makes one request for all of it and writes the bytes into a
//                 file as they come
#pragma once

#include <mutex>

#include "lib/io/remote.h"
#include "lib/net/store.h"

namespace ckpt::net {

struct Block;

class NetFile final : public io::RemoteFile {
 public:
  NetFile(Store& store, std::string path, const Facts& facts);
  ~NetFile() override;

  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> buffer) const override;
  bool has(uint64_t offset, uint64_t count) const override;
  bool is_there(uint64_t offset, uint64_t count) const override;
  void ask_for(std::span<const io::Range> ranges,
               io::Asking how) const override;
  void copy(uint64_t offset, uint64_t count,
            const std::shared_ptr<const io::Handle>& to, uint64_t at,
            const Came& came) const override;

 private:
  struct Part;
  void copy_once(uint64_t offset, uint64_t count,
                 const std::shared_ptr<const io::Handle>& to, uint64_t at,
                 uint64_t& stands, const Came& came) const;
  Error refused_error() const;
  Request request(uint64_t begin, std::span<std::byte> into) const;
  void read_once(uint64_t offset, std::span<std::byte> buffer) const;
  std::vector<Part> cut(uint64_t offset, std::span<std::byte> buffer) const;
  void add_gap(uint64_t begin, uint64_t end, uint64_t after, std::byte* to,
               std::vector<Part>& parts) const;
  void ask_for_tail() const;
  std::shared_ptr<Block> ask(uint64_t begin, uint64_t end, uint64_t wanted,
                             bool payload = true) const;
  void check(const Response& response, const Request& request) const;

  Store& store_;
  const std::string path_;
  const uint64_t size_;
  const bool unversioned_;
  const Version version_;
  mutable uint64_t run_end_ = 0;    // of the last block fetched
  mutable uint64_t run_bytes_ = 0;  // fetched one after the other
};

void set_memory(uint64_t bytes);
uint64_t memory();

}  // namespace ckpt::net
