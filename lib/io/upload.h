// SPDX-License-Identifier: Apache-2.0
// The seam to targets on other machines: files that stand whole on this one
// become objects below a URL, all of them or none that a reader would take for
// a checkpoint. lib/net does it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::io {

// s3:// gs://: what can be written.
constexpr bool is_target_url(std::string_view path) {
  return path.starts_with("s3://") || path.starts_with("gs://");
}

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

// `files` are relative to `root` and become TARGET/FILE, or stand beside the
// single TARGET; the last one (the manifest) appears last. What an earlier try
// sent and the record names is looked for at the server and not sent again, if
// it is what the files hold. Throws kUnfaithful if something came to stand at
// the target, kIo for what fails; what was sent stays then, for another try.
void upload(const std::string& root, const std::string& target,
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
