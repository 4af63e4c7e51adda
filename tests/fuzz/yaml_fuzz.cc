// SPDX-License-Identifier: Apache-2.0
// Any bytes as model.yaml.
#include "ckpt/error.h"
#include "formats/fairseq2/model_yaml.h"
#include "tests/fuzz/memory_file.h"

using namespace ckpt;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::MemoryFile file({reinterpret_cast<const char*>(data), size});
  try {
    for (const auto& [key, value] :
         fairseq2::read_model_yaml(file.path()).config)
      families::to_string(value);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) fuzz::found(error.what());
  }
  return 0;
}
