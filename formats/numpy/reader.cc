// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "containers/numpy/npy.h"
#include "formats/file_list.h"
#include "formats/numpy/numpy.h"
#include "formats/options.h"
#include "lib/codec/stream.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/zip/archive.h"

namespace ckpt::numpy {
namespace {

using formats::Support;
using text::printable;

constexpr std::string_view kZip = "PK\3\4";
constexpr size_t kMaxDepth = 16;
constexpr size_t kMostArrays = 1'000'000;
// Folders of other things are not walked to their end.
constexpr size_t kMostLookedAt = 10'000;

std::string without_ending(const std::string& name) {
  return name.ends_with(kArray) ? name.substr(0, name.size() - kArray.size())
                                : name;
}

// Files below a directory, in the order of their names, by `see`, which returns
// false for enough. Hidden ones are passed over, and so are links to folders
// and what is too deep, by `skip`.
template <class See, class Skip>
bool walk(const std::string& root, const std::string& folder, size_t depth,
          const See& see, const Skip& skip) {
  for (const std::string& name : io::list_directory(io::join(root, folder))) {
    if (name.starts_with('.')) continue;
    const std::string path = io::join(folder, name);
    const std::string full = io::join(root, path);
    if (io::is_directory(full)) {
      if (depth == kMaxDepth || io::is_link(full))
        skip(full);
      else if (!walk(root, path, depth + 1, see, skip))
        return false;
    } else if (!see(path)) {
      return false;
    }
  }
  return true;
}

class Assembly {
 public:
  explicit Assembly(const std::string& path) {
    catalog_.format = kFormat;
    catalog_.path = path;
  }

  void read_folder(const std::string& folder) {
    std::vector<std::string> names;
    const auto see = [&](const std::string& name) {
      if (!name.ends_with(kArray)) return true;
      if (names.size() == kMostArrays)
        throw unsafe_error({folder, {}}, "more than {} arrays", kMostArrays);
      names.push_back(name);
      return true;
    };
    walk(folder, "", 0, see, [&](const std::string& path) {
      catalog_.problems.push_back(
          warning("unread_file", {path, {}}, "{}: arrays in it are not read",
                  io::is_link(path) ? "is a link to a folder"
                                    : "is too deep a folder"));
    });
    if (names.empty())
      throw missing_error({folder, {}}, "there is no .npy file in it");
    for (const std::string& name : names)
      read_file(io::join(folder, name), without_ending(name));
  }

  void read_file(const std::string& path, std::string name) {
    const io::Handle file = io::Handle::open_read(path);
    const auto number = static_cast<uint32_t>(catalog_.files.size());
    const Array array = read_array(file.size(),
                                   [&](uint64_t at, uint64_t count) {
                                     return file.read_string(at, count);
                                   },
                                   {path, {}});
    catalog_.files.push_back({.path = path, .size = file.size()});
    if (array.end < file.size()) say_longer(file, array.end, {path, {}});
    add(std::move(name), array, {number, 0});
  }

  void read_archive(const std::string& path) {
    const auto file =
        std::make_shared<const io::Handle>(io::Handle::open_read(path));
    const zip::Archive archive = zip::Archive::read(*file);
    catalog_.files.push_back({.path = path, .size = file->size()});
    std::unordered_set<std::string> names;
    uint64_t unchecked = 0;
    for (const zip::Entry& entry : archive.entries()) {
      if (entry.name.ends_with('/')) continue;
      std::string name = without_ending(entry.name);
      if (!read_member(file, entry, name)) continue;
      if (!names.insert(name).second)
        throw input_error({path, printable(name)},
                          "two arrays of this name, {} and {}.npy",
                          printable(name), printable(name));
      if (entry.crc32 == 0) ++unchecked;
    }
    if (unchecked > 0)
      catalog_.problems.push_back(remark("no_checksum", {path, {}},
                                         "{} have no checksum",
                                         text::counted(unchecked, "array")));
  }

  Catalog take(const std::string& folder) {
    if (!folder.empty()) formats::add_sidecars(folder, catalog_);
    formats::detect_dialect(folder.empty() ? io::parent(catalog_.path) : folder,
                            catalog_);
    return std::move(catalog_);
  }

 private:
  // False for a member that is no array: numpy.load gives its bytes.
  bool read_member(const std::shared_ptr<const io::Handle>& file,
                   const zip::Entry& entry, const std::string& name) {
    const Where where{file->path(), printable(name)};
    std::optional<codec::Stream> stream;
    if (entry.method != zip::kStored)
      stream.emplace(file,
                     File{.path = file->path(),
                          .size = entry.size,
                          .codec = Codec::kDeflate,
                          .packed_offset = entry.data_offset,
                          .packed_size = entry.packed_size},
                     entry.name);
    const auto read = [&](uint64_t at, uint64_t count) {
      if (!stream) return file->read_string(entry.data_offset + at, count);
      std::string bytes(count, '\0');
      stream->read(at, std::as_writable_bytes(std::span(bytes)));
      return bytes;
    };
    const bool named = entry.name.ends_with(kArray);
    if (!named &&
        (entry.size < kMagic.size() || read(0, kMagic.size()) != kMagic)) {
      catalog_.problems.push_back(
          warning("unread_record", where,
                  "is not an array: its {} bytes are not read", entry.size));
      return false;
    }
    const Array array = read_array(entry.size, read, where);
    if (array.end < entry.size)
      catalog_.problems.push_back(warning("trailing_bytes", where,
                                          "{} bytes behind the array are not "
                                          "read",
                                          entry.size - array.end));
    add(name, array, zip::place_entry(entry, 0, catalog_));
    return true;
  }

  // numpy.save may be called several times for one file.
  void say_longer(const io::Handle& file, uint64_t end, const Where& where) {
    const uint64_t rest = file.size() - end;
    const bool another =
        rest >= kMagic.size() && file.read_string(end, kMagic.size()) == kMagic;
    catalog_.problems.push_back(warning(
        "trailing_bytes", where, "{} bytes behind the array are not read{}",
        rest, another ? ": another array begins there" : ""));
  }

  void add(std::string name, const Array& array, const zip::Place& at) {
    Tensor& tensor = catalog_.tensors.emplace_back();
    tensor.name = std::move(name);
    tensor.dtype = array.dtype;
    tensor.shape = array.shape;
    Piece piece{.box = Box::whole(array.shape),
                .flat = {},
                .extent = {.offset = at.offset + array.begin,
                           .strides = array.strides,
                           .file = at.file}};
    if (array.big_endian) piece.transform = kSwapBytes;
    tensor.pieces.push_back(std::move(piece));
  }

  Catalog catalog_;
};

// A folder of arrays, with what may lie beside them, and no other weights.
Support supports_directory(const std::string& path) {
  Support found{false, "no .npy file in it"};
  size_t seen = 0;
  const auto see = [&](const std::string& name) {
    const std::string_view part = formats::part_by_name(name);
    const std::string_view format = formats::format_of_name(name);
    if (name.ends_with(kArray)) {
      if (!found.yes) found = {true, "holds " + printable(name)};
    } else if ((!format.empty() && format != kFormat) || part == "model" ||
               formats::is_state(part)) {
      found = {false, "holds " + printable(name) + ", which is not an array"};
      return false;
    }
    return ++seen < kMostLookedAt;
  };
  walk(path, "", 0, see, [](const std::string&) {});
  return found;
}

// Member names come first in an archive.
bool begins_with_array(const io::Handle& file) {
  constexpr uint64_t kName = 30;  // in a local header; its length is at 26
  if (file.size() < kName || file.read_string(0, kZip.size()) != kZip)
    return false;
  const std::string head = file.read_string(26, 2);
  const uint64_t length =
      static_cast<uint8_t>(head[0]) | static_cast<uint8_t>(head[1]) << 8;
  return length <= file.size() - kName &&
         file.read_string(kName, length).ends_with(kArray);
}

Support supports(const std::string& path) {
  if (io::is_directory(path)) return supports_directory(path);
  const io::Handle file = io::Handle::open_read(path);
  if (file.size() >= kMagic.size() &&
      file.read_string(0, kMagic.size()) == kMagic)
    return {true, "starts with \\x93NUMPY"};
  if (begins_with_array(file)) return {true, "is a zip archive of .npy files"};
  const std::string name = io::base_name(path);
  if (name.ends_with(kArray) || name.ends_with(kArchive))
    return {true, "is named " + name.substr(name.size() - kArray.size()) +
                      ", though it does not start so"};
  return {false, "does not start with \\x93NUMPY"};
}

Catalog read_catalog(const std::string& path, const formats::ReadOptions&) {
  Assembly assembly(path);
  if (io::is_directory(path)) {
    assembly.read_folder(path);
    return assembly.take(path);
  }
  const io::Handle file = io::Handle::open_read(path);
  const bool zipped =
      file.size() >= kZip.size() && file.read_string(0, 2) == kZip.substr(0, 2);
  if (zipped || path.ends_with(kArchive))
    assembly.read_archive(path);
  else
    assembly.read_file(path, without_ending(io::base_name(path)));
  return assembly.take("");
}

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return formats::reader_of(kFormat, supports, read_catalog);
}

}  // namespace ckpt::numpy
