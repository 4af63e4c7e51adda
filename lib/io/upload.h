// SPDX-License-Identifier: Apache-2.0
// The seam to targets on other machines: files of this one become objects below
// a URL, part by part while they are written, and all of them appear or none
// that a reader would take for a checkpoint. lib/net does it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckpt::io {

// s3:// gs://: what can be written.
constexpr bool is_target_url(std::string_view path) {
  return path.starts_with("s3://") || path.starts_with("gs://");
}

// An object in a directory that is not finished.
inline constexpr std::string_view kUploadClaim = ".ckpt-upload";

enum class Standing : uint8_t { kNothing, kFile, kDirectory };
// Asked now, whatever was known before. Throws kIo if it can't be told.
Standing look_at_target(const std::string& url);

struct UploadOptions {
  bool single_file = false;
  bool overwrite = false;
  // Where it is noted on this machine which uploads were begun.
  std::string record;
  // Suffixes of objects that go with a single one that is replaced.
  std::vector<std::string> companions = {};
};

// Bytes [first, second) of a file.
using ByteRange = std::pair<uint64_t, uint64_t>;

// Files are known by their place in the list that it began with. What fails is
// thrown as kIo; what was sent stays then, for another try.
class Upload {
 public:
  virtual ~Upload() = default;
  // Bytes of a part of a file, counted from its begin; 0: it is sent as a
  // whole, at the end.
  virtual uint64_t part_bytes(uint32_t file) const = 0;
  // An earlier try sent it: its bytes may be gone here.
  virtual bool was_sent(uint32_t file, uint64_t part) const = 0;
  // The server has it, and keeps it.
  virtual bool stands(uint32_t file, uint64_t part) const = 0;
  // The bytes of a part are all in its file: it is sent soon, by other threads.
  // When the server has it, what is `spare` is freed on this machine. Waits
  // while many others are to be sent; throws what failed with any of them.
  virtual void send(uint32_t file, uint64_t part,
                    std::vector<ByteRange> spare) = 0;
  // Sends what was not sent, then all appears: also `more` files, the last of
  // which appears last. Throws kUnfaithful if something came to stand at the
  // target.
  virtual void publish(const std::vector<std::string>& more) = 0;
};

// `files` have their size; they are relative to `root` and become TARGET/FILE,
// or stand beside the single TARGET. What an earlier try sent and the record
// names is looked for at the server and not sent again.
std::unique_ptr<Upload> begin_upload(const std::string& root,
                                     const std::string& target,
                                     const std::vector<std::string>& files,
                                     const UploadOptions& options);

// Ends the uploads of a record; does nothing if there are none.
void abandon_upload(const std::string& record) noexcept;
// An upload to `target` came so far that objects of it may stand there.
bool is_publishing(const std::string& record, const std::string& target);

// How a file is sent: the parts, and the requests for all of it.
struct UploadCost {
  uint64_t part = 0;  // bytes
  uint64_t parts = 0;
  uint64_t requests = 0;
};
UploadCost upload_cost(uint64_t bytes);

}  // namespace ckpt::io
