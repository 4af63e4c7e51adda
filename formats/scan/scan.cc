// SPDX-License-Identifier: Apache-2.0
#include "formats/scan/scan.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "ckpt/error.h"
#include "containers/torch/container.h"
#include "containers/torch/item_ends.h"
#include "formats/dcp/metadata.h"
#include "formats/scan/scanner.h"
#include "lib/failures.h"
#include "lib/io/ahead.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/parallel.h"
#include "lib/text/other_json.h"
#include "lib/text/utf8.h"
#include "lib/text/words.h"

namespace ckpt::scan {
namespace {

constexpr uint64_t kMostJson = uint64_t{1} << 20;

// The items that a DCP index says are in a file.
struct Item {
  uint64_t offset;
  uint64_t length;
};
using Items = std::unordered_map<std::string, std::vector<Item>>;

struct Found {
  std::string path;
  bool raw = false;     // below a zarr array
  std::string problem;  // it can't be read
  bool absent = false;  // a link that leads to no file, a FIFO
};

bool ends_like_pickle(std::string_view path) {
  constexpr std::string_view kEndings =
      ".bin .ckpt .joblib .pickle .pkl .pt .pth";
  return text::ends_with_any(path, kEndings);
}

// True for a container that has nothing to do with pickles, or for text.
// Nothing in text runs either, but a file named like a pickle was meant to be
// one.
bool is_harmless_content(const io::Handle& file) {
  const std::string head =
      file.read_string(0, std::min<uint64_t>(file.size(), 4096));
  for (const std::string_view magic : {"\x89HDF", "GGUF", "PAR1"})
    if (head.starts_with(magic)) return true;
  if (ends_like_pickle(file.path())) return false;
  // A code point may be cut in two at the end.
  std::string_view text = head;
  for (int i = 0; i < 4 && !text.empty(); ++i) {
    if (text::is_utf8(text)) return text.find('\0') == text.npos;
    text.remove_suffix(1);
  }
  return text.empty();
}

FileScan unreadable(const std::string& path, std::string problem) {
  FileScan scan;
  scan.path = path;
  scan.verdict = Verdict::kUnreadable;
  scan.problem = std::move(problem);
  return scan;
}

// A small item is looked at in some twenty places: one read, not twenty.
constexpr uint64_t kSmallItem = uint64_t{64} << 10;

bool is_inside(const io::Handle& file, const Item& item) {
  return item.offset <= file.size() && item.length <= file.size() - item.offset;
}

// What is read of items, two places for each. `fronts`: of their storages, too.
std::vector<io::Range> looks_at(const io::Handle& file,
                                const std::vector<Item>& items, bool fronts) {
  const uint64_t head = torch::kItemEnd + (fronts ? kHead : 0);
  std::vector<io::Range> places;
  for (const Item& item : items) {
    const uint64_t end = item.offset + item.length;
    if (!is_inside(file, item))
      places.insert(places.end(), 2, {0, 0});
    else if (item.length <= kSmallItem)
      places.insert(places.end(), {{item.offset, end}, {end, end}});
    else
      places.insert(places.end(), {{item.offset, item.offset + head},
                                   {end - torch::kItemEnd, end}});
  }
  return places;
}

void scan_items(Scanner& scanner, const io::Handle& file,
                std::vector<Item> items, bool fronts) {
  // Several files are scanned at once, and share the memory of such looks.
  constexpr uint64_t kWindow = uint64_t{3} << 20;
  std::ranges::stable_sort(items, {}, &Item::offset);
  io::LooksAhead looks(file,
                       io::remote_of(file) ? looks_at(file, items, fronts)
                                           : std::vector<io::Range>(),
                       kWindow);
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    const Part part{.pickle = true};
    looks.reach(2 * i + 1);
    if (!is_inside(file, item))
      scanner.problem(part, fmt::format("an item of {} bytes at byte {} "
                                        "leaves the file",
                                        item.length, item.offset));
    else if (item.length > kSmallItem)
      scanner.item(file.slice(item.offset, item.length));
    else
      scanner.part(io::Handle::of_memory(
                       file.read_string(item.offset, item.length), file.path()),
                   part);
  }
}

// Bytes that its reader does not account for may be another pickle.
void check_old_torch(const std::string& path, Scanner& scanner) {
  if (torch::sniff(path).what == torch::Sniffed::kNothing) return;
  try {
    Catalog catalog;
    torch::open_container(path, catalog);
    for (const Problem& problem : catalog.problems)
      if (problem.kind == "trailing_bytes")
        scanner.problem({}, problem.message);
  } catch (const Error& error) {
    scanner.problem({}, error.problem());
  }
}

FileScan scan_one(const Found& file, bool asked, const Items& items,
                  Heads* heads = nullptr) {
  if (!file.problem.empty()) {
    FileScan scan = unreadable(file.path, file.problem);
    scan.absent = file.absent;
    return scan;
  }
  try {
    const io::Handle handle = io::Handle::open_read(file.path);
    Scanner scanner(file.path);
    scanner.leave(heads, handle.base());
    bool unknown = false;
    const auto listed = items.find(file.path);
    if (listed != items.end()) {
      scan_items(scanner, handle, listed->second, !heads);
    } else {
      scanner.part(handle, {.raw = file.raw, .brief = file.raw});
      if (!scanner.known() && !file.raw && handle.size() > 0 &&
          (asked || ends_like_pickle(file.path)) &&
          !is_harmless_content(handle)) {
        unknown = true;
        scanner.problem({}, "no content that is known here");
      }
      if (scanner.old_torch()) check_old_torch(file.path, scanner);
    }
    FileScan scan = scanner.take();
    scan.unknown = unknown;
    return scan;
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) throw;
    if (asked && error.code() == ExitCode::kMissing) throw;
    return unreadable(file.path, error.problem());
  }
}

// True for numbers, not objects: zarr loaders unpickle the chunks of other
// arrays.
bool is_plain_array(const std::string& path) {
  try {
    const auto json = text::parse_or_discard(io::read_file(path, kMostJson));
    if (json.is_discarded()) return false;
    const std::string text = json.dump();
    return text.find("|O") == text.npos && text.find("pickle") == text.npos &&
           text.find("object") == text.npos;
  } catch (const std::exception&) {
    return false;
  }
}

class Walk {
 public:
  explicit Walk(std::vector<Found>& files) : files_(files) {}

  void directory(const std::string& path, bool raw, int depth) {
    struct stat facts;
    if (depth > 64) throw input_error({path, {}}, "more than 64 levels deep");
    if (!io::stat_any(path, facts))
      throw io_error(path, "cannot be examined", errno);
    // A server's directories have no inode numbers, and no links.
    if (!io::is_url(path) && !seen_.emplace(facts.st_dev, facts.st_ino).second)
      return;
    const std::vector<std::string> names = io::list_directory(path);
    for (const char* array : {".zarray", "zarr.json"})
      if (std::ranges::binary_search(names, array))
        raw = is_plain_array(io::join(path, array));
    for (const std::string& name : names)
      entry(io::join(path, name), raw, depth);
  }

 private:
  void entry(const std::string& path, bool raw, int depth) {
    struct stat facts;
    if (!io::stat_any(path, facts)) {
      const int errnum = errno;
      const bool absent =
          (errnum == ENOENT || errnum == ELOOP) && io::is_link(path);
      files_.push_back(
          {path, raw,
           absent ? "broken symlink"
                  : io_error(path, "cannot be examined", errnum).problem(),
           absent});
    } else if (S_ISDIR(facts.st_mode)) {
      try {
        directory(path, raw, depth + 1);
      } catch (const Error& error) {
        files_.push_back({path, raw, error.problem()});
      }
    } else if (S_ISREG(facts.st_mode)) {
      files_.push_back({path, raw, {}});
    } else {
      files_.push_back({path, raw, "is neither a file nor a directory", true});
    }
  }

  std::vector<Found>& files_;
  std::set<std::pair<uint64_t, uint64_t>> seen_;
};

// Adds what DCP's loader would open: ranges, whatever else is in the files. If
// the index can't be read, its own verdict says so.
void add_items(const std::string& path, Items& items) {
  try {
    dcp::Metadata metadata = dcp::read_metadata(path, {});
    const auto add = [&](const dcp::Stored& stored) {
      if (stored.file == dcp::kNoFile) return;
      items[io::join(metadata.directory, metadata.files[stored.file])]
          .push_back({stored.offset, stored.length});
    };
    for (const dcp::TensorEntry& tensor : metadata.tensors)
      for (const dcp::Chunk& chunk : tensor.chunks) add(chunk.stored);
    for (const dcp::BytesEntry& bytes : metadata.bytes) add(bytes.stored);
  } catch (const Error&) {
  }
}

std::vector<FileScan> scan_all(const std::vector<Found>& files,
                               const Items& items, Heads* heads) {
  std::vector<FileScan> scans(files.size());
  std::vector<std::string> paths;
  paths.reserve(files.size());
  for (const Found& file : files) paths.push_back(file.path);
  const bool there = std::ranges::any_of(
      paths, [](const auto& one) { return io::is_url(one); });
  io::FilesAhead ahead(std::move(paths));
  // Most of the time each waits for the server.
  constexpr size_t kAtOnce = 8;
  parallel_for(
      files.size(),
      [&](size_t i) {
        ahead.reach(i);
        scans[i] = scan_one(files[i], false, items, heads);
      },
      there ? kAtOnce : 1);
  return scans;
}

}  // namespace

std::vector<FileScan> scan_path(const std::string& path, Heads* heads) {
  if (!io::is_directory(path))
    return {scan_one({path, false, {}}, true, {}, heads)};
  std::vector<Found> files;
  Walk(files).directory(path, false, 0);
  Items items;
  for (const Found& file : files)
    if (io::base_name(file.path) == ".metadata") add_items(file.path, items);
  return scan_all(files, items, heads);
}

std::vector<FileScan> scan_files(const std::vector<std::string>& paths,
                                 Heads* heads) {
  std::vector<Found> files;
  files.reserve(paths.size());
  for (const std::string& path : paths) files.push_back({path, false, {}});
  return scan_all(files, {}, heads);
}

}  // namespace ckpt::scan
