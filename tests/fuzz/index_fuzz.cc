// SPDX-License-Identifier: Apache-2.0
// Any bytes as the index of a sharded checkpoint, beside two shards: refused
// with an Error, or the names in it stay inside the directory.
#include "ckpt/error.h"
#include "containers/hf/index.h"
#include "tests/fuzz/memory_file.h"

using namespace ckpt;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Directory directory;
  static const bool made = [] {
    directory.write("model-00001-of-00002.safetensors", "x");
    directory.write("model-00002-of-00002.safetensors", "x");
    return true;
  }();
  (void)made;
  const std::string name = "model.safetensors.index.json";
  directory.write(name, {reinterpret_cast<const char*>(data), size});
  try {
    const formats::Index index = formats::read_index(directory.path(), name);
    for (const std::string& file : index.files)
      if (file.find("..") == 0 || file.starts_with("/"))
        fuzz::found("a file outside");
    for (const auto& weight : index.weights)
      if (weight.file >= index.files.size()) fuzz::found("no such file");
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) fuzz::found(error.what());
  }
  return 0;
}
