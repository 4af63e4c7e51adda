// SPDX-License-Identifier: Apache-2.0
// Any bytes as a zip archive: refused with an Error, or its records are inside
// the file and can be read. Salvage's scan without a directory agrees with the
// directory on what both find.
#include "ckpt/error.h"
#include "formats/salvage/repair.h"
#include "formats/salvage/zip_scan.h"
#include "lib/zip/archive.h"
#include "tests/fuzz/memory_file.h"

using namespace ckpt;

namespace {

void read_archive(const io::Handle& file) {
  const zip::Archive archive = zip::Archive::read(file);
  for (const zip::Entry& entry : archive.entries()) {
    if (entry.data_offset > file.size() ||
        entry.packed_size > file.size() - entry.data_offset)
      fuzz::found("a record outside of the file");
    try {
      if (zip::read_entry(file, entry, 1 << 20).size() != entry.size)
        fuzz::found("a record of another size");
    } catch (const Error& error) {
      if (error.code() == ExitCode::kBug) fuzz::found(error.what());
    }
  }
}

void scan(const io::Handle& file) {
  for (const salvage::ScannedRecord& record : salvage::scan_records(file))
    if (record.data_offset > file.size() ||
        (record.ends && record.packed_size > file.size() - record.data_offset))
      fuzz::found("a scanned record outside of the file");
}

void repair(std::string_view bytes) {
  const fuzz::MemoryFile file(bytes);
  const auto repair = salvage::repair_zip(file.path());
  if (!repair) return;
  uint64_t covered = 0;
  for (const salvage::Range& gone : repair->gone)
    if (gone.begin >= gone.end || gone.end > repair->size)
      fuzz::found("gone outside of the file");
  for (const salvage::Copy& copy : repair->copies) {
    if (copy.from_offset + copy.size > bytes.size() ||
        copy.offset + copy.size > repair->size)
      fuzz::found("a copy outside of the file");
    covered += copy.size;
  }
  if (covered > repair->size) fuzz::found("more copies than bytes");
}

template <class F>
void guarded(F run) {
  try {
    run();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) fuzz::found(error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const auto file = io::Handle::of_memory(bytes, "fuzz");
  guarded([&] { read_archive(file); });
  guarded([&] { scan(file); });
  guarded([&] { repair(bytes); });
  return 0;
}
