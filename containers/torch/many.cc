// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/many.h"

#include <fcntl.h>
#include <fmt/format.h>

#include "containers/torch/storages.h"
#include "lib/parallel.h"

namespace ckpt::torch {
namespace {

// A dry run checks one file in this many.
constexpr size_t kSampled = 64;

bool is_zip(const io::Handle& file) {
  constexpr std::string_view kMagic = "PK\3\4";
  return file.size() > kMagic.size() &&
         file.read_string(0, kMagic.size()) == kMagic;
}

// The raw files that hold pieces; torch's zips have no others.
std::vector<std::string> files_in_use(const Catalog& catalog) {
  std::vector<bool> used(catalog.files.size(), false);
  for (const Tensor& tensor : catalog.tensors)
    for (const Piece& piece : tensor.pieces) used[piece.extent.file] = true;
  std::vector<std::string> paths;
  for (size_t f = 0; f < used.size(); ++f)
    if (used[f] && catalog.files[f].codec == Codec::kRaw)
      paths.push_back(catalog.files[f].path);
  return paths;
}

void check(const std::vector<std::string>& paths, size_t step) {
  parallel_for((paths.size() + step - 1) / step,
               [&](size_t i) {
                 const io::Handle file = io::Handle::open_read(paths[i * step]);
                 if (is_zip(file)) zip::check_headers(file);
               },
               kReaders);
}

class HeaderChecker : public ArchiveOpener {
 public:
  void locate(Catalog& catalog) const override {
    check(files_in_use(catalog), 1);
  }
  uint64_t sample(Catalog& catalog) const override {
    const std::vector<std::string> paths = files_in_use(catalog);
    check(paths, kSampled);
    const size_t rest = paths.size() - (paths.size() + kSampled - 1) / kSampled;
    if (rest > 0)
      catalog.assumptions.push_back(
          fmt::format("{} files have their records where their directories put "
                      "them; a run reads the records' own headers",
                      rest));
    return rest;
  }
  bool only_checks() const override { return true; }
};

}  // namespace

Opened open_aside(const std::string& path, const Limits& limits) {
  Opened opened;
  opened.container = open_container(path, opened.aside, limits);
  return opened;
}

io::Handle open_scattered(const std::string& path) {
  io::Handle file = io::Handle::open_read(path);
  // Otherwise the kernel reads ahead payload that is never used.
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_RANDOM);
  return file;
}

std::optional<Opened> open_computed(const io::Handle& file,
                                    const Limits& limits) {
  if (!is_zip(file)) return std::nullopt;
  Opened opened;
  opened.container = open_zip(file, opened.aside, zip::Headers::kComputed);
  check_limits(opened.container, limits);
  add_globals(opened.aside, opened.container.globals);
  return opened;
}

uint32_t take_aside(Catalog& aside, Catalog& catalog) {
  const auto first = static_cast<uint32_t>(catalog.files.size());
  for (File& file : aside.files) catalog.files.push_back(std::move(file));
  for (StoredCrc& crc : aside.crcs) {
    crc.file += first;
    catalog.crcs.push_back(std::move(crc));
  }
  for (Problem& problem : aside.problems)
    catalog.problems.push_back(std::move(problem));
  if (aside.globals != catalog.globals) add_globals(catalog, aside.globals);
  return first;
}

void open_each(const std::vector<std::string>& paths, Catalog& catalog,
               const Limits& limits,
               const std::function<void(size_t, Container)>& take) {
  in_order<Opened>(
      paths.size(), [&](size_t i) { return open_aside(paths[i], limits); },
      [&](size_t i, Opened opened) {
        const uint32_t first = take_aside(opened.aside, catalog);
        for (Container* part :
             {&opened.container, opened.container.constants.get()})
          if (part)
            for (Storage& storage : part->storages.all) storage.file += first;
        take(i, std::move(opened.container));
      });
}

void check_headers_later(Catalog& catalog) {
  static const auto kChecker = std::make_shared<const HeaderChecker>();
  catalog.archive_opener = kChecker;
}

}  // namespace ckpt::torch
