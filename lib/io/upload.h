// SPDX-License-Identifier: Apache-2.0
// The seam to targets on other machines: local files become objects below a
// URL, part by part while they are written. Either all of them appear, or none
// that a reader would take for a checkpoint. lib/net implements it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckpt::io {

// s3:// gs://: the schemes that can be written.
constexpr bool is_target_url(std::string_view path) {
  return path.starts_with("s3://") || path.starts_with("gs://");
}

// An object in a directory that is not finished.
inline constexpr std::string_view kUploadClaim = ".ckpt-upload";

enum class Standing : uint8_t { kNothing, kFile, kDirectory };
// Asks now, whatever was known before. Throws kIo if it can't be determined.
Standing look_at_target(const std::string& url);

struct UploadOptions {
  bool single_file = false;
  bool overwrite = false;
  // The local file that records which uploads were begun.
  std::string record;
  // Suffixes of objects that are removed with a single one that is replaced.
  std::vector<std::string> companions = {};
};

// Bytes [first, second) of a file.
using ByteRange = std::pair<uint64_t, uint64_t>;

// Files are identified by their place in the list given at the start. Failures
// are thrown as kIo; what was sent then stays, for another try.
class Upload {
 public:
  virtual ~Upload() = default;
  // The size of a file's parts, counted from its beginning; 0: it is sent
  // whole, at the end.
  virtual uint64_t part_bytes(uint32_t file) const = 0;
  // An earlier try sent it: its local bytes may be gone.
  virtual bool was_sent(uint32_t file, uint64_t part) const = 0;
  // The server has it and keeps it.
  virtual bool stands(uint32_t file, uint64_t part) const = 0;
  // Call once a part's bytes are all in its file: other threads send it soon.
  // When the server has it, the `spare` ranges are freed on this machine. Waits
  // while many others are queued; throws what failed with any of them.
  virtual void send(uint32_t file, uint64_t part,
                    std::vector<ByteRange> spare) = 0;
  // Sends what was not sent, then makes everything appear, including the `more`
  // files, the last of which appears last. Throws kUnfaithful if something
  // appeared at the target.
  virtual void publish(const std::vector<std::string>& more) = 0;
};

// `files` have their final size; they are relative to `root` and become
// TARGET/FILE, or go beside the single TARGET. What an earlier try sent and the
// record names is looked up at the server and not sent again.
std::unique_ptr<Upload> begin_upload(const std::string& root,
                                     const std::string& target,
                                     const std::vector<std::string>& files,
                                     const UploadOptions& options);

// Ends the uploads of a record; does nothing if there are none.
void abandon_upload(const std::string& record) noexcept;
// True if an upload to `target` came so far that some of its objects may be
// there.
bool is_publishing(const std::string& record, const std::string& target);

// How a file is sent: its parts, and the requests for all of it.
struct UploadCost {
  uint64_t part = 0;  // bytes
  uint64_t parts = 0;
  uint64_t requests = 0;
};
UploadCost upload_cost(uint64_t bytes);

}  // namespace ckpt::io
