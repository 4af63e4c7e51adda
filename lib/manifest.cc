// SPDX-License-Identifier: Apache-2.0
#include "lib/manifest.h"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "ckpt/error.h"
#include "lib/hash/crc32.h"
#include "lib/hash/sha256.h"
#include "lib/io/ahead.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/number.h"
#include "lib/text/scan.h"

namespace ckpt {
namespace {

using nlohmann::json;

// A JSON string. Text that is not UTF-8 can't be written as it is.
std::string quoted(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

constexpr uint64_t kMaxManifest = uint64_t{4} << 30;

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
  std::vector<io::Range> places;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t last = file.size() - kSample;
    const uint64_t at = count == 1 ? 0
                                   : last / (count - 1) * i +
                                         last % (count - 1) * i / (count - 1);
    places.push_back({at, at + kSample});
  }
  // Over a wire each would be a round trip.
  if (io::remote_of(file)) io::ask_for(file, places, {.looks = true});
  std::string text;
  for (const io::Range& place : places) {
    const std::string bytes = file.read_string(place.begin, kSample);
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
  constexpr uint64_t kRead = 1 << 20;
  std::vector<std::byte> block(std::min(kRead, file.size()));
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
  // Over a wire each would be a round trip.
  constexpr size_t kAtOnce = 2 * 1024;
  const auto ask = [&](size_t first) {
    std::vector<io::Range> next;
    for (size_t i = first; i + 1 < std::min(first + kAtOnce, ranges.size());
         i += 2)
      next.push_back({ranges[i], std::min(ranges[i + 1], ranges[i] + kRead)});
    io::ask_for(file, next, {});
  };
  if (ranges.empty()) add(0, file.size());
  for (size_t i = 0; i + 1 < ranges.size(); i += 2) {
    if (i % kAtOnce == 0 && io::remote_of(file)) ask(i);
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
    text += fmt::format("{}  {}: {{\"dtype\": \"{}\", \"shape\": {}, ",
                        separator, quoted(name), ckpt::name(tensor.dtype),
                        to_string(tensor.shape));
    if (!tensor.unproven.empty())
      text += fmt::format("\"unproven\": {}", quoted(tensor.unproven));
    else
      text += fmt::format("\"digest\": \"{}\"", tensor.digest.hex());
    if (tensor.source && tensor.unproven.empty())
      text += fmt::format(
          ", \"source\": {{\"dtype\": \"{}\", \"digest\": \"{}\"}}",
          ckpt::name(tensor.source->first), tensor.source->second.hex());
    text += "}";
    separator = ",\n";
  }
  text += "\n },\n \"contents\": {";
  separator = "\n";
  for (const auto& [path, content] : manifest.contents) {
    text += fmt::format("{}  {}: {{", separator, quoted(path));
    if (!content.unproven.empty())
      text += fmt::format("\"unproven\": {}", quoted(content.unproven));
    else
      text += fmt::format("\"sha256\": \"{}\"", content.sha256);
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

namespace {

// Reads without a tree of values, which would take six times the text: a run
// reads its source's manifest when all else is done, beside its plan.
class ManifestReader {
 public:
  ManifestReader(std::string_view text, const std::string& path)
      : path_(path), has_self_(has_self(text)), scan_(text, path) {}

  Manifest read() {
    std::set<std::string> seen;
    each_key(seen, [&](const std::string& key) { read_member(key); });
    scan_.finish();
    need(seen, "", {"ckpt_manifest", "format", "source", "files", "tensors"});
    return std::move(manifest_);
  }

 private:
  // `take` reads the value of each key. A key given twice is an error.
  template <typename Take>
  void each_key(std::set<std::string>& seen, const Take& take) {
    scan_.enter_object();
    while (const auto found = scan_.next_key()) {
      const std::string key(*found);
      if (!seen.insert(key).second) twice(key);
      take(key);
    }
  }
  [[noreturn]] void twice(const std::string& key) const {
    scan_.fail(fmt::format("key \"{}\" given twice", text::printable(key)));
  }
  void need(const std::set<std::string>& seen, const std::string& name,
            std::initializer_list<const char*> keys) const {
    for (const char* key : keys)
      if (!seen.contains(key))
        throw input_error({path_, name}, "its entry has no \"{}\"", key);
  }

  void read_member(const std::string& key) {
    if (key == "ckpt_manifest") return check_version();
    if (key == "format") {
      manifest_.format = scan_.string();
    } else if (key == "source") {
      read_source();
    } else if (key == "files") {
      read_files();
    } else if (key == "tensors") {
      read_tensors();
    } else if (key == "contents" && has_self_) {
      read_contents();
    } else if (key == "identity") {
      read_identity();
    } else if (key == "self") {
      scan_.skip();
    } else {
      changed(path_);  // an unknown key means a flipped bit
    }
  }

  void check_version() {
    const std::string_view version = scan_.skip();
    if (version != "1")
      throw input_error({path_, {}}, "a manifest of version {}, this is 1",
                        shown(version));
  }

  void read_source() {
    std::set<std::string> seen;
    each_key(seen, [&](const std::string& key) {
      if (key == "path")
        manifest_.source_path = scan_.string();
      else if (key == "format")
        manifest_.source_format = scan_.string();
      else
        scan_.skip();
    });
    need(seen, "source", {"path", "format"});
  }

  void read_files() {
    scan_.enter_object();
    while (const auto found = scan_.next_key()) {
      const std::string name(*found);
      const uint64_t size = scan_.unsigned_integer();
      if (!manifest_.files.emplace(name, size).second) twice(name);
    }
  }

  void read_tensors() {
    scan_.enter_object();
    while (const auto found = scan_.next_key()) {
      const std::string name(*found);
      if (!manifest_.tensors.emplace(name, read_entry(name)).second)
        twice(name);
    }
  }

  Manifest::Entry read_entry(const std::string& name) {
    Manifest::Entry entry;
    std::set<std::string> seen;
    each_key(seen, [&](const std::string& key) {
      if (key == "dtype")
        entry.dtype = read_dtype();
      else if (key == "shape")
        for (const uint64_t size : read_numbers("a shape"))
          entry.shape.push_back(size);
      else if (key == "digest")
        entry.digest = read_digest();
      else if (key == "source")
        entry.source = read_sum(name);
      else if (key == "unproven")
        entry.unproven = scan_.string();
      else
        scan_.skip();
    });
    need(seen, name, {"dtype", "shape"});
    if (entry.unproven.empty()) need(seen, name, {"digest"});
    return entry;
  }

  std::pair<DType, Digest> read_sum(const std::string& name) {
    std::pair<DType, Digest> sum;
    std::set<std::string> seen;
    each_key(seen, [&](const std::string& key) {
      if (key == "dtype")
        sum.first = read_dtype();
      else if (key == "digest")
        sum.second = read_digest();
      else
        scan_.skip();
    });
    need(seen, name, {"dtype", "digest"});
    return sum;
  }

  void read_contents() {
    scan_.enter_object();
    while (const auto found = scan_.next_key()) {
      const std::string name(*found);
      Manifest::Content content;
      std::set<std::string> seen;
      each_key(seen, [&](const std::string& key) {
        if (key == "sha256")
          content.sha256 = scan_.string();
        else if (key == "ranges")
          content.ranges = read_numbers("a range");
        else if (key == "unproven")
          content.unproven = scan_.string();
        else
          scan_.skip();
      });
      if (content.unproven.empty()) need(seen, name, {"sha256"});
      if (content.ranges.size() % 2 || !std::ranges::is_sorted(content.ranges))
        throw input_error({path_, {}}, "ranges are pairs in order");
      if (!manifest_.contents.emplace(name, std::move(content)).second)
        twice(name);
    }
  }

  void read_identity() {
    Manifest::Identity identity;
    std::set<std::string> seen;
    each_key(seen, [&](const std::string& key) {
      if (key == "mtime")
        identity.mtime = read_mtime();
      else if (key == "head")
        identity.head = scan_.string();
      else if (key == "tail")
        identity.tail = scan_.string();
      else if (key == "samples")
        identity.samples = scan_.string();
      else
        scan_.skip();
    });
    need(seen, "identity", {"mtime", "head", "tail"});
    manifest_.identity = std::move(identity);
  }

  int64_t read_mtime() {
    const std::string_view spelled = scan_.skip();
    const char* const last = spelled.data() + spelled.size();
    int64_t mtime = 0;
    const auto [end, failure] = std::from_chars(spelled.data(), last, mtime);
    if (failure != std::errc{} || end != last)
      throw input_error({path_, {}}, "mtime is {}", shown(spelled));
    return mtime;
  }

  std::vector<uint64_t> read_numbers(const char* what) {
    std::vector<uint64_t> numbers;
    scan_.enter_array();
    while (scan_.next_item()) {
      const std::string_view spelled = scan_.skip();
      const auto number = text::number(spelled, text::Zeros::kRefused);
      if (!number)
        throw input_error({path_, {}}, "{} holds {}", what, shown(spelled));
      numbers.push_back(*number);
    }
    return numbers;
  }

  DType read_dtype() {
    const std::string word(scan_.string());
    if (const auto dtype = dtype_from_name(word)) return *dtype;
    throw input_error({path_, {}}, "unknown dtype {}", shown(word));
  }

  Digest read_digest() {
    const std::string word(scan_.string());
    if (const auto digest = Digest::parse(word)) return *digest;
    throw input_error({path_, {}}, "'{}' is not a digest of 32 hex digits",
                      shown(word));
  }

  static std::string shown(std::string_view word) {
    constexpr size_t kMost = 60;
    return text::printable(word.substr(0, kMost));
  }

  const std::string& path_;
  const bool has_self_;  // older ones had no contents either
  text::Scanner scan_;
  Manifest manifest_;
};

}  // namespace

Manifest read_manifest(const std::string& path) {
  const std::string text = io::read_file(path, kMaxManifest);
  check_self(text, path);
  return ManifestReader(text, path).read();
}

}  // namespace ckpt
