// SPDX-License-Identifier: Apache-2.0
#include "containers/ocdbt/database.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "ckpt/error.h"
#include "lib/codec/decoder.h"
#include "lib/io/file.h"
#include "lib/lost_file.h"
#include "lib/text/format.h"

namespace ckpt::ocdbt {
namespace {

namespace fs = std::filesystem;
using text::printable;

constexpr std::string_view kManifest = "manifest.ocdbt";
constexpr uint32_t kManifestMagic = 0x0cdb3a2a, kNodeMagic = 0x0cdb20de;
// TensorStore writes nodes of 8 MB; a manifest is as large as its versions.
constexpr uint64_t kMostNode = uint64_t{256} << 20;
constexpr uint64_t kMostNodes = 1'000'000, kMostKeys = 4'000'000;
constexpr uint64_t kMostHeld = uint64_t{1} << 30;  // keys, values in nodes

// A record's bytes in order. Every read is checked.
class Fields {
 public:
  Fields(std::string_view bytes, Where where)
      : bytes_(bytes), where_(std::move(where)) {}

  [[noreturn]] void fail(std::string_view what) const {
    throw input_error(where_, "byte {} of the record: {}", at_, what)
        .with_hint("copy or download the checkpoint again");
  }
  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) fail("it ends early");
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  uint8_t byte() { return static_cast<uint8_t>(take(1)[0]); }
  uint64_t little(size_t count) {
    uint64_t value = 0;
    const std::string_view taken = take(count);
    for (size_t i = 0; i < count; ++i)
      value |= uint64_t{static_cast<uint8_t>(taken[i])} << (8 * i);
    return value;
  }
  uint32_t big32() {
    uint32_t value = 0;
    for (const char c : take(4)) value = (value << 8) | static_cast<uint8_t>(c);
    return value;
  }
  // LEB128.
  uint64_t number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t next = byte();
      if (shift == 63 && next > 1) break;
      value |= uint64_t{next & 0x7fU} << shift;
      if (next < 0x80) return value;
    }
    fail("a number of more than 64 bits");
  }
  // How many entries follow; each takes a byte at least.
  uint64_t count() {
    const uint64_t value = number();
    if (value > bytes_.size() - at_) fail("more entries than bytes");
    return value;
  }
  std::vector<uint64_t> numbers(uint64_t count) {
    std::vector<uint64_t> all(count);
    for (uint64_t& one : all) one = number();
    return all;
  }
  void end() const {
    if (at_ != bytes_.size()) fail("bytes are left over");
  }

 private:
  std::string_view bytes_;
  uint64_t at_ = 0;
  Where where_;
};

std::string unpacked(std::string_view packed, const Where& where) {
  const auto decoder = codec::make_decoder(Codec::kZstd, where);
  decoder->restart();
  auto input = std::as_bytes(std::span(packed));
  std::string plain;
  auto status = codec::Decoder::Status::kMore;
  while (status == codec::Decoder::Status::kMore) {
    const size_t before = plain.size();
    const size_t room = std::max<size_t>(4096, before);
    if (before + room > kMostNode)
      throw unsafe_error(where, "a node of more than {}",
                         text::iec_size(kMostNode));
    plain.resize(before + room);
    auto output = std::as_writable_bytes(std::span(plain)).subspan(before);
    const size_t left = input.size();
    status = decoder->step(input, output);
    plain.resize(plain.size() - output.size());
    if (input.size() == left && plain.size() == before) break;
  }
  if (status != codec::Decoder::Status::kEnded || !input.empty())
    throw input_error(where, "its zstd frame is damaged");
  return plain;
}

// The body of a record, once its frame is proven.
std::string body_of(const std::string& record, uint32_t magic,
                    const Where& where) {
  Fields header(record, where);
  if (header.big32() != magic)
    header.fail("not the beginning of such a record");
  if (header.little(8) != record.size()) header.fail("another length");
  if (header.number() != 0) header.fail("a version that ckpt does not know");
  const uint64_t compression = header.number();
  if (compression > 1) header.fail("a compression that ckpt does not know");
  // Both numbers were less than 128: a byte each.
  const std::string_view all = record;
  constexpr size_t kHeader = 4 + 8 + 2, kFooter = 4;
  if (all.size() < kHeader + kFooter) header.fail("it ends early");
  Fields footer(all.substr(all.size() - kFooter), where);
  const auto stored = static_cast<uint32_t>(footer.little(kFooter));
  const uint32_t found = crc32c(all.substr(0, all.size() - kFooter));
  if (stored != found)
    throw input_error(where, "a node has the CRC-32C {:08x}, and says {:08x}",
                      found, stored)
        .with_hint("copy or download the checkpoint again");
  const std::string_view body =
      all.substr(kHeader, all.size() - kHeader - kFooter);
  return compression == 0 ? std::string(body) : unpacked(body, where);
}

struct DataFile {
  std::string base;  // of what its nodes refer to
  std::string path;  // both relative to the database
};

// Keys or paths, each without what it shares with the one before.
std::vector<std::string> joined(Fields& in, const std::vector<uint64_t>& shared,
                                const std::vector<uint64_t>& sizes) {
  std::vector<std::string> all;
  all.reserve(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    const uint64_t prefix = i == 0 ? 0 : shared[i - 1];
    if (i > 0 && prefix > all.back().size()) in.fail("a prefix too long");
    std::string one = i == 0 ? "" : all.back().substr(0, prefix);
    one += in.take(sizes[i]);
    all.push_back(std::move(one));
  }
  return all;
}

std::vector<DataFile> read_files(Fields& in, const std::string& base) {
  const uint64_t count = in.count();
  const auto shared = in.numbers(count == 0 ? 0 : count - 1);
  const auto sizes = in.numbers(count);
  const auto bases = in.numbers(count);
  std::vector<DataFile> files;
  files.reserve(count);
  size_t i = 0;
  for (std::string& path : joined(in, shared, sizes)) {
    if (bases[i] > path.size()) in.fail("a base path too long");
    files.push_back({base + path.substr(0, bases[i]), base + path});
    ++i;
  }
  return files;
}

struct Node {
  DataFile file;
  uint64_t offset = 0, size = 0;
  uint8_t height = 0;
  std::string prefix;  // of its keys
};

class Reading {
 public:
  explicit Reading(const std::string& directory) : directory_(directory) {}

  Database read() {
    std::vector<Node> open;
    if (auto root = find_root()) open.push_back(*std::move(root));
    while (!open.empty()) {
      const Node node = std::move(open.back());
      open.pop_back();
      if (++nodes_ > kMostNodes)
        throw unsafe_error({directory_, {}}, "more than {} nodes", kMostNodes);
      visit(node, open);
    }
    return std::move(found_);
  }

 private:
  // Names below the directory alone: a database can't lead out of it.
  std::string path_of(const DataFile& file) const {
    const fs::path name(file.path);
    const bool plain = !file.path.empty() && !name.is_absolute() &&
                       file.path.find('\0') == file.path.npos &&
                       std::ranges::none_of(name, [](const fs::path& part) {
                         return part == ".." || part == "." || part.empty();
                       });
    if (!plain)
      throw unsafe_error({directory_, {}},
                         "names a data file \"{}\", which is not below it",
                         printable(file.path));
    return io::join(directory_, file.path);
  }

  // Each data file is looked at once.
  uint64_t size_of(const std::string& path) {
    const auto known = sizes_.find(path);
    if (known != sizes_.end()) return known->second;
    const auto size = io::file_size(path);
    if (!size)
      throw LostFile(input_error({path, {}},
                                 "is missing, and the database of {} has "
                                 "values in it",
                                 directory_)
                         .with_hint("copy or download the checkpoint again"));
    return sizes_[path] = *size;
  }

  std::string place(const DataFile& file, uint64_t offset, uint64_t size) {
    std::string path = path_of(file);
    const uint64_t all = size_of(path);
    if (offset > all || size > all - offset)
      throw input_error({path, {}}, "has {} bytes, {} to {} are asked for", all,
                        offset, offset + size)
          .with_hint("copy or download the checkpoint again");
    return path;
  }

  std::optional<Node> find_root() {
    const std::string path = io::join(directory_, kManifest);
    const std::string body =
        body_of(io::read_file(path, kMostNode), kManifestMagic, {path, {}});
    Fields in(body, {path, {}});
    in.take(16);  // its name
    if (in.number() != 0)
      throw unfaithful_error({path, {}},
                             "keeps its versions in numbered manifests, which "
                             "ckpt does not read")
          .with_hint("load it with orbax.checkpoint and save it again");
    in.number();  // sizes that writers keep to
    in.number();
    in.byte();
    if (in.number() == 1) in.take(4);  // zstd's level
    const std::vector<DataFile> files = read_files(in, "");
    const uint64_t versions = in.count();
    in.numbers(versions);  // generations
    const std::string_view heights = in.take(versions);
    const auto file = in.numbers(versions);
    const auto offset = in.numbers(versions);
    const auto size = in.numbers(versions);
    // The statistics and older versions that follow make no difference.
    if (versions == 0 || size.back() == 0) return std::nullopt;
    if (file.back() >= files.size()) in.fail("no such data file");
    return Node{files[file.back()], offset.back(), size.back(),
                static_cast<uint8_t>(heights.back()), ""};
  }

  void visit(const Node& node, std::vector<Node>& open) {
    if (node.size > kMostNode)
      throw unsafe_error({directory_, {}}, "a node of {} bytes", node.size);
    const std::string path = place(node.file, node.offset, node.size);
    const Where where{path, {}};
    const std::string body =
        body_of(io::Handle::open_read(path).read_string(node.offset, node.size),
                kNodeMagic, where);
    Fields in(body, where);
    if (in.byte() != node.height) in.fail("a node of another height");
    const std::vector<DataFile> files = read_files(in, node.file.base);
    const uint64_t count = in.count();
    const auto shared = in.numbers(count == 0 ? 0 : count - 1);
    const auto sizes = in.numbers(count);
    if (node.height == 0)
      add_values(in, files, whole_keys(joined(in, shared, sizes), node.prefix),
                 where);
    else
      add_children(in, files, shared, sizes, node, open);
    in.end();
  }

  std::vector<std::string> whole_keys(std::vector<std::string> keys,
                                      const std::string& prefix) {
    for (std::string& key : keys) {
      key.insert(0, prefix);
      hold(key.size());
    }
    return keys;
  }

  void hold(uint64_t bytes) {
    held_ += bytes;
    if (held_ > kMostHeld)
      throw unsafe_error({directory_, {}},
                         "its nodes have more than {} of keys and values",
                         text::iec_size(kMostHeld));
  }

  void add_values(Fields& in, const std::vector<DataFile>& files,
                  std::vector<std::string> keys, const Where& where) {
    const auto sizes = in.numbers(keys.size());
    const auto kinds = in.numbers(keys.size());
    if (std::ranges::any_of(kinds, [](uint64_t kind) { return kind > 1; }))
      in.fail("a kind of value that ckpt does not know");
    const auto outside =
        static_cast<uint64_t>(std::ranges::count(kinds, uint64_t{1}));
    const auto file = in.numbers(outside);
    const auto offset = in.numbers(outside);
    size_t next = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      Value value;
      value.size = sizes[i];
      if (kinds[i] == 0) {
        value.inline_bytes = in.take(sizes[i]);
        hold(sizes[i]);
      } else {
        if (file[next] >= files.size()) in.fail("no such data file");
        value.offset = offset[next];
        value.path = place(files[file[next]], value.offset, value.size);
        ++next;
      }
      if (!found_.emplace(keys[i], std::move(value)).second)
        throw input_error(where, "the key {} is there twice",
                          printable(keys[i]));
      if (found_.size() > kMostKeys)
        throw unsafe_error({directory_, {}}, "more than {} keys", kMostKeys);
    }
  }

  void add_children(Fields& in, const std::vector<DataFile>& files,
                    const std::vector<uint64_t>& shared,
                    const std::vector<uint64_t>& sizes, const Node& node,
                    std::vector<Node>& open) {
    const uint64_t count = sizes.size();
    const auto common = in.numbers(count);
    const std::vector<std::string> keys = joined(in, shared, sizes);
    const auto file = in.numbers(count);
    const auto offset = in.numbers(count);
    const auto size = in.numbers(count);
    for (int statistic = 0; statistic < 3; ++statistic) in.numbers(count);
    for (size_t i = count; i-- > 0;) {
      if (file[i] >= files.size()) in.fail("no such data file");
      if (common[i] > keys[i].size()) in.fail("a prefix too long");
      open.push_back({files[file[i]], offset[i], size[i],
                      static_cast<uint8_t>(node.height - 1),
                      node.prefix + keys[i].substr(0, common[i])});
    }
  }

  const std::string& directory_;
  Database found_;
  std::map<std::string, uint64_t, std::less<>> sizes_;
  uint64_t nodes_ = 0;
  uint64_t held_ = 0;
};

}  // namespace

// A byte at a time: nodes are small.
uint32_t crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < made.size(); ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit)
        value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78U : 0);
      made[i] = value;
    }
    return made;
  }();
  uint32_t crc = 0xffffffffU;
  for (const char c : bytes)
    crc = table[(crc ^ static_cast<uint8_t>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

bool is_database(const std::string& directory) {
  return io::is_file(io::join(directory, kManifest));
}

Database read_database(const std::string& directory) {
  return Reading(directory).read();
}

std::string read_value(const std::string& key, const Value& value,
                       uint64_t most) {
  if (value.path.empty()) return value.inline_bytes;
  if (value.size > most)
    throw input_error({value.path, {}}, "{} has {} bytes, at most {}",
                      printable(key), value.size, most);
  return io::Handle::open_read(value.path)
      .read_string(value.offset, value.size);
}

}  // namespace ckpt::ocdbt
