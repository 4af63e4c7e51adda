// SPDX-License-Identifier: Apache-2.0
// Zip and tar archives, whole and broken.
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "ckpt/error.h"
#include "containers/torch/item_ends.h"
#include "formats/scan/scanner.h"
#include "lib/codec/stream.h"
#include "lib/io/ahead.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/zip/archive.h"
#include "lib/zip/headers.h"

namespace ckpt::scan {
namespace {

// Limit for a broken archive, which is searched byte by byte.
constexpr uint64_t kMostBroken = uint64_t{1} << 30;
constexpr uint64_t kBlock = uint64_t{4} << 20;

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// torch's storages: …/data/17, .data/17.storage
bool is_storage(std::string_view name) {
  const size_t slash = name.rfind('/');
  if (slash == name.npos) return false;
  std::string_view last = name.substr(slash + 1);
  const std::string_view folder = name.substr(0, slash);
  if (last.ends_with(".storage")) last.remove_suffix(8);
  return is_number(last) &&
         (folder.ends_with("/data") || folder.ends_with(".data"));
}

Part inner_part(const Part& part, const std::string& name) {
  Part inner = part;
  ++inner.depth;
  inner.inside += (inner.inside.empty() ? "" : "/") + name;
  inner.pickle = name.ends_with(".pkl") || name.ends_with(".pickle");
  inner.raw = inner.brief = is_storage(name);
  return inner;
}

// What is read of a record.
io::Range look_at(const zip::Entry& entry) {
  constexpr uint64_t kMostWhole = uint64_t{1} << 20;
  const uint64_t most = is_storage(entry.name) ? kHead : kMostWhole;
  return {entry.data_offset,
          entry.data_offset + std::min(entry.packed_size, most)};
}

// Inflates as much as possible of a record that may be broken.
std::string inflated(std::string_view packed) {
  z_stream stream = {};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return {};
  std::string plain;
  std::string block(size_t{64} << 10, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<unsigned>(packed.size());
  int status = Z_OK;
  while (status == Z_OK && plain.size() < kBlock) {
    stream.next_out = reinterpret_cast<Bytef*>(block.data());
    stream.avail_out = static_cast<unsigned>(block.size());
    status = inflate(&stream, Z_NO_FLUSH);
    plain.append(block, 0, block.size() - stream.avail_out);
  }
  inflateEnd(&stream);
  return plain;
}

// Where the archive that ends at `end` begins: its records say how long it is.
std::optional<uint64_t> last_archive(const io::Handle& file, uint64_t end) {
  if (end < zip::kEndSize) return std::nullopt;
  const uint64_t at = end - zip::kEndSize;
  const std::string last = file.read_string(at, zip::kEndSize);
  if (zip::load<uint32_t>(last, 0) != zip::kEndSignature) return std::nullopt;
  const uint64_t tail = zip::kLocatorSize + zip::kEnd64Size;
  if (at >= tail) {
    const std::string wide = file.read_string(at - tail, tail);
    if (zip::load<uint32_t>(wide, 0) == zip::kEnd64Signature &&
        zip::load<uint32_t>(wide, zip::kEnd64Size) == zip::kLocatorSignature) {
      const auto offset = zip::load<uint64_t>(wide, zip::kEnd64Size + 8);
      if (offset > at - tail) return std::nullopt;
      return at - tail - offset;
    }
  }
  const uint64_t size =
      uint64_t{zip::load<uint32_t>(last, 12)} + zip::load<uint32_t>(last, 16);
  if (size > at) return std::nullopt;
  return at - size;
}

}  // namespace

void Scanner::zip(const io::Handle& file, const Part& part) {
  known_ = true;
  try {
    archive(file, part);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
    if (in_a_row(file, part)) return;
    broken_zip(file, part);
    std::string what = error.problem();
    if (!error.where().tensor.empty())
      what = error.where().tensor + ": " + what;
    problem(part, what);
  }
}

void Scanner::archive(const io::Handle& file, const Part& part) {
  // Several files are scanned at once, and share the memory of such looks.
  constexpr uint64_t kWindow = uint64_t{3} << 20;
  const zip::Archive archive = zip::Archive::read(file);
  code(file, archive, part);
  const bool keras =
      std::ranges::any_of(archive.entries(), [](const zip::Entry& entry) {
        return entry.name == "model.weights.h5" ||
               entry.name == "metadata.json";
      });
  std::vector<const zip::Entry*> entries;  // that are read
  std::vector<io::Range> places;
  for (const zip::Entry& entry : archive.entries()) {
    if (entry.method == zip::kStored &&
        is_left(file, entry.name, entry.data_offset, entry.size))
      continue;
    entries.push_back(&entry);
    if (io::remote_of(file)) places.push_back(look_at(entry));
  }
  io::LooksAhead looks(file, std::move(places), kWindow);
  for (size_t i = 0; i < entries.size(); ++i) {
    const zip::Entry& entry = *entries[i];
    looks.reach(i);
    Part inner = inner_part(part, text::printable(entry.name));
    inner.keras = part.keras || keras;
    if (entry.method == zip::kStored) {
      this->part(file.slice(entry.data_offset, entry.size), inner);
      // torch loads it whatever its checksum, others refuse it.
      if (inner.pickle && entry.size <= most_unpacked())
        zip::read_entry(file, entry, most_unpacked());
    } else if (!inner.raw) {  // packed storages are never unpickled
      unpacked(zip::read_entry(file, entry, most_unpacked()), file.path(),
               inner);
    }
  }
}

// Archives whose loader runs what they hold: torch.package imports the modules
// that lie beside its pickles, before those that are installed; AOTInductor's
// packages (.pt2) are shared libraries. TorchScript's code/ is no Python: its
// interpreter calls operators of torch alone.
void Scanner::code(const io::Handle& file, const zip::Archive& archive,
                   const Part& part) {
  constexpr std::string_view kPackage = ".data/extern_modules";
  constexpr std::string_view kLibrary =
      "\x7F"
      "ELF";
  const auto named = [](std::string_view end) {
    return [end](const zip::Entry& entry) { return entry.name.ends_with(end); };
  };
  const auto& entries = archive.entries();
  const auto package = std::ranges::find_if(entries, named(kPackage));
  const bool native = std::ranges::any_of(entries, [](const zip::Entry& one) {
    return one.name.find("/aotinductor/") != one.name.npos;
  });
  for (const zip::Entry& entry : entries) {
    const Part record = inner_part(part, text::printable(entry.name));
    if (package != entries.end() && entry.name.ends_with(".py"))
      runs({"torch.package.PackageImporter", entry.name, {}}, record);
    const bool library =
        entry.name.ends_with(".so") && entry.size >= kLibrary.size() &&
        (entry.method != zip::kStored ||
         file.read_string(entry.data_offset, kLibrary.size()) == kLibrary);
    // What is not built yet is compiled first.
    const bool source =
        native && (entry.name.ends_with(".cpp") || entry.name.ends_with(".o"));
    if (library || source)
      runs({"torch._inductor.aoti_load_package", entry.name, {}}, record);
  }
}

bool Scanner::is_left(const io::Handle& file, std::string_view name,
                      uint64_t offset, uint64_t size) const {
  return heads_ && io::remote_of(file) && size > 0 && is_storage(name) &&
         heads_->leave(file.path(), file.base() - base_ + offset, size);
}

void Scanner::item(const io::Handle& file) {
  const std::string head = file.read_string(0, torch::kItemEnd);
  const std::string tail =
      file.read_string(file.size() - torch::kItemEnd, torch::kItemEnd);
  const Part whole{.pickle = true};
  const auto records = torch::read_item_records(head, tail, file.size());
  if (!records) return part(file, whole);
  known_ = true;
  for (const torch::ItemRecord& record : *records) {
    const Part inner = inner_part(whole, text::printable(record.name));
    if (!inner.raw)
      part(io::Handle::of_memory(std::string(record.content), file.path()),
           inner);
    else if (!is_left(file, record.name, record.offset, record.size))
      part(file.slice(record.offset, record.size), inner);
  }
}

bool Scanner::in_a_row(const io::Handle& file, const Part& part) {
  std::vector<io::Handle> archives;
  for (uint64_t end = file.size(); end > 0;) {
    const auto begin = last_archive(file, end);
    if (!begin || *begin >= end) return false;
    archives.push_back(file.slice(*begin, end - *begin));
    end = *begin;
  }
  try {
    for (const io::Handle& one : archives) archive(one, part);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
    return false;
  }
  return archives.size() > 1;
}

void Scanner::fragment(const io::Handle& bytes, bool begins) {
  broken_zip(bytes, {});
  // P is an opcode, too.
  const bool is_zip = bytes.size() >= 4 && bytes.read_string(0, 4) == "PK\3\4";
  Part front;
  front.raw = true;
  if (begins && !is_zip) pickles(bytes, front);
}

void Scanner::broken_zip(const io::Handle& file, const Part& part) {
  const uint64_t size = std::min(file.size(), kMostBroken);
  for (uint64_t at = 0; at < size;) {
    const uint64_t count = std::min(kBlock + 3, file.size() - at);
    const std::string block = file.read_string(at, count);
    for (size_t found = block.find("PK\3\4"); found != block.npos;
         found = block.find("PK\3\4", found + 1)) {
      const uint64_t header = at + found;
      if (file.size() - header < zip::kLocalSize) break;
      const std::string fixed = file.read_string(header, zip::kLocalSize);
      const uint64_t name_size = zip::load<uint16_t>(fixed, 26);
      const uint64_t data =
          header + zip::kLocalSize + name_size + zip::load<uint16_t>(fixed, 28);
      if (data > file.size()) continue;
      const std::string name =
          file.read_string(header + zip::kLocalSize, name_size);
      const Part inner = inner_part(part, text::printable(name));
      if (inner.raw) continue;
      // The size in the header may be anything; a pickle says where it ends.
      const io::Handle rest = file.slice(data, file.size() - data);
      Part head = inner;
      head.raw = true;
      pickles(rest, head);
      if (zip::load<uint16_t>(fixed, 8) == zip::kDeflated)
        pickles(io::Handle::of_memory(
                    inflated(rest.read_string(
                        0, std::min<uint64_t>(rest.size(), kBlock))),
                    file.path()),
                head);
    }
    at += kBlock;
  }
}

// Scans members by their headers: name, size in octal. The first header that
// makes no sense is the end.
void Scanner::tar(const io::Handle& file, const Part& part) {
  known_ = true;
  old_torch_ = old_torch_ || part.depth == 0;
  constexpr uint64_t kHeader = 512;
  for (uint64_t at = 0; at + kHeader <= file.size();) {
    const std::string header = file.read_string(at, kHeader);
    if (header[0] == '\0') return;
    uint64_t size = 0;
    for (const char c : header.substr(124, 12)) {
      if (c < '0' || c > '7') continue;
      size = size * 8 + static_cast<uint64_t>(c - '0');
    }
    at += kHeader;
    if (size > file.size() - at)
      return problem(part, fmt::format("a tar member of {} bytes at byte {}, "
                                       "{} are left",
                                       size, at, file.size() - at));
    const std::string name = header.substr(0, header.find('\0'));
    const bool is_file = header[156] == '0' || header[156] == '\0';
    Part inner = inner_part(part, text::printable(name.substr(0, 100)));
    if (is_file && size > 0) {
      const io::Handle member = file.slice(at, size);
      // torch's own: pickles and numbers in turn.
      if (name == "storages" || name == "tensors")
        interleaved(member, inner);
      else
        this->part(member, inner);
    }
    at += (size + kHeader - 1) / kHeader * kHeader;
  }
}

// Tries each place where a pickle may begin.
void Scanner::interleaved(const io::Handle& file, const Part& part) {
  Part head = part;
  head.raw = true;
  pickles(file, head);
  for (uint64_t at = 0; at < file.size(); at += kBlock) {
    const std::string block =
        file.read_string(at, std::min(kBlock + 1, file.size() - at));
    for (size_t found = block.find('\x80');
         found != block.npos && found + 1 < block.size();
         found = block.find('\x80', found + 1)) {
      if (static_cast<uint8_t>(block[found + 1]) > 5) continue;
      pickles(file.slice(at + found, file.size() - at - found), head);
    }
  }
}

}  // namespace ckpt::scan
