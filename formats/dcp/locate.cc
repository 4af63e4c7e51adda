// SPDX-License-Identifier: Apache-2.0
// Opens the archives of pieces: hundreds of thousands of small zips in big
// files, each read once, front to back, by all processors.
#include <fcntl.h>

#include <algorithm>
#include <map>

#include "ckpt/error.h"
#include "containers/torch/item.h"
#include "containers/torch/item_ends.h"
#include "formats/dcp/metadata.h"
#include "lib/codec/stream.h"
#include "lib/io/ahead.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/parallel.h"
#include "lib/text/format.h"

namespace ckpt::dcp {
namespace {

// Items of one file that a thread takes at a time: their headers are adjacent
// and need only one open file.
constexpr size_t kRun = 256;
// Files waited for at a time: a header is a few KiB, which a disk or a server
// takes longer to deliver than we take to parse it.
constexpr size_t kReaders = 32;
// What each of them asks a server for at a time.
constexpr uint64_t kWindow = uint64_t{1} << 20;
// Decompressed items up to this size are held in memory whole; for larger ones
// only the two ends are.
constexpr uint64_t kSmallStream = uint64_t{8} << 20;

struct Item {
  uint64_t offset = 0;
  uint32_t file = kNoFile;
  uint32_t tensor = 0;
  uint32_t piece = 0;
};

class Locator {
 public:
  explicit Locator(Catalog& catalog) : catalog_(catalog) {}

  void all() {
    for_each_item(
        [&](const Item& item, const Piece&) { items_.push_back(item); });
    run();
  }

  // Opens only the last item of each file if that saves opening many; opens all
  // if any item is odd.
  uint64_t sample(uint64_t least) {
    std::vector<Item> last(catalog_.files.size());
    uint64_t count = 0, odd = 0;
    for_each_item([&](const Item& item, const Piece& piece) {
      Item& known = last[item.file];
      if (known.file == kNoFile || item.offset >= known.offset) known = item;
      ++count;
      odd += fits(item, piece) ? 0 : 1;
    });
    if (count < least || odd > 0) return all(), 0;
    for (const Item& item : last)
      if (item.file != kNoFile) items_.push_back(item);
    count -= items_.size();
    run();
    if (!all_plain(last)) return all(), 0;
    for_each_item([&](const Item& item, const Piece&) {
      catalog_.tensors[item.tensor].pieces[item.piece].extent.archive = 0;
    });
    catalog_.assumptions.push_back(
        fmt::format("{} items are like the last one of their file, which was "
                    "opened; a run opens each",
                    count));
    return count;
  }

 private:
  struct Run {
    size_t begin = 0;
    size_t end = 0;
  };

  // Calls `function` for everything not located yet, tensor by tensor.
  template <class Function>
  void for_each_item(Function function) {
    for (uint32_t t = 0; t < catalog_.tensors.size(); ++t) {
      const auto& pieces = catalog_.tensors[t].pieces;
      for (uint32_t p = 0; p < pieces.size(); ++p) {
        const Extent& extent = pieces[p].extent;
        if (extent.archive > 0)
          function(Item{extent.offset, extent.file, t, p}, pieces[p]);
      }
    }
  }

  // True if the item may hold the piece's elements as they are.
  bool fits(const Item& item, const Piece& piece) const {
    if (piece.flat || catalog_.files.at(item.file).codec != Codec::kRaw)
      return false;
    const DType dtype = catalog_.tensors[item.tensor].dtype;
    const auto bytes = byte_size(dtype, piece.box.shape);
    return bytes && *bytes < piece.extent.archive;
  }

  bool all_plain(const std::vector<Item>& items) const {
    return std::ranges::all_of(items, [&](const Item& item) {
      if (item.file == kNoFile) return true;
      const Piece& piece = catalog_.tensors[item.tensor].pieces[item.piece];
      return piece.extent.strides.empty() && piece.transform == kNoTransform;
    });
  }

  void run() {
    split();
    crcs_.resize(runs_.size());
    for (size_t begin = 0; begin < runs_.size();) {
      const size_t end = ask_for_packed(begin);
      parallel_for(
          end - begin, [&](size_t run) { locate_run(begin + run); }, kReaders);
      begin = end;
    }
    size_t count = catalog_.crcs.size();
    for (const auto& crcs : crcs_) count += crcs.size();
    catalog_.crcs.reserve(count);
    for (auto& crcs : crcs_) {
      std::ranges::move(crcs, std::back_inserter(catalog_.crcs));
      std::vector<StoredCrc>().swap(crcs);
    }
    items_.clear();
    runs_.clear();
  }

  void split() {
    std::ranges::sort(items_, [](const Item& a, const Item& b) {
      return a.file != b.file ? a.file < b.file : a.offset < b.offset;
    });
    for (size_t i = 0; i < items_.size(); ++i) {
      const bool fresh = i == 0 || items_[i].file != items_[i - 1].file ||
                         i - runs_.back().begin == kRun;
      if (fresh) runs_.push_back({i, i});
      ++runs_.back().end;
    }
  }

  // Packed items, each a run of its own, are read whole. Those on a server are
  // asked for together, from run `begin` on, as far as memory for them goes;
  // what is still there when they are copied need not come again. Returns the
  // end of what can be located now.
  size_t ask_for_packed(size_t begin) const {
    const uint64_t most = io::remote_memory() / 2;
    std::map<std::string, std::vector<io::Range>> places;
    uint64_t bytes = 0;
    size_t end = begin;
    for (; end < runs_.size() && bytes < most; ++end) {
      const File& file = catalog_.files.at(items_[runs_[end].begin].file);
      if (file.codec == Codec::kRaw || !io::is_url(file.path)) continue;
      places[file.path].push_back(
          {file.packed_offset, file.packed_offset + file.packed_size});
      bytes += file.packed_size;
    }
    for (auto& [path, ranges] : places) {
      std::ranges::sort(ranges, {}, &io::Range::begin);
      io::ask_for(io::Handle::open_read(path), ranges, {});
    }
    return end;
  }

  // What the locator reads of each item.
  std::vector<io::Range> ends(const Run& run) const {
    std::vector<io::Range> places;
    for (size_t i = run.begin; i < run.end; ++i) {
      const Item& item = items_[i];
      const Extent& extent =
          catalog_.tensors[item.tensor].pieces[item.piece].extent;
      const uint64_t end = extent.offset + extent.archive;
      const uint64_t part = std::min(extent.archive, torch::kItemEnd);
      places.push_back({extent.offset, extent.offset + part});
      places.push_back({end - part, end});
    }
    return places;
  }

  void locate_run(size_t number) {
    const Run& run = runs_[number];
    const uint32_t file = items_[run.begin].file;
    const bool packed = catalog_.files.at(file).codec != Codec::kRaw;
    const io::Handle handle =
        io::Handle::open_read(catalog_.files.at(file).path);
    // Otherwise the kernel reads payload ahead, a hundred times what was asked
    // for.
    ::posix_fadvise(handle.fd(), 0, 0, POSIX_FADV_RANDOM);
    torch::TensorLocator locator(handle, file);
    io::LooksAhead looks(handle, packed ? std::vector<io::Range>() : ends(run),
                         kWindow);
    for (size_t i = run.begin; i < run.end; ++i) {
      looks.reach(2 * (i - run.begin) + 1);
      const Tensor& tensor = catalog_.tensors[items_[i].tensor];
      Piece& piece = catalog_.tensors[items_[i].tensor].pieces[items_[i].piece];
      if (piece.flat)
        throw bug_error({handle.path(), tensor.name},
                        "a part of an archive that is not located");
      const torch::LocatedTensor located =
          packed ? unpack(handle, file, tensor, piece, crcs_[number])
                 : locator.locate(piece.extent.offset, piece.extent.archive,
                                  tensor.dtype, piece.box.shape, tensor.name,
                                  &crcs_[number]);
      piece.extent = located.extent;
      piece.transform ^= located.transform;
    }
  }

  // An item behind a transform is alone in its File, so nothing else changes
  // the File's size.
  torch::LocatedTensor unpack(const io::Handle& handle, uint32_t number,
                              const Tensor& tensor, const Piece& piece,
                              std::vector<StoredCrc>& crcs) {
    File& file = catalog_.files[number];
    try {
      const io::Handle packed =
          handle.slice(file.packed_offset, file.packed_size);
      if (file.size <= kSmallStream) {
        const io::Handle item = io::Handle::of_memory(
            codec::decompress(packed, file.codec, file.size), file.path);
        file.size = item.size();
        return torch::locate_tensor(item, number, 0, tensor.dtype,
                                    piece.box.shape, tensor.name, &crcs);
      }
      file.size = codec::measure(packed, file.codec, file.size);
      return unpack_ends(file, number, tensor, piece, crcs);
    } catch (const Error& error) {
      if (!error.where().tensor.empty()) throw;
      throw Error(error.code(), {file.path, text::printable(tensor.name)},
                  fmt::format("the item at byte {}: {}", file.packed_offset,
                              error.problem()),
                  error.hint());
    }
  }

  torch::LocatedTensor unpack_ends(const File& file, uint32_t number,
                                   const Tensor& tensor, const Piece& piece,
                                   std::vector<StoredCrc>& crcs) {
    auto handle =
        std::make_shared<const io::Handle>(io::Handle::open_read(file.path));
    codec::Stream stream(handle, file);
    const uint64_t count = std::min(file.size, torch::kItemEnd);
    std::string head(count, '\0'), tail(count, '\0');
    stream.read(0, std::as_writable_bytes(std::span(head)));
    stream.read(file.size - count, std::as_writable_bytes(std::span(tail)));
    torch::TensorLocator locator(*handle, number);
    auto located = locator.locate_ends(head, tail, file.size, tensor.dtype,
                                       piece.box.shape, &crcs);
    if (located) return *located;
    // Either torch did not write this, or there is an error to report.
    const io::Handle item = io::Handle::of_memory(
        codec::decompress(handle->slice(file.packed_offset, file.packed_size),
                          file.codec, file.size),
        file.path);
    return torch::locate_tensor(item, number, 0, tensor.dtype, piece.box.shape,
                                tensor.name, &crcs);
  }

  Catalog& catalog_;
  std::vector<Item> items_;
  std::vector<Run> runs_;
  std::vector<std::vector<StoredCrc>> crcs_;
};

}  // namespace

void locate_items(Catalog& catalog) { Locator(catalog).all(); }

std::shared_ptr<const ArchiveOpener> item_opener() {
  class Opener : public ArchiveOpener {
   public:
    void locate(Catalog& catalog) const override { locate_items(catalog); }
    uint64_t sample(Catalog& catalog) const override {
      return sample_items(catalog);
    }
  };
  static const auto kOpener = std::make_shared<const Opener>();
  return kOpener;
}

uint64_t sample_items(Catalog& catalog, uint64_t least) {
  return Locator(catalog).sample(least);
}

}  // namespace ckpt::dcp
