// SPDX-License-Identifier: Apache-2.0
#include "containers/safetensors/header.h"

#include <algorithm>

#include "ckpt/error.h"
#include "containers/foreign.h"
#include "lib/in_order.h"
#include "lib/io/ahead.h"
#include "lib/io/huge_pages.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/name_table.h"
#include "lib/text/scan.h"

namespace ckpt::safetensors {
namespace {

using text::Scanner;

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 8; i-- > 0;) value = value << 8 | uint8_t(bytes[i]);
  return value;
}

void take_once(Scanner& scan, bool& seen, std::string_view field) {
  if (seen) scan.fail(fmt::format("field \"{}\" given twice", field));
  seen = true;
}

DType read_dtype(Scanner& scan) {
  const std::string_view name = scan.string();
  const auto dtype = dtype_from_safetensors(name);
  if (!dtype)
    scan.fail(fmt::format("unknown dtype \"{}\"",
                          text::printable(name.substr(0, 64))));
  return *dtype;
}

Shape read_shape(const std::string& path, Scanner& scan, const Entry& entry) {
  Shape shape;
  scan.enter_array();
  while (scan.next_item()) {
    if (shape.size() == kMaxRank)
      throw unsafe_error({path, entry.name},
                         "rank too large: shape has more than {} dimensions",
                         kMaxRank);
    shape.push_back(scan.unsigned_integer());
  }
  return shape;
}

void read_offsets(Scanner& scan, Entry& entry) {
  scan.enter_array();
  size_t count = 0;
  for (; scan.next_item(); ++count) {
    const uint64_t offset = scan.unsigned_integer();
    if (count == 0) entry.begin = offset;
    if (count == 1) entry.end = offset;
  }
  if (count != 2)
    scan.fail(fmt::format("data_offsets has {} elements, expected 2", count));
}

// Size and shape must agree; where the data are is checked later.
void check_size(const std::string& path, const Entry& entry) {
  const uint32_t bits = info(entry.dtype).bits;
  const std::string_view dtype = info(entry.dtype).safetensors;
  const auto refuse = [&](const std::string& why) {
    throw input_error({path, entry.name}, "{}", why);
  };
  if (entry.end < entry.begin)
    refuse(fmt::format("data_offsets [{}, {}] end before they begin",
                       entry.begin, entry.end));
  const auto count = element_count(entry.shape);
  const auto total = count ? checked_mul(*count, bits) : std::nullopt;
  if (!total)
    refuse(fmt::format("size of {} {} overflows 64 bits", dtype,
                       to_string(entry.shape)));
  if (*total % 8 != 0)
    refuse(fmt::format("{} {} has {} bits, no whole number of bytes", dtype,
                       to_string(entry.shape), *total));
  if (entry.end - entry.begin != *total / 8)
    refuse(fmt::format("data_offsets hold {} bytes, {} {} needs {}",
                       entry.end - entry.begin, dtype, to_string(entry.shape),
                       *total / 8));
}

// Reads text spelled as the reference writer does, without spaces or escapes.
class Compact {
 public:
  explicit Compact(std::string_view text) : text_(text) {}
  size_t used() const { return at_; }

  bool take(std::string_view expected) {
    if (!text_.substr(at_).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }
  // Up to 19 digits: 64 bits hold them.
  bool number(uint64_t& value) {
    const size_t begin = at_;
    value = 0;
    for (; at_ < text_.size() && at_ - begin < 20; ++at_) {
      const auto digit = static_cast<uint8_t>(text_[at_] - '0');
      if (digit > 9) break;
      value = 10 * value + digit;
    }
    const size_t digits = at_ - begin;
    return digits == 1 || (digits > 1 && digits < 20 && text_[begin] != '0');
  }
  bool dtype(DType& value) {
    const size_t length = text_.substr(at_, 16).find('"');
    if (length == text_.npos) return false;
    const auto dtype = dtype_from_safetensors(text_.substr(at_, length));
    if (dtype) value = *dtype;
    at_ += length + 1;
    return dtype.has_value();
  }
  bool shape(Shape& value) {
    if (take("]")) return true;
    for (uint64_t size; value.size() < 8 && number(size);) {
      value.push_back(size);
      if (!take(",")) return take("]");
    }
    return false;
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

// The bytes of an entry in the usual spelling; 0 if it has another, which is
// left to the scanner.
size_t read_compact(std::string_view text, Entry& entry) {
  Compact compact(text);
  const bool good =
      compact.take(R"({"dtype":")") && compact.dtype(entry.dtype) &&
      compact.take(R"(,"shape":[)") && compact.shape(entry.shape) &&
      compact.take(R"(,"data_offsets":[)") && compact.number(entry.begin) &&
      compact.take(",") && compact.number(entry.end) && compact.take("]}");
  return good ? compact.used() : 0;
}

Entry read_entry(const std::string& path, Scanner& scan,
                 std::string_view name) {
  Entry entry;
  entry.name = name;
  if (const size_t used = read_compact(scan.rest(), entry)) {
    scan.step_over(used);
    check_size(path, entry);
    return entry;
  }
  entry.shape.clear();
  scan.about(entry.name);
  bool has_dtype = false, has_shape = false, has_offsets = false;
  scan.enter_object();
  while (const auto field = scan.next_key()) {
    if (*field == "dtype") {
      take_once(scan, has_dtype, "dtype");
      entry.dtype = read_dtype(scan);
    } else if (*field == "shape") {
      take_once(scan, has_shape, "shape");
      entry.shape = read_shape(path, scan, entry);
    } else if (*field == "data_offsets") {
      take_once(scan, has_offsets, "data_offsets");
      read_offsets(scan, entry);
    } else {
      scan.skip();  // the reference ignores other fields
    }
  }
  if (!has_dtype) scan.fail("field \"dtype\" is missing");
  if (!has_shape) scan.fail("field \"shape\" is missing");
  if (!has_offsets) scan.fail("field \"data_offsets\" is missing");
  scan.about({});
  check_size(path, entry);
  return entry;
}

std::optional<Metadata> read_metadata(Scanner& scan) {
  scan.about(kMetadata);
  std::optional<Metadata> metadata;
  if (scan.peek() == Scanner::Kind::kNull) {
    scan.literal();
  } else {
    metadata.emplace();
    scan.enter_object();
    while (const auto key = scan.next_key()) {
      std::string owned(*key);
      metadata->emplace_back(std::move(owned), scan.string());
    }
  }
  scan.about({});
  return metadata;
}

template <class Items, class Name>
void check_unique(const std::string& path, const Items& items, Name name_of,
                  std::string_view what) {
  std::vector<uint64_t> hashes;
  hashes.reserve(items.size());
  for (const auto& item : items) hashes.push_back(text::hash_of(name_of(item)));
  if (!text::may_repeat(std::move(hashes))) return;
  text::NameTable names;
  names.reserve(items.size());
  for (uint32_t i = 0; const auto& item : items) names.add(name_of(item), i++);
  names.sort();
  if (const auto twice = names.duplicate())
    throw input_error({path, std::string(twice->name)}, "{} given twice", what);
}

// One tensor or the metadata; false at the end of the header.
bool read_member(const std::string& path, Scanner& scan, Header& header,
                 bool& has_metadata) {
  const auto key = scan.next_key();
  if (!key) return false;
  if (*key != kMetadata) {
    header.entries.push_back(read_entry(path, scan, *key));
  } else {
    if (has_metadata) scan.fail("\"__metadata__\" given twice");
    header.metadata = read_metadata(scan);
    has_metadata = true;
  }
  return true;
}

// Reads all members of a text that is only partly in memory.
Header read_members(text::Parts& parts, const std::string& path,
                    uint64_t length) {
  Header header;
  header.data_begin = 8 + length;
  Scanner scan(parts.text(), path, {.offset = 8, .more = !parts.last()});
  const auto whole = [&](auto step) {
    while (true) {
      const Scanner::Mark mark = scan.mark();
      try {
        return step();
      } catch (const Scanner::Cut&) {
        parts.advance(mark.at);
        scan.resume(mark, parts.text(), !parts.last());
      }
    }
  };
  // Entries are hardly ever shorter, so growing costs no copies. Room that is
  // not touched costs nothing.
  io::reserve_huge(header.entries, length / 64);
  bool has_metadata = false;
  whole([&] { scan.enter_object(); });
  while (whole([&] { return read_member(path, scan, header, has_metadata); })) {
  }
  whole([&] { scan.finish(); });
  return header;
}

// A gap is as wrong as an overlap: its bytes would be lost in a rewrite.
void check_cover(const std::string& path, const Header& header,
                 uint64_t file_size) {
  const uint64_t base = header.data_begin;
  const uint64_t room = file_size - base;
  uint64_t at = 0;
  for (const Entry& entry : header.entries) {
    if (entry.begin > room) break;  // past the end: the sum below is wrong
    if (entry.begin != at)
      throw input_error({path, entry.name},
                        "data begins at byte {}, expected {}",
                        base + entry.begin, base + at);
    at = entry.end;
  }
  const uint64_t described =
      header.entries.empty() ? 0 : header.entries.back().end;
  if (described == room) return;
  const Error error = input_error(
      {path, {}}, "the header describes {} bytes of data, the file holds {}",
      described, room);
  if (described < room) throw error;
  throw error.with_hint("the file is cut off: fetch or copy it again");
}

// Says what the file is instead, if it can be recognised.
[[noreturn]] void refuse(const io::Handle& file, std::string_view head,
                         const std::string& why) {
  const auto foreign = formats::recognise(head, {});
  if (!foreign) throw input_error({file.path(), {}}, "{}", why);
  throw input_error({file.path(), {}}, "no safetensors file: this is {}",
                    foreign->what)
      .with_hint(std::string(foreign->hint));
}

}  // namespace

Tensor tensor_of(Entry entry, uint32_t file) {
  Tensor tensor;
  tensor.name = std::move(entry.name);
  tensor.dtype = entry.dtype;
  tensor.shape = std::move(entry.shape);
  tensor.pieces.push_back(
      {.box = Box::whole(tensor.shape),
       .flat = {},
       .extent = {.offset = entry.begin, .strides = {}, .file = file}});
  return tensor;
}

bool is_checksum_key(std::string_view key) {
  return key == "sshs_model_hash" || key == "sshs_legacy_hash" ||
         key == "modelspec.hash_sha256";
}

bool looks_like_header(std::string_view head, uint64_t size) {
  if (head.size() < 9 || size < 10) return false;
  const uint64_t length = little_endian(head);
  if (length < 2 || length > kMaxHeader || length > size - 8) return false;
  const size_t first = head.find_first_not_of(" \t\r\n", 8);
  return first != head.npos && head[first] == '{';
}

Header parse_header(std::string_view json, uint64_t file_size,
                    const std::string& path) {
  return parse_header(text::Parts(json), json.size(), file_size, path);
}

Header parse_header(text::Parts parts, uint64_t length, uint64_t file_size,
                    const std::string& path) {
  Header header = read_members(parts, path, length);
  check_unique(
      path, header.entries,
      [](const Entry& e) { return std::string_view(e.name); }, "tensor");
  if (header.metadata)
    check_unique(
        path, *header.metadata,
        [](const auto& item) { return std::string_view(item.first); },
        "key in __metadata__");
  const auto by_place = [](const Entry& e) {
    return std::pair(e.begin, e.end);
  };
  if (!std::ranges::is_sorted(header.entries, {}, by_place))
    std::ranges::stable_sort(header.entries, {}, by_place);
  check_cover(path, header, file_size);
  for (Entry& entry : header.entries) {
    entry.begin += header.data_begin;
    entry.end += header.data_begin;
  }
  return header;
}

Header read_header(const io::Handle& file) {
  const uint64_t head_size =
      std::min<uint64_t>(file.size(), formats::kForeignHead);
  const std::string head = file.read_string(0, head_size);
  if (file.size() < 8)
    refuse(file, head,
           fmt::format("file of {} bytes, safetensors files have 8 at least",
                       file.size()));
  const uint64_t length = little_endian(head);
  if (length > kMaxHeader)
    refuse(file, head,
           fmt::format("header length {} is more than {} bytes", length,
                       kMaxHeader));
  if (length > file.size() - 8)
    refuse(
        file, head,
        fmt::format("header of {} bytes in a file of {}: the file is cut off",
                    length, file.size()));
  // Of a remote file, each part read by itself would cost a round trip.
  if (io::remote_of(file)) io::ask_for(file, 8, length);
  text::Parts parts(length, [&](uint64_t at, std::span<char> to) {
    file.read(8 + at, std::as_writable_bytes(to));
  });
  return parse_header(std::move(parts), length, file.size(), file.path());
}

void read_headers(const std::vector<std::string>& paths,
                  const std::function<void(size_t, FileHeader)>& take) {
  in_order<FileHeader>(
      paths.size(),
      [&](size_t i) {
        const io::Handle file = io::Handle::open_read(paths[i]);
        FileHeader one;
        one.header = read_header(file);
        one.file.path = paths[i];
        one.file.size = file.size();
        return one;
      },
      take);
}

}  // namespace ckpt::safetensors
