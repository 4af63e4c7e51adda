// SPDX-License-Identifier: Apache-2.0
// Any bytes as our own manifest (first byte even) or journal (odd): refused
// with an Error, or what is read is written back the same.
#include "ckpt/error.h"
#include "lib/manifest.h"
#include "reshard/run/journal.h"
#include "tests/fuzz/memory_file.h"

using namespace ckpt;

namespace {

void check_manifest(std::string_view text) {
  const fuzz::MemoryFile file(text);
  const std::string written = to_json(read_manifest(file.path()));
  const fuzz::MemoryFile again(written);
  if (to_json(read_manifest(again.path())) != written)
    fuzz::found("not a fixed point");
}

void check_journal(std::string_view text) {
  static const fuzz::Directory directory;
  directory.write("journal", text);
  const std::string path = directory.path() + "/journal";
  const auto journal = reshard::Journal::open(path, 0x1234);
  if (journal && journal->items() < journal->done().size())
    fuzz::found("more is done than there is");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    if (data[0] % 2 == 0)
      check_manifest(text);
    else
      check_journal(text);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) fuzz::found(error.what());
  }
  return 0;
}
