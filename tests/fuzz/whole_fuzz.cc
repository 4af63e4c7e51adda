// SPDX-License-Identifier: Apache-2.0
// A small checkpoint with one of its files changed, from opening it to a plan
// that reads all of it: refused with an Error, or every element has a place
// inside a file.
//
//   input   u8 which golden | u8 which of its files | edits:
//           u8 kind | u16 where (in 1/65536 of the file) | bytes
//
// CKPT_FUZZ_DATA is tests/data. Only goldens of at most 256 KiB take part, so
// that a run makes thousands of these per second.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <vector>

#include "ckpt/error.h"
#include "formats/format.h"
#include "reshard/plan/planner.h"
#include "tests/fuzz/memory_file.h"

using namespace ckpt;
namespace fs = std::filesystem;

namespace {

struct Golden {
  std::string path;
  std::vector<std::string> files;  // relative
};

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

const std::vector<Golden>& goldens() {
  static const std::vector<Golden> all = [] {
    std::vector<Golden> found_;
    const char* data = std::getenv("CKPT_FUZZ_DATA");
    const fs::path root = data ? data : "tests/data";
    if (!fs::is_directory(root)) fuzz::found("CKPT_FUZZ_DATA: no tests/data");
    std::vector<fs::path> cases;
    for (const auto& format : fs::directory_iterator(root))
      if (format.is_directory() && format.path().filename() != "bad")
        for (const auto& one : fs::directory_iterator(format.path()))
          if (fs::is_directory(one.path() / "ckpt")) cases.push_back(one);
    std::ranges::sort(cases);
    for (const fs::path& one : cases) {
      Golden golden{.path = (one / "ckpt").string(), .files = {}};
      uint64_t bytes = 0;
      for (const auto& file : fs::recursive_directory_iterator(one / "ckpt"))
        if (file.is_regular_file()) {
          bytes += file.file_size();
          golden.files.push_back(
              file.path().lexically_relative(one / "ckpt").string());
        }
      std::ranges::sort(golden.files);
      if (bytes <= 256 * 1024 && !golden.files.empty() &&
          golden.files.size() <= 64)
        found_.push_back(std::move(golden));
    }
    if (found_.empty()) fuzz::found("no goldens");
    return found_;
  }();
  return all;
}

// A golden as links into the tree, with its own copy of the one file that is
// changed.
class Copy {
 public:
  explicit Copy(const Golden& golden) : golden_(golden) {
    for (const std::string& file : golden.files) {
      fs::create_directories((root() / file).parent_path());
      link(file);
    }
  }
  fs::path root() const { return fs::path(directory_.path()) / "ckpt"; }
  void link(const std::string& file) const {
    fs::remove(root() / file);
    fs::create_symlink(fs::absolute(fs::path(golden_.path) / file),
                       root() / file);
  }
  void put(const std::string& file, std::string_view bytes) const {
    fs::remove(root() / file);
    directory_.write("ckpt/" + file, bytes);
  }

 private:
  const Golden& golden_;
  fuzz::Directory directory_;
};

void edit(std::string& bytes, uint8_t kind, uint16_t where,
          std::string_view with) {
  const size_t at = bytes.size() * where / 65536;
  if (kind % 4 == 0)
    bytes.resize(at);
  else if (kind % 4 == 1)
    bytes.insert(at, with);
  else if (kind % 4 == 2)
    bytes.erase(at, with.size());
  else
    for (size_t i = 0; i < with.size() && at + i < bytes.size(); ++i)
      bytes[at + i] = with[i];
}

void check(const std::string& path) {
  Catalog catalog = formats::open(path, "", {});
  locate(catalog);
  load_objects(catalog);
  const reshard::Plan plan = reshard::make_read_plan(catalog, true);
  for (const Tensor& tensor : catalog.tensors)
    for (const Piece& piece : tensor.pieces)
      if (tensor.grid.empty() && !inside(piece.box, tensor.shape))
        fuzz::found("a piece outside of its tensor");
  if (plan.tensors.size() != catalog.tensors.size())
    fuzz::found("a tensor without a plan");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const size_t which = data[0] % goldens().size();
  const Golden& golden = goldens()[which];
  static std::vector<std::unique_ptr<Copy>> copies(goldens().size());
  if (!copies[which]) copies[which] = std::make_unique<Copy>(golden);
  const std::string& file = golden.files[data[1] % golden.files.size()];
  std::string bytes = contents(golden.path + "/" + file);
  for (size_t at = 2; at + 4 <= size;) {
    const uint8_t kind = data[at];
    const auto where = static_cast<uint16_t>(data[at + 1] | data[at + 2] << 8);
    const size_t count = std::min<size_t>(data[at + 3] % 32, size - at - 4);
    edit(bytes, kind, where,
         {reinterpret_cast<const char*>(data + at + 4), count});
    at += 4 + count;
  }
  copies[which]->put(file, bytes);
  try {
    check(copies[which]->root().string());
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) fuzz::found(error.what());
  }
  copies[which]->link(file);
  return 0;
}
