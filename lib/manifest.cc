// SPDX-License-Identifier: Apache-2.0
#include "lib/manifest.h"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <span>

#include "ckpt/error.h"
#include "lib/crc32.h"
#include "lib/io/file.h"
#include "lib/sha256.h"
#include "lib/text/json.h"

namespace ckpt {
namespace {

using nlohmann::json;

// A JSON string. Text that is not UTF-8 can't be written as it is.
std::string quoted(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

constexpr uint64_t kMaxManifest = uint64_t{4} << 30;

DType read_dtype(const json& entry, const std::string& path) {
  const std::string text = text::string_member(entry, "dtype", path);
  if (const auto dtype = dtype_from_name(text)) return *dtype;
  throw input_error({path, {}}, "unknown dtype {}", text);
}

Digest read_digest(const json& entry, const std::string& path) {
  const std::string text = text::string_member(entry, "digest", path);
  if (const auto digest = Digest::parse(text)) return *digest;
  throw input_error({path, {}}, "'{}' is not a digest of 32 hex digits", text);
}

Shape read_shape(const json& entry, const std::string& path) {
  Shape shape;
  for (const json& n : text::member(entry, "shape", path)) {
    if (!n.is_number_unsigned())
      throw input_error({path, {}}, "a shape holds {}", n.dump());
    shape.push_back(n.get<uint64_t>());
  }
  return shape;
}

// The text after everything that "self" is the digest of.
constexpr std::string_view kBeforeSelf = ",\n \"self\": \"";
constexpr std::string_view kAfterSelf = "\"\n}\n";
constexpr size_t kHexDigits = 64;

std::string sha256_of(std::string_view text) {
  Sha256 sum;
  sum.update(std::as_bytes(std::span(text)));
  return sum.hex();
}

// Old manifests end without a digest of themselves.
bool has_self(std::string_view text) {
  const size_t length = kBeforeSelf.size() + kHexDigits + kAfterSelf.size();
  return text.size() > length && text.ends_with(kAfterSelf) &&
         text.substr(text.size() - length).starts_with(kBeforeSelf);
}

[[noreturn]] void changed(const std::string& path) {
  throw input_error({path, {}}, "the manifest changed since it was written")
      .with_hint(
          "without it `ckpt verify` can check no values: fetch or copy it "
          "again, or remove it");
}

void check_self(const std::string& text, const std::string& path) {
  if (!has_self(text)) return;
  const std::string_view all = text;
  const size_t at = all.size() - kAfterSelf.size() - kHexDigits;
  if (sha256_of(all.substr(0, at - kBeforeSelf.size())) !=
      all.substr(at, kHexDigits))
    changed(path);
}

// An unknown key means a flipped bit.
void check_keys(const json& root, const std::string& text,
                const std::string& path) {
  constexpr auto kKnown = std::to_array<std::string_view>(
      {"ckpt_manifest", "format", "source", "files", "tensors", "contents",
       "identity", "self"});
  for (const auto& [key, value] : root.items())
    if (std::ranges::find(kKnown, key) == kKnown.end()) changed(path);
  if (root.contains("contents") && !has_self(text)) changed(path);
}

Manifest::Content read_content(const json& entry, const std::string& path) {
  Manifest::Content content;
  content.sha256 = text::string_member(entry, "sha256", path);
  if (!entry.contains("ranges")) return content;
  for (const json& n : entry["ranges"]) {
    if (!n.is_number_unsigned())
      throw input_error({path, {}}, "a range holds {}", n.dump());
    content.ranges.push_back(n.get<uint64_t>());
  }
  if (content.ranges.size() % 2 || !std::ranges::is_sorted(content.ranges))
    throw input_error({path, {}}, "ranges are pairs in order");
  return content;
}

std::string hex_of(std::string_view bytes) {
  std::string text;
  for (const char c : bytes)
    text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

// True if more than a quarter of the bytes differ. Rot changes a bit, a sector
// at most, and leaves the time as it was.
bool is_unlike(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return true;
  size_t unlike = 0;
  for (size_t i = 0; i + 1 < a.size(); i += 2)
    unlike += a.substr(i, 2) != b.substr(i, 2);
  return unlike * 8 > a.size();
}

// Blocks of one sector, not overlapping, spread over the file.
constexpr uint64_t kSample = 512;
constexpr size_t kMostSamples = 64;
constexpr size_t kCrcDigits = 8;
// The sample of a block of nothing but zeros.
constexpr std::string_view kNoValues = "zeros   ";

std::string samples_of(const io::Handle& file) {
  const uint64_t count =
      std::min<uint64_t>(kMostSamples, file.size() / kSample);
  std::string text;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t last = file.size() - kSample;
    const uint64_t at = count == 1 ? 0
                                   : last / (count - 1) * i +
                                         last % (count - 1) * i / (count - 1);
    const std::string bytes = file.read_string(at, kSample);
    if (bytes.find_first_not_of('\0') == bytes.npos)
      text += kNoValues;
    else
      text += fmt::format("{:08x}", crc32(0, std::as_bytes(std::span(bytes))));
  }
  return text;
}

// A flipped bit is in one block, and a hole is zeros.
bool is_rewritten(std::string_view now, std::string_view written) {
  constexpr size_t kFew = 3;
  if (now.size() != written.size()) return false;
  const size_t count = now.size() / kCrcDigits;
  size_t unlike = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto block = now.substr(i * kCrcDigits, kCrcDigits);
    unlike += block != kNoValues &&
              block != written.substr(i * kCrcDigits, kCrcDigits);
  }
  return unlike >= std::max(kFew, count / 8);
}

}  // namespace

std::string sha256_of(const io::Handle& file,
                      const std::vector<uint64_t>& ranges) {
  constexpr uint64_t kBlock = 1 << 20;
  std::vector<std::byte> block(std::min(kBlock, file.size()));
  Sha256 sum;
  const auto add = [&](uint64_t begin, uint64_t end) {
    while (begin < end) {
      const auto part =
          std::span(block).first(std::min<uint64_t>(end - begin, block.size()));
      file.read(begin, part);
      sum.update(part);
      begin += part.size();
    }
  };
  if (ranges.empty()) add(0, file.size());
  for (size_t i = 0; i + 1 < ranges.size(); i += 2) {
    if (ranges[i + 1] > file.size())
      throw input_error({file.path(), {}}, "ends at byte {}, it was longer",
                        file.size());
    add(ranges[i], ranges[i + 1]);
  }
  return sum.hex();
}

Manifest::Identity identity_of(const io::Handle& file) {
  constexpr uint64_t kEnd = 256;
  struct stat facts {};
  ::fstat(file.fd(), &facts);
  const uint64_t part = std::min(file.size(), kEnd);
  return {.mtime = int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 +
                   facts.st_mtim.tv_nsec,
          .head = hex_of(file.read_string(0, part)),
          .tail = hex_of(file.read_string(file.size() - part, part)),
          .samples = samples_of(file)};
}

bool is_stale(const Manifest& manifest, const io::Handle& file) {
  if (!manifest.identity) return false;
  const Manifest::Identity now = identity_of(file);
  return now.mtime != manifest.identity->mtime &&
         (is_unlike(now.head, manifest.identity->head) ||
          is_unlike(now.tail, manifest.identity->tail) ||
          is_rewritten(now.samples, manifest.identity->samples));
}

std::string manifest_path(const std::string& checkpoint) {
  if (io::is_directory(checkpoint)) return io::join(checkpoint, kManifestName);
  return checkpoint + std::string(kManifestName);
}

bool is_part(const Shape& shape, const Manifest::Entry& entry) {
  return !shape.empty() && shape.size() == entry.shape.size() &&
         shape[0] < entry.shape[0] &&
         std::equal(shape.begin() + 1, shape.end(), entry.shape.begin() + 1);
}

// Written front to back: a tree of 100,000 tensors would cost more than the
// tensors.
std::string to_json(const Manifest& manifest) {
  std::string text = fmt::format(
      "{{\n \"ckpt_manifest\": 1,\n \"format\": {},\n"
      " \"source\": {{\"path\": {}, \"format\": {}}},\n \"files\": {{",
      quoted(manifest.format), quoted(manifest.source_path),
      quoted(manifest.source_format));
  const char* separator = "\n";
  for (const auto& [path, size] : manifest.files) {
    text += fmt::format("{}  {}: {}", separator, quoted(path), size);
    separator = ",\n";
  }
  text += "\n },\n \"tensors\": {";
  separator = "\n";
  for (const auto& [name, tensor] : manifest.tensors) {
    text += fmt::format(
        "{}  {}: {{\"dtype\": \"{}\", \"shape\": {}, \"digest\": \"{}\"",
        separator, quoted(name), ckpt::name(tensor.dtype),
        to_string(tensor.shape), tensor.digest.hex());
    if (tensor.source)
      text += fmt::format(
          ", \"source\": {{\"dtype\": \"{}\", \"digest\": \"{}\"}}",
          ckpt::name(tensor.source->first), tensor.source->second.hex());
    text += "}";
    separator = ",\n";
  }
  text += "\n },\n \"contents\": {";
  separator = "\n";
  for (const auto& [path, content] : manifest.contents) {
    text += fmt::format("{}  {}: {{\"sha256\": \"{}\"", separator, quoted(path),
                        content.sha256);
    if (!content.ranges.empty())
      text +=
          fmt::format(", \"ranges\": [{}]", fmt::join(content.ranges, ", "));
    text += "}";
    separator = ",\n";
  }
  text += "\n }";
  if (manifest.identity) {
    const Manifest::Identity& identity = *manifest.identity;
    text += fmt::format(
        ",\n \"identity\": {{\"mtime\": {}, \"head\": \"{}\", \"tail\": "
        "\"{}\"",
        identity.mtime, identity.head, identity.tail);
    if (!identity.samples.empty())
      text += fmt::format(", \"samples\": \"{}\"", identity.samples);
    text += "}";
  }
  const std::string self = sha256_of(text);
  text += kBeforeSelf;
  text += self;
  return text.append(kAfterSelf);
}

Manifest read_manifest(const std::string& path) {
  const std::string text = io::read_file(path, kMaxManifest);
  check_self(text, path);
  const json root = text::parse_json(text, path);
  if (text::uint_member(root, "ckpt_manifest", path) != 1)
    throw input_error({path, {}}, "a manifest of version {}, this is 1",
                      root["ckpt_manifest"].dump());
  check_keys(root, text, path);
  Manifest manifest;
  manifest.format = text::string_member(root, "format", path);
  const json& source = text::member(root, "source", path);
  manifest.source_path = text::string_member(source, "path", path);
  manifest.source_format = text::string_member(source, "format", path);
  const json& files = text::member(root, "files", path);
  for (const auto& [name, size] : files.items())
    manifest.files[name] = text::uint_member(files, name, path);
  for (const auto& [name, entry] :
       text::member(root, "tensors", path).items()) {
    Manifest::Entry& tensor = manifest.tensors[name];
    tensor.dtype = read_dtype(entry, path);
    tensor.shape = read_shape(entry, path);
    tensor.digest = read_digest(entry, path);
    if (entry.contains("source"))
      tensor.source = {read_dtype(entry["source"], path),
                       read_digest(entry["source"], path)};
  }
  if (root.contains("contents"))
    for (const auto& [name, entry] : root["contents"].items())
      manifest.contents[name] = read_content(entry, path);
  if (root.contains("identity")) {
    const json& identity = root["identity"];
    const json& mtime = text::member(identity, "mtime", path);
    if (!mtime.is_number_integer())
      throw input_error({path, {}}, "mtime is {}", mtime.dump());
    manifest.identity = {.mtime = mtime.get<int64_t>(),
                         .head = text::string_member(identity, "head", path),
                         .tail = text::string_member(identity, "tail", path),
                         .samples = {}};
    if (identity.contains("samples"))
      manifest.identity->samples =
          text::string_member(identity, "samples", path);
  }
  return manifest;
}

}  // namespace ckpt
