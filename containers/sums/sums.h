// SPDX-License-Identifier: Apache-2.0
// Checksums that others left beside a checkpoint's files.
//
//   where                                   algorithm       over
//   blobs/HEX of a hub cache                SHA-256, git    the file
//   .cache/huggingface/download/F.metadata  SHA-256, git    the file
//   .git/lfs/objects/aa/bb/HEX              SHA-256         the file
//   SHA256SUMS, md5sum.txt, checklist.chk   by the digits   files listed
//   F.sha256, F.md5                         by the digits   F
//   __metadata__ of safetensors             SHA-256         all tensors' bytes
//
// "git": SHA-1 of "blob SIZE\0" and the content. A list's 32 digits are MD5, 40
// SHA-1, 64 SHA-256.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/hash/sha1.h"
#include "lib/hash/sha256.h"
#include "lib/io/file.h"
#include "lib/net/md5.h"

namespace ckpt::sums {

enum class Algorithm : uint8_t { kMd5, kSha1, kGit, kSha256 };
std::string_view name(Algorithm algorithm);  // "SHA-256"

// What a file's content should have.
struct Sum {
  std::string file;  // its path
  Algorithm algorithm = Algorithm::kSha256;
  std::string hex;     // in lower case
  std::string source;  // who says it, as a clause: "its name in the hub cache"
  uint64_t begin = 0;  // of what is summed, to the end of the file
  // Writers don't agree over what it is: where it fits, it proves; where it
  // doesn't, it says nothing.
  bool loose = false;
};

struct Beside {
  std::vector<Sum> sums;
  std::vector<Problem> problems;  // lists that can't be read
};

// Of these files, which are in or below `root`. Reads lists and headers.
Beside beside(const std::vector<std::string>& files, const std::string& root);

// What those of the files that are lists, or the cache of a download into a
// directory, say of the others. All of them paths, or all of them URLs.
Beside listed(const std::vector<std::string>& files);

// True for SHA256SUMS, FILE.sha256 and the like: what they say of a source's
// files is not true of those that are made of it.
bool is_list(const std::string& name);

// A list of checksums; names are relative to `root`. Throws input_error if it
// is none, or names a file outside.
std::vector<Sum> read_list(const std::string& path, const std::string& root);

// Of bytes that come in order, `size` in all.
class Hash {
 public:
  Hash(Algorithm algorithm, uint64_t size);
  void update(std::span<const std::byte> bytes);
  std::string hex();  // in lower case; call it once

 private:
  std::variant<net::Md5, Sha1, Sha256> hash_;
};

// Of the bytes from `begin` on.
std::string hash_of(const io::Handle& file, Algorithm algorithm,
                    uint64_t begin = 0);

// The checksum that a content-addressed store names a file by: blobs of a hub
// cache, objects of git-lfs. An empty hex if it is in neither.
Sum stored_under_sum(const std::string& path);

}  // namespace ckpt::sums
