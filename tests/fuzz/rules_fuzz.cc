// Any bytes as one of the files that users write or that say what a model is.
//
//   input   first byte mod 3: a family file, a rules file (--shard-dims), a
//           config.json that families are found by
#include "ckpt/error.h"
#include "lib/text/json.h"
#include "models/family.h"
#include "models/rules.h"
#include "tests/fuzz/memory_file.h"

using namespace ckpt;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    if (data[0] % 3 == 0) {
      families::Family::from_text(text, "fuzz");
    } else if (data[0] % 3 == 1) {
      const fuzz::MemoryFile file(text);
      families::Rules::from_file(file.path());
    } else {
      families::Family::for_config(text::parse_python_json(text, "fuzz"));
    }
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) fuzz::found(error.what());
  }
  return 0;
}
