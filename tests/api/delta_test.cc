// SPDX-License-Identifier: Apache-2.0
#include "ckpt/delta.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "ckpt/check.h"
#include "ckpt/error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_file.h"

// The three forms of a delta as calls. tests/app/cli/deltas_test.py holds their
// values against torch and peft.

namespace ckpt {
namespace {

namespace fs = std::filesystem;

const std::string kBase = test::data("hf/llama/ckpt");

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The base with the last bit of its last element changed.
std::string tuned(const test::TempDir& dir) {
  std::string made = dir.file("tuned");
  fs::copy(kBase, made, fs::copy_options::recursive);
  const std::string file = made + "/model.safetensors";
  std::string bytes = bytes_of(file);
  const size_t at = bytes.size() - 4;
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
  return made;
}

uint64_t sum(const DeltaReport& report) {
  uint64_t bytes = 0;
  for (const auto& [path, size] : report.written) bytes += size;
  return bytes;
}

}  // namespace

TEST_CASE("write_delta: a difference is marked, and sized by a dry run") {
  const test::TempDir dir;
  const std::string b = tuned(dir), out = dir.file("d.safetensors");
  const auto write = [&](bool dry_run) {
    return write_delta(open(kBase).catalog(), open(b).catalog(), out,
                       {.dry_run = dry_run});
  };
  const DeltaReport planned = write(true);
  CHECK_FALSE(fs::exists(out));
  const DeltaReport done = write(false);
  CHECK(done.written == planned.written);
  CHECK(sum(done) == fs::file_size(out));
  const Catalog made = open(out).catalog();
  CHECK(done.tensors == made.tensors.size());
  CHECK(is_difference(made));
  CHECK_FALSE(is_difference(open(kBase).catalog()));
}

TEST_CASE("write_delta: a LoRA has its errors, or says what it lacks") {
  const test::TempDir dir;
  const std::string b = tuned(dir), out = dir.file("lora");
  DeltaOptions options{.form = DeltaForm::kLora, .rank = 2};
  const auto write = [&] {
    return write_delta(open(kBase).catalog(), open(b).catalog(), out, options);
  };
  try {
    const DeltaReport done = write();
    CHECK(done.modules.size() + done.saved.size() == 1);
    CHECK(std::ranges::all_of(done.modules, [](const LoraModule& module) {
      return module.norm > 0 && module.error() < 1e-3;
    }));
    CHECK(fs::file_size(out + "/adapter_model.safetensors") ==
          done.written.at(1).second);
  } catch (const Error& error) {
    // A build without libtorch.
    CHECK(error.code() == ExitCode::kResource);
  }
  options.rank = 0;
  CHECK_THROWS_AS(write(), Error);
}

TEST_CASE("write_delta: without loss, and back") {
  const test::TempDir dir;
  const std::string b = tuned(dir), out = dir.file("b.delta"),
                    again = dir.file("again");
  DeltaOptions options{.form = DeltaForm::kLossless};
  const auto write = [&] {
    return write_delta(open(kBase).catalog(), open(b).catalog(), out, options);
  };
  options.dry_run = true;
  const uint64_t most = sum(write());
  CHECK_FALSE(fs::exists(out));
  options.dry_run = false;
  const DeltaReport done = write();
  CHECK(sum(done) == fs::file_size(out));
  CHECK(sum(done) <= most);
  CHECK(done.files == 3);
  CHECK(done.xored > 0);
  const DeltaReport restored = restore_delta(open(kBase).catalog(), out, again);
  CHECK(sum(restored) == done.bytes);
  for (const auto& [path, size] : restored.written)
    CHECK(bytes_of(fs::path(again) / path) == bytes_of(fs::path(b) / path));
  CHECK_THROWS_AS(restore_delta(open(b).catalog(), out, dir.file("wrong")),
                  Error);
  CHECK_FALSE(fs::exists(dir.file("wrong")));
  options.selection.keys = {"*"};
  CHECK_THROWS_AS(write(), Error);
}

}  // namespace ckpt
