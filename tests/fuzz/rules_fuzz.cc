// SPDX-License-Identifier: Apache-2.0
// Any bytes as one of the files that users write or that describe a model.
//
//   input   first byte mod 5: a family file, a rules file (--shard-dims), a
//           config.json that families are found by, an adapter_config.json, a
//           config.json with a quantization_config
#include "ckpt/error.h"
#include "convert/quantized/config.h"
#include "formats/peft/config.h"
#include "lib/text/json.h"
#include "models/family.h"
#include "models/rules.h"
#include "tests/fuzz/memory_file.h"

using namespace ckpt;

namespace {

void check_adapter(const std::string& text) {
  static const fuzz::Directory directory;
  directory.write(std::string(peft::kConfigFile), text);
  if (const auto config = peft::read_config(directory.path())) {
    peft::describe(*config);
    peft::rank_of(*config, "model.layers.0.self_attn.q_proj");
    peft::scale_of(*config, "model.layers.0.self_attn.q_proj", 1);
  }
}

// What was dropped must be gone.
void check_quantization(const std::string& text) {
  Catalog catalog;
  catalog.path = "/nowhere";
  catalog.sidecars.push_back(
      {.name = "config.json",
       .path = "made:config.json",
       .size = text.size(),
       .text = std::make_shared<const std::string>(text)});
  if (!families::quantization_config(catalog).there) return;
  families::drop_quantization_config(catalog);
  if (families::quantization_config(catalog).there)
    fuzz::found("a quantization_config is left");
}

void check(uint8_t kind, const std::string& text) {
  if (kind == 0) families::Family::from_text(text, "fuzz");
  if (kind == 1) {
    const fuzz::MemoryFile file(text);
    families::Rules::from_file(file.path());
  }
  if (kind == 2)
    families::Family::for_config(text::parse_python_json(text, "fuzz"));
  if (kind == 3) check_adapter(text);
  if (kind == 4) check_quantization(text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    check(data[0] % 5, {reinterpret_cast<const char*>(data + 1), size - 1});
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) fuzz::found(error.what());
  }
  return 0;
}
