// SPDX-License-Identifier: Apache-2.0
// The zip container: records below one root directory.
//
//   <root>/data.pkl       the value
//   <root>/byteorder      "little" or "big"; absent: little
//   <root>/data/<key>     one storage each
//   <root>/version        "3\n"; some writers: .data/version
//
// torch.jit.save's archives have their code below <root>/code beside it, which
// is not read, and a second value:
//
//   <root>/constants.pkl     a tuple of the tensors that the code has
//   <root>/constants/<key>   their storages

#include "ckpt/note.h"
#include "containers/torch/storages.h"
#include "lib/pickle/decode.h"
#include "lib/text/format.h"
#include "lib/text/number.h"
#include "lib/zip/archive.h"

namespace ckpt::torch {
namespace {

constexpr uint64_t kMaxPickle = uint64_t{4} << 30;
// Pickles of tensors deflate to a tenth. A pickle that inflates to far more
// than that was made to eat memory.
constexpr uint64_t kFreePickle = uint64_t{16} << 20;
constexpr uint64_t kMaxRatio = 64;
constexpr uint64_t kMaxVersion = 10;

class Records {
 public:
  Records(const io::Handle& file, const zip::Archive& archive)
      : file_(file), archive_(archive) {
    if (archive.entries().empty())
      throw input_error({file.path(), {}}, "the zip archive has no records");
    const std::string& first = archive.entries().front().name;
    const size_t slash = first.find('/');
    if (slash == first.npos)
      throw input_error({file.path(), {}},
                        "record {} lies in no directory of the archive",
                        text::printable(first));
    root_ = first.substr(0, slash + 1);
  }

  const zip::Entry* find(std::string_view name) const {
    return archive_.find(root_ + std::string(name));
  }
  std::string read(const zip::Entry& entry, uint64_t limit) const {
    return zip::read_entry(file_, entry, limit);
  }
  const io::Handle& file() const { return file_; }
  const std::string& root() const { return root_; }

 private:
  const io::Handle& file_;
  const zip::Archive& archive_;
  std::string root_;
};

void refuse_foreign(const Records& records) {
  if (!records.find("data.pkl"))
    throw input_error({records.file().path(), {}},
                      "the zip archive has no record {}data.pkl, so torch.save "
                      "did not write it",
                      text::printable(records.root()));
}

std::string read_version(const Records& records) {
  const std::string& path = records.file().path();
  const zip::Entry* entry = records.find("version");
  if (!entry) entry = records.find(".data/version");
  if (!entry)
    throw input_error({path, {}}, "record {}version is missing",
                      text::printable(records.root()));
  std::string text = records.read(*entry, 64);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' '))
    text.pop_back();
  const auto version = text::number(text);
  if (!version)
    throw input_error({path, {}}, "record version is not a number: '{}'",
                      text::printable(text));
  if (*version < 1 || *version > kMaxVersion)
    throw input_error({path, {}}, "archive version {}, known are 1 to {}",
                      *version, kMaxVersion);
  return text;
}

bool read_big_endian(const Records& records) {
  const zip::Entry* entry = records.find("byteorder");
  if (!entry) return false;
  const std::string order = records.read(*entry, 64);
  if (order != "little" && order != "big")
    throw input_error({records.file().path(), {}},
                      "record byteorder says '{}', not little or big",
                      text::printable(order));
  return order == "big";
}

// `part`: "data" or "constants".
pickle::Decoded read_pickle(const Records& records, const std::string& part,
                            Catalog& catalog) {
  const std::string& path = records.file().path();
  const zip::Entry& entry = *records.find(part + ".pkl");
  uint64_t limit = kMaxPickle;
  if (entry.method != zip::kStored)
    limit =
        std::min(limit, std::max(kFreePickle, entry.packed_size * kMaxRatio));
  const std::string bytes = records.read(entry, limit);
  auto decoded = pickle::decode(std::as_bytes(std::span(bytes)), path);
  if (decoded.end != bytes.size())
    warn(catalog.problems, "trailing_bytes", path,
         fmt::format("{}.pkl: {} bytes after the end of the pickle", part,
                     bytes.size() - decoded.end));
  return decoded;
}

void place_storages(const Records& records, const std::string& part,
                    uint32_t file, Container& container, Catalog& catalog) {
  uint64_t unchecked = 0;
  for (Storage& storage : container.storages.all) {
    const std::string record = part + "/" + storage.key;
    const zip::Entry* entry = records.find(record);
    if (!entry)
      throw input_error({container.path, {}}, "record {}{} is missing",
                        text::printable(records.root()),
                        text::printable(record));
    if (entry->size < storage.declared)
      throw input_error(
          {container.path, {}}, "record {} holds {} bytes, its storage {}",
          text::printable(entry->name), entry->size, storage.declared);
    if (entry->size > storage.declared)
      warn(catalog.problems, "long_storage", container.path,
           fmt::format("record {} holds {} bytes, its storage {}; the rest is "
                       "ignored",
                       text::printable(entry->name), entry->size,
                       storage.declared));
    storage.size = entry->size;
    const zip::Place place = zip::place_entry(*entry, file, catalog);
    storage.file = place.file;
    storage.offset = place.offset;
    if (entry->crc32 == 0 && entry->size > 0) ++unchecked;
  }
  if (unchecked > 0)
    catalog.problems.push_back(remark("no_checksum", {container.path, {}},
                                      "{} storages have no checksum",
                                      unchecked));
}

void warn_odd_names(const zip::Archive& archive, const std::string& path,
                    Catalog& catalog) {
  for (const zip::Entry& entry : archive.entries()) {
    const std::string padded = "/" + entry.name + "/";
    if (padded.find("/../") == padded.npos) continue;
    warn(catalog.problems, "odd_record", path,
         fmt::format("record {} would lead out of the archive if it was "
                     "extracted; it is ignored",
                     text::printable(entry.name)));
  }
}

// The name in the first local header; "" without one.
std::string first_name(const io::Handle& file) {
  constexpr uint64_t kHeader = 30;
  if (file.size() < kHeader) return {};
  const std::string header = file.read_string(0, kHeader);
  const uint64_t size =
      static_cast<uint8_t>(header[26]) | static_cast<uint8_t>(header[27]) << 8;
  return size > file.size() - kHeader ? "" : file.read_string(kHeader, size);
}

bool has_torch_record(const zip::Archive& archive) {
  if (archive.entries().empty()) return false;
  const std::string& first = archive.entries().front().name;
  const std::string root = first.substr(0, first.find('/') + 1);
  for (const char* name :
       {"data.pkl", "constants.pkl", "data/0", ".format_version"})
    if (archive.find(root + name)) return true;
  return false;
}

}  // namespace

Sniff sniff_zip(const std::string& path) {
  constexpr std::string_view kMagic = "starts with PK\\3\\4";
  const io::Handle file = io::Handle::open_read(path);
  // torch writes data.pkl first: no need to read a large directory.
  if (first_name(file).ends_with("/data.pkl"))
    return {Sniffed::kTorchZip, std::string(kMagic) + " and data.pkl"};
  try {
    if (!has_torch_record(zip::Archive::read(file)))
      return {Sniffed::kNothing, "is a zip archive without data.pkl"};
  } catch (const Error& error) {
    return {Sniffed::kTorchZip,
            std::string(kMagic) + ", but: " + error.problem()};
  }
  return {Sniffed::kTorchZip, std::string(kMagic)};
}

Container open_zip(const std::string& path, Catalog& catalog) {
  return open_zip(io::Handle::open_read(path), catalog);
}

namespace {

// One of an archive's values, with its storages.
Container read_part(const Records& records, const std::string& part,
                    uint32_t file, Catalog& catalog) {
  Container container;
  container.kind = ContainerKind::kZip;
  container.path = records.file().path();
  container.version = read_version(records);
  container.directory = records.root().substr(0, records.root().size() - 1);
  container.storages.path = container.path;
  container.storages.big_endian = read_big_endian(records);
  auto decoded = read_pickle(records, part, catalog);
  container.document = std::move(decoded.document);
  container.globals = std::move(decoded.globals);
  collect_storages(
      *container.document, 5, [](pickle::Id) { return false; },
      container.storages, catalog.problems);
  place_storages(records, part, file, container, catalog);
  return container;
}

}  // namespace

Container open_zip(const io::Handle& file, Catalog& catalog,
                   zip::Headers headers) {
  const zip::Archive archive = zip::Archive::read(file, headers);
  const Records records(file, archive);
  refuse_foreign(records);
  warn_odd_names(archive, file.path(), catalog);
  const uint32_t index = add_file(catalog, file.path(), file.size());
  Container container = read_part(records, "data", index, catalog);
  if (!records.find("constants.pkl")) return container;
  container.constants = std::make_shared<Container>(
      read_part(records, "constants", index, catalog));
  // Classes of its own code, which no pickle imports: torch.jit.load compiles
  // them.
  std::erase_if(container.globals, [](const std::string& name) {
    return name.starts_with("__torch__");
  });
  return container;
}

}  // namespace ckpt::torch
