// SPDX-License-Identifier: Apache-2.0
// Any bytes as a tar archive: refused with an Error, or its members are inside
// the file, under names that stay inside it, each once.
#include <set>
#include <string>

#include "ckpt/error.h"
#include "lib/io/tar.h"
#include "tests/fuzz/memory_file.h"

using namespace ckpt;

namespace {

bool leaves(const std::string& name) {
  return name.starts_with('/') || ("/" + name + "/").find("/../") != name.npos;
}

void read(std::string_view bytes) {
  const auto file = io::Handle::of_memory(std::string(bytes), "fuzz");
  std::set<std::string> files;
  for (const io::TarMember& member : io::read_tar(file)) {
    if (leaves(member.name)) fuzz::found("a member outside of the archive");
    if (member.offset > file.size() ||
        member.size > file.size() - member.offset)
      fuzz::found("a member outside of the file");
    if (!member.directory && !files.insert(member.name).second)
      fuzz::found("a member twice");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    read({reinterpret_cast<const char*>(data), size});
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) fuzz::found(error.what());
  }
  return 0;
}
