// SPDX-License-Identifier: Apache-2.0
// Any bytes as the index of a checkpoint, or as an item of a data file: the
// reader refuses them with an Error, or what it lists can be inspected.
//
//   input   first byte even: .metadata, beside two data files of zeros
//           odd: an item; its first and last bytes tell nothing that the
//           whole archive does not tell
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "ckpt/error.h"
#include "containers/torch/item.h"
#include "formats/dcp/dcp.h"
#include "lib/pickle/json.h"

namespace {

using namespace ckpt;

[[noreturn]] void found(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// One directory for the whole run.
class Directory {
 public:
  Directory() {
    char pattern[] = "/tmp/ckpt_dcp_fuzz_XXXXXX";
    const char* made = mkdtemp(pattern);
    if (made == nullptr) found("no directory");
    path_ = made;
    write("__0_0.distcp", std::string(4096, '\0'));
    write("__1_0.distcp", std::string(4096, '\0'));
  }
  ~Directory() {
    for (const char* name : {"__0_0.distcp", "__1_0.distcp", ".metadata"})
      unlink((path_ + "/" + name).c_str());
    rmdir(path_.c_str());
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void check_index(const std::string& bytes) {
  static const Directory directory;
  directory.write(".metadata", bytes);
  Catalog catalog = dcp::make_reader()->read_catalog(directory.path(), {});
  for (const Tensor& tensor : catalog.tensors)
    for (const Piece& piece : tensor.pieces)
      if (!inside(piece.box, tensor.shape)) found("a piece outside");
  locate(catalog);
  load_objects(catalog);
}

void check_item(const std::string& bytes) {
  const auto item = io::Handle::of_memory(bytes, "item");
  torch::Container container;
  std::optional<torch::TensorRef> ref;
  std::string error;
  try {
    container = torch::open_item(item, 0, 0);
    ref = torch::as_tensor(*container.document, container.document->root(),
                           container.storages);
  } catch (const Error& refused) {
    error = refused.what();
  }
  const DType dtype = ref ? ref->dtype : DType::f32;
  const Shape shape = ref ? ref->shape : Shape{};
  torch::TensorLocator locator(item, 0);
  const auto located =
      locator.locate_ends(bytes, bytes, bytes.size(), dtype, shape, nullptr);
  if (!located) return;
  if (!error.empty()) found(error.c_str());
  if (!ref || ref->extent.offset != located->extent.offset ||
      ref->extent.strides != located->extent.strides ||
      ref->transform != located->transform)
    found("the ends tell something else than the whole");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    if (data[0] % 2 == 0)
      check_index(bytes);
    else
      check_item(bytes);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) found(error.what());
  }
  return 0;
}
