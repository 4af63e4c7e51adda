// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/find/stale.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/runs/find/candidates.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/find/trainer.h"
#include "lib/io/file.h"
#include "lib/manifest.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using text::printable;

constexpr uint64_t kBlock = 64 << 10;
// Weights that no token has touched have moments of zeros, so a few places may
// agree by chance. So many, all over the file, don't.
constexpr uint64_t kPlaces = 64;

bool agree(const io::Handle& one, const io::Handle& other, uint64_t at,
           uint64_t count) {
  std::array<std::byte, kBlock> a, b;
  const std::span mine(a.data(), count), theirs(b.data(), count);
  one.read(at, mine);
  other.read(at, theirs);
  return std::ranges::equal(mine, theirs);
}

bool same_bytes(const std::string& path, const std::string& beside) {
  if (!io::is_file(path) || !io::is_file(beside)) return false;
  const io::Handle one = io::Handle::open_read(path);
  const io::Handle other = io::Handle::open_read(beside);
  const uint64_t size = one.size();
  if (size == 0 || size != other.size()) return false;
  const uint64_t blocks = (size + kBlock - 1) / kBlock;
  const uint64_t stride = std::max<uint64_t>(1, blocks / kPlaces);
  for (uint64_t block = 0; block < blocks; block += stride) {
    const uint64_t at = block * kBlock;
    if (!agree(one, other, at, std::min(kBlock, size - at))) return false;
  }
  return true;
}

// The files of what is trained: the optimizer's, and the weights' that it has
// states of. By number it may have any.
std::set<std::string> trained_files(const Catalog& catalog) {
  std::unordered_set<std::string_view> trained;
  bool numbered = false;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::optim) continue;
    trained.insert(tensor.param);
    numbered = numbered || whole_number(tensor.param);
  }
  std::set<std::string> paths;
  const std::string below = catalog.path + "/";
  for (const Tensor& tensor : catalog.tensors) {
    const bool is_trained = tensor.kind == Kind::optim ||
                            (tensor.kind == Kind::model && !trained.empty() &&
                             (numbered || trained.contains(tensor.name)));
    if (!is_trained) continue;
    for (const Piece& piece : tensor.pieces) {
      if (piece.extent.file >= catalog.files.size()) continue;
      const std::string& path = catalog.files[piece.extent.file].path;
      if (path.starts_with(below)) paths.insert(path);
    }
  }
  return paths;
}

}  // namespace

std::vector<Problem> check_shared(const Catalog& catalog) {
  if (!catalog.run || catalog.path.find("://") != std::string::npos) return {};
  const auto& all = trainers();
  const auto trainer =
      std::ranges::find(all, catalog.run->trainer, &Trainer::name);
  // What ckpt wrote is in its manifest.
  if (trainer == all.end() || io::is_file(manifest_path(catalog.path)))
    return {};
  const std::string beside = step_beside(*trainer, catalog.path);
  if (beside.empty()) return {};
  std::vector<std::string> shared;
  const std::set<std::string> paths = trained_files(catalog);
  for (const std::string& path : paths)
    if (same_bytes(path, beside + path.substr(catalog.path.size())))
      shared.push_back(path);
  if (shared.empty() || shared.size() == paths.size()) return {};
  const std::string more =
      shared.size() == 1
          ? ""
          : fmt::format(", and so {} {} more",
                        shared.size() == 2 ? "has" : "have", shared.size() - 1);
  return {warning(
      "stale_part", {shared[0], {}},
      "has the bytes of the file of the step beside ({}){}; {} of the step's "
      "files differ from those: it is of that save, unless nothing in it was "
      "trained in between",
      printable(beside + shared[0].substr(catalog.path.size())), more,
      paths.size() - shared.size())};
}

}  // namespace ckpt::runs
