// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/unite.h"

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/numbered.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::dcp {
namespace {

using text::printable;

// Objects up to this size are compared byte by byte, up to a limit: each costs
// two reads.
constexpr uint64_t kCompared = 64 << 10;
constexpr uint64_t kMostCompared = 4096;

class Uniter {
 public:
  explicit Uniter(Metadata first) : all_(std::move(first)) {
    for (size_t i = 0; i < all_.tensors.size(); ++i)
      tensors_[all_.tensors[i].name] = i;
    for (size_t i = 0; i < all_.bytes.size(); ++i)
      bytes_[all_.bytes[i].name] = i;
    position_ = static_cast<uint32_t>(tensors_.size() + bytes_.size());
  }

  void add(Metadata rank) {
    file_shift_ = static_cast<uint32_t>(all_.files.size());
    std::ranges::move(rank.files, std::back_inserter(all_.files));
    std::ranges::move(rank.sizes, std::back_inserter(all_.sizes));
    map_transforms(rank);
    for (TensorEntry& tensor : rank.tensors) add_tensor(rank, tensor);
    for (BytesEntry& entry : rank.bytes) add_bytes(entry);
    if (rank.planner) {
      if (!all_.planner) all_.planner.emplace();
      all_.planner->merge(*rank.planner);
    }
    for (const std::string& global : rank.globals) {
      const auto at = std::ranges::lower_bound(all_.globals, global);
      if (at == all_.globals.end() || *at != global)
        all_.globals.insert(at, global);
    }
    std::ranges::move(rank.problems, std::back_inserter(all_.problems));
  }

  Metadata finish() {
    if (!unlike_.empty())
      all_.problems.push_back(
          warning("unlike_objects", {all_.directory, {}},
                  "ranks saved unlike values of {}; the first rank's are "
                  "taken",
                  formats::list_some(unlike_)));
    return std::move(all_);
  }

 private:
  void map_transforms(const Metadata& rank) {
    transforms_.assign(rank.transforms.size(), kNoTransforms);
    for (size_t i = 1; i < rank.transforms.size(); ++i) {
      const auto known = std::ranges::find(all_.transforms, rank.transforms[i]);
      transforms_[i] = static_cast<uint32_t>(known - all_.transforms.begin());
      if (known == all_.transforms.end())
        all_.transforms.push_back(rank.transforms[i]);
    }
  }
  void shift(Stored& stored) const {
    stored.file += file_shift_;
    stored.transforms = transforms_[stored.transforms];
  }

  void add_tensor(const Metadata& rank, TensorEntry& tensor) {
    for (Chunk& chunk : tensor.chunks) shift(chunk.stored);
    const auto [known, fresh] =
        tensors_.try_emplace(tensor.name, all_.tensors.size());
    if (bytes_.contains(tensor.name))
      throw input_error({rank.path, printable(tensor.name)},
                        "a tensor here, an object of an earlier rank");
    if (fresh) {
      tensor.position = position_++;
      all_.tensors.push_back(std::move(tensor));
      return;
    }
    TensorEntry& first = all_.tensors[known->second];
    if (first.dtype != tensor.dtype || first.size != tensor.size)
      throw input_error({rank.path, printable(tensor.name)},
                        "a tensor {} {} here, {} {} of an earlier rank",
                        name(tensor.dtype), to_string(tensor.size),
                        name(first.dtype), to_string(first.size))
          .with_hint("the files are of two saves: remove the stale ones");
    std::ranges::move(tensor.chunks, std::back_inserter(first.chunks));
  }

  void add_bytes(BytesEntry& entry) {
    shift(entry.stored);
    const auto [known, fresh] =
        bytes_.try_emplace(entry.name, all_.bytes.size());
    if (tensors_.contains(entry.name))
      throw input_error({all_.directory, printable(entry.name)},
                        "an object of one rank, a tensor of another");
    if (fresh) {
      entry.position = position_++;
      all_.bytes.push_back(std::move(entry));
    } else if (!alike(all_.bytes[known->second].stored, entry.stored)) {
      unlike_.push_back(entry.name);
    }
  }

  std::string bytes_of(const Stored& stored) const {
    const std::string path = io::join(all_.directory, all_.files[stored.file]);
    return io::Handle::open_read(path).read_string(stored.offset,
                                                   stored.length);
  }
  // Equal values have equal archives: torch puts no date in them.
  bool alike(const Stored& a, const Stored& b) {
    if (a.length != b.length || a.transforms != b.transforms) return false;
    if (a.length > kCompared || compared_++ > kMostCompared) return false;
    return bytes_of(a) == bytes_of(b);
  }

  Metadata all_;
  std::unordered_map<std::string, size_t> tensors_;
  std::unordered_map<std::string, size_t> bytes_;
  uint32_t position_ = 0;
  uint32_t file_shift_ = 0;
  std::vector<uint32_t> transforms_;  // of the rank -> of all
  std::vector<std::string> unlike_;
  uint64_t compared_ = 0;
};

}  // namespace

Metadata unite(std::vector<Metadata> ranks) {
  Uniter uniter(std::move(ranks.at(0)));
  for (size_t r = 1; r < ranks.size(); ++r) uniter.add(std::move(ranks[r]));
  return uniter.finish();
}

}  // namespace ckpt::dcp
