// Opens the archives of pieces: hundreds of thousands of small zips in big
// files, each read once, front to back, by all processors.
#include <fcntl.h>

#include <algorithm>
#include <optional>

#include "ckpt/error.h"
#include "formats/dcp/metadata.h"
#include "formats/torch/item.h"
#include "formats/torch/item_ends.h"
#include "lib/codec/stream.h"
#include "lib/io/file.h"
#include "lib/parallel.h"
#include "lib/text/format.h"

namespace ckpt::dcp {
namespace {

// Items of one file that one thread takes at a time: their headers are
// neighbours, and one file is opened for them.
constexpr size_t kRun = 256;
// Files that are waited for at a time: a header is a few KiB, and to get it
// takes a disk or a server longer than to look at it.
constexpr size_t kReaders = 16;
// Decompressed items up to this size are held in memory as a whole; of larger
// ones only both ends are.
constexpr uint64_t kSmallStream = uint64_t{8} << 20;

struct Item {
  uint64_t offset = 0;
  uint32_t file = 0;
  uint32_t tensor = 0;
  uint32_t piece = 0;
};

class Locator {
 public:
  explicit Locator(Catalog& catalog) : catalog_(catalog) {}

  void run() {
    collect();
    crcs_.resize(runs_.size());
    parallel_for(
        runs_.size(), [this](size_t run) { locate_run(run); }, kReaders);
    size_t count = catalog_.crcs.size();
    for (const auto& crcs : crcs_) count += crcs.size();
    catalog_.crcs.reserve(count);
    for (auto& crcs : crcs_) {
      std::ranges::move(crcs, std::back_inserter(catalog_.crcs));
      std::vector<StoredCrc>().swap(crcs);
    }
  }

 private:
  struct Run {
    size_t begin = 0;
    size_t end = 0;
  };

  void collect() {
    for (uint32_t t = 0; t < catalog_.tensors.size(); ++t) {
      const auto& pieces = catalog_.tensors[t].pieces;
      for (uint32_t p = 0; p < pieces.size(); ++p) {
        const Extent& extent = pieces[p].extent;
        if (extent.archive > 0)
          items_.push_back({extent.offset, extent.file, t, p});
      }
    }
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

  void locate_run(size_t number) {
    const Run& run = runs_[number];
    const uint32_t file = items_[run.begin].file;
    const bool packed = catalog_.files.at(file).codec != Codec::kRaw;
    const io::Handle handle =
        io::Handle::open_read(catalog_.files.at(file).path);
    // Without it the kernel reads payload ahead, a hundred times what is asked.
    ::posix_fadvise(handle.fd(), 0, 0, POSIX_FADV_RANDOM);
    torch::TensorLocator locator(handle, file);
    for (size_t i = run.begin; i < run.end; ++i) {
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

  // An item behind a transform is alone in its File, so that nobody else
  // changes the size of it.
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
    // Something that torch did not write, or an error to be told.
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

void locate_items(Catalog& catalog) { Locator(catalog).run(); }

}  // namespace ckpt::dcp
