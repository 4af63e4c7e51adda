// SPDX-License-Identifier: Apache-2.0
// The target: what a checkpoint is to be written as.
//
//   source Catalog + Layout ─► Writer::lay_out ─► Target
//
// A Target is a Catalog whose extents point into files that don't exist yet,
// plus everything about those files that is not tensor payload.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt {

// An option that a format has beside topology and the sizes of files. Commands
// have a flag for it, programs put its text into Layout::options.
struct FormatOption {
  std::string name;  // "pp-layout": --pp-layout
  // What help calls a value, "N"; or its choices, "a|b"; "": it is a flag.
  std::string type;
  std::string help;  // "": the command that knows the option has its own
  std::string group = "Target";  // in help
  // Throws a usage_error for a text that is not a value of it. Null: any is.
  void (*check)(const FormatOption& option, const std::string& text) = nullptr;
};

// What the user asks for. Anything that is not set stays as it is in the
// source (topology, dtype) or is the format's habit (file naming).
struct Layout {
  std::string format;
  Topology topology;  // resolved: what the target will have
  // 0: one file. Else the most bytes of tensors in one file.
  uint64_t max_shard_size = 0;
  // The target is one file (DST ends in .safetensors or .pt), not a directory.
  bool single_file = false;
  // The format's own options, by name, as on a command line: {"etp", "2"}. Its
  // writer reads them; one that the format lacks is refused.
  std::map<std::string, std::string, std::less<>> options = {};
  // The name that DST will have in the end (torch puts a file's stem in it).
  std::string name = {};

  // The text of an option; "" if it is not set.
  std::string option(std::string_view option_name) const {
    const auto found = options.find(option_name);
    return found == options.end() ? std::string() : found->second;
  }
};

// Bytes that are known before the payload: headers, padding, small files.
struct Literal {
  uint64_t offset = 0;
  std::string bytes;
};

// A literal that many files share: the frames of archives that differ in
// nothing but their payload.
struct SharedLiteral {
  uint64_t offset = 0;
  std::shared_ptr<const std::string> bytes;
};

// A CRC-32 of payload, written when the payload is: the checksum of bytes
// [begin, end) goes to each of the offsets in `at`, little-endian.
struct LateCrc {
  uint64_t begin = 0;
  uint64_t end = 0;
  std::vector<uint64_t> at;
};

// Bytes of a source file that are carried over as they are: the archive of an
// object.
struct CarriedRange {
  uint64_t offset = 0;
  uint64_t size = 0;
  uint32_t source_file = 0;  // in the source's catalog; kRaw
  uint64_t source_offset = 0;
};

// A list that files may share: the files of ranks with like shards differ in
// payload alone, so a thousand ranks hold one list. Copies are cheap; a change
// gives its holder a list of its own.
template <typename T>
class SharedList {
 public:
  using const_iterator = typename std::vector<T>::const_iterator;

  SharedList() = default;
  // Implicit: callers assign plain lists.
  SharedList(std::vector<T> list)
      : list_(std::make_shared<std::vector<T>>(std::move(list))) {}
  SharedList(std::initializer_list<T> list)
      : SharedList(std::vector<T>(list)) {}

  const std::vector<T>& get() const {
    static const std::vector<T> none;
    return list_ ? *list_ : none;
  }
  std::vector<T>& own() {
    if (!list_ || list_.use_count() != 1)
      list_ = std::make_shared<std::vector<T>>(get());
    return *list_;
  }
  void push_back(T value) { own().push_back(std::move(value)); }

  // To find a list again while somebody holds it.
  using Watch = std::weak_ptr<std::vector<T>>;
  Watch watch() const { return list_; }
  static std::optional<SharedList> from(const Watch& watch) {
    SharedList list;
    list.list_ = watch.lock();
    if (!list.list_) return std::nullopt;
    return list;
  }

  size_t size() const { return get().size(); }
  bool empty() const { return get().empty(); }
  const T& operator[](size_t i) const { return get()[i]; }
  const_iterator begin() const { return get().begin(); }
  const_iterator end() const { return get().end(); }

 private:
  std::shared_ptr<std::vector<T>> list_;
};

struct TargetFile {
  std::string path;  // relative to the target directory; "" if it is DST
  uint64_t size = 0;
  SharedList<Literal> literals;       // sorted by offset
  std::vector<SharedLiteral> shared;  // sorted by offset
  SharedList<LateCrc> crcs;
  std::vector<CarriedRange> carried;  // sorted by offset
  // A byte-for-byte copy of this file (a sidecar); then nothing else is set
  // but path and size.
  std::string copy_of;
};

// What became of a file of the source.
enum class Fate : uint8_t { kConverted, kCarried, kLeftOut };
std::string_view name(Fate fate);

struct FileFate {
  std::string path;  // as in Catalog::file_list
  Fate fate = Fate::kConverted;
  std::string reason;  // of what is left out
};

// Literals and the pieces of `catalog` cover each file exactly once: no gap,
// no overlap. The planner proves it.
struct Target {
  Catalog catalog;                // files[i] is described by files[i] below
  std::vector<TargetFile> files;  // payload files first, same order
  std::vector<Problem> problems;  // what has no place in the target
  std::vector<std::string> assumptions;
  // Where files that are carried go, if not to the top.
  std::string beside;
  // A Writer's own decisions; after formats::settle_files, all of the source's
  // files in the order of its list.
  std::vector<FileFate> fates;
};

}  // namespace ckpt
