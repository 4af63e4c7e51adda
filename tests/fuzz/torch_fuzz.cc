// SPDX-License-Identifier: Apache-2.0
// Any bytes as a file: the reader refuses them with an Error, or what it
// lists can be shown and laid out as a file again.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "ckpt/error.h"
#include "formats/format.h"
#include "formats/torch/torch.h"
#include "lib/pickle/json.h"

namespace {

using namespace ckpt;

[[noreturn]] void found(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// A file without a name; the path leads to it.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size)
      : fd_(memfd_create("input", 0)),
        path_("/proc/self/fd/" + std::to_string(fd_)) {
    if (fd_ < 0 || write(fd_, data, size) != static_cast<ssize_t>(size))
      found("no file in memory");
  }
  ~MemoryFile() { close(fd_); }
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

void check(const std::string& path) {
  const auto reader = torch::make_reader();
  reader->supports(path);
  const Catalog catalog = reader->read_catalog(path, {});
  for (const Object& object : catalog.objects)
    pickle::to_json(*object.document, object.node, 1000);
  const Layout layout{.format = "torch",
                      .topology = {},
                      .max_shard_size = 0,
                      .single_file = true,
                      .name = "again.pt"};
  torch::make_writer()->lay_out(catalog, layout);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemoryFile file(data, size);
  try {
    check(file.path());
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) found(error.what());
  }
  return 0;
}
