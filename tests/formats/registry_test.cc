// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <filesystem>

#include "ckpt/error.h"
#include "formats/format.h"
#include "tests/support/golden.h"
#include "tests/support/temp_file.h"

namespace ckpt::formats {
namespace {

// Returns the message and the hint from opening `path`, or "" if it opens.
std::string complaint(const std::string& path, ExitCode code) {
  try {
    open(path, {}, {});
    return {};
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return std::string(error.what()) + "\n" + error.hint();
  }
}

}  // namespace

TEST_CASE("registry: formats by name") {
  CHECK(find_format("safetensors").name == "safetensors");
  CHECK(find_format("safetensors").reader->name() == "safetensors");
  const auto hint = [](std::string_view name) {
    try {
      find_format(name);
      return std::string();
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUsage);
      return error.hint();
    }
  };
  CHECK(hint("safetensor") == "did you mean safetensors?");
  CHECK(hint("hf").find("safetensors --dialect hf") != std::string::npos);
  CHECK(hint("mcore").find("megatron_torch_dist") != std::string::npos);
  CHECK(hint("pt") == "did you mean torch?");
  CHECK(hint("ollama").find("gguf") != std::string::npos);
  CHECK(hint("xyz").starts_with("formats: "));
  CHECK(hint("xyz").find(" fairseq2, ") != std::string::npos);
  for (const Format& format : all_formats()) {
    if (format.reader) CHECK(format.reader->name() == format.name);
    if (format.writer) CHECK(format.writer->name() == format.name);
  }
}

TEST_CASE("registry: opens what it knows and says why") {
  const Catalog catalog =
      open(test::data("safetensors/hf_sharded/ckpt"), {}, {});
  CHECK(catalog.format == "safetensors");
  REQUIRE(!catalog.assumptions.empty());
  CHECK(catalog.assumptions[0].starts_with("format safetensors: holds "));
  CHECK(open(catalog.path, "safetensors", {}).tensors.size() ==
        catalog.tensors.size());
}

TEST_CASE("registry: what it says about everything else") {
  const test::TempDir dir;
  dir.write("model.safetensors", "cut off");
  dir.write("empty", "");
  dir.write("noise", std::string(100, '\xaa'));
  dir.write("model.gguf", "GGUF\3 and so on");
  dir.write("pointer", "version https://git-lfs.github.com/spec/v1\n");
  dir.write("arrays.npz", "PK\3\4");
  dir.write("model.keras", "PK\3\4");
  dir.write("page", "<!DOCTYPE html>");
  dir.write("run/notes.txt", "-");
  dir.write("run/step_10/model.safetensors", "x");
  dir.write("quantized/m.gguf", "GGUF\3 and so on");
  std::filesystem::create_directories(dir.file("nothing"));
  std::filesystem::create_symlink("gone", dir.file("link"));

  using enum ExitCode;
  struct Row {
    const char* path;
    ExitCode code;
    const char* says;
  };
  const Row rows[] = {
      {"model.safetensor", kMissing, "did you mean"},
      {"a/b/c", kMissing, "of that path only"},
      {"zzzzzzzzz", kMissing, "no such file or directory"},
      {"link", kMissing, "broken symlink"},
      {"nothing", kMissing, "an empty directory"},
      {"empty", kMissing, "an empty file (0 bytes)"},
      {"noise", kMissing, "not a recognized checkpoint"},
      {"noise", kMissing, "-v shows what was tried"},
      {"model.gguf", kDamaged, "byte 8: version"},
      {"pointer", kMissing, "git lfs pull"},
      {"arrays.npz", kDamaged, "the zip archive has no end record"},
      {"model.keras", kDamaged, "by its name this is a Keras file"},
      {"page", kMissing, "an HTML page"},
      {"run", kMissing, "below it is: step_10 (safetensors)"},
      {"quantized", kDamaged, "m.gguf"},
      {"model.safetensors", kDamaged, "file of 7 bytes"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.path);
    const std::string text = complaint(dir.file(row.path), row.code);
    CAPTURE(text);
    CHECK(text.find(row.says) != text.npos);
  }
}

}  // namespace ckpt::formats

namespace ckpt::formats {

TEST_CASE("detect: a directory around one torch file, and around several") {
  const std::string data = CKPT_TEST_DATA;
  CHECK(open(data + "/torch_pt/dtypes/ckpt", "", {}).tensors.size() == 36);
  CHECK_THROWS_WITH_AS(open(data + "/torch_pt/torch2.7.1/ckpt", "", {}),
                       doctest::Contains("name the one to open"), Error);
}

}  // namespace ckpt::formats
