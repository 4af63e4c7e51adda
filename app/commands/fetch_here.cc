// SPDX-License-Identifier: Apache-2.0
// What is there from a run that was stopped is gone on with:
//
//   DIR/.ckpt-fetch/NAME.part   the first bytes of a file, as many as it has
//   DIR/.ckpt-fetch/NAME.tag    of which version: "SIZE HASH", and "done" when
//                               the file is in its place
//   DIR/NAME                    when it is whole, and its sha256 is the one
//                               that the hub promises
#include <algorithm>
#include <filesystem>

#include "app/commands/fetch.h"
#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "lib/io/lock.h"
#include "lib/io/rename.h"
#include "lib/parallel.h"
#include "lib/sha256.h"

namespace ckpt::app {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kStep = 8 << 20;

std::string read_tag(const std::string& path) {
  constexpr uint64_t kMost = 4096;
  return io::is_file(path) ? io::read_file(path, kMost) : "";
}

void write_tag(const std::string& path, const std::string& tag, bool sync) {
  std::error_code ignored;
  fs::remove(path, ignored);
  const io::Handle file = io::Handle::create(path);
  file.write(0, std::string_view(tag));
  if (sync) file.sync();
}

std::string sum_of_file(const std::string& path) {
  Sha256 sum;
  const io::Handle file = io::Handle::open_read(path);
  std::vector<std::byte> buffer(kStep);
  const uint64_t size = file.size();
  for (uint64_t at = 0; at < size; at += buffer.size()) {
    if (interrupted()) throw Interrupted("");
    buffer.resize(std::min<uint64_t>(kStep, size - at));
    file.read(at, buffer);
    sum.update(buffer);
  }
  return sum.hex();
}

class FetchHere {
 public:
  explicit FetchHere(FetchJob& job)
      : job_(job), folder_(io::join(job.target, ".ckpt-fetch")) {}

  void run();

 private:
  void fetch(const FetchFile& file);
  void copy(const FetchFile& file, const std::string& part);
  bool is_whole(const FetchFile& file) const;
  void place(const FetchFile& file, const std::string& part);
  void verify(const FetchFile& file) const;

  std::string path_of(const FetchFile& file) const {
    return io::join(job_.target, file.path);
  }
  // In the folder for what is not finished, without folders below it.
  std::string kept(const FetchFile& file, std::string_view ending) const {
    std::string flat;
    for (const char c : file.path)
      flat += c == '/' ? "%2F" : c == '%' ? "%25" : std::string(1, c);
    return io::join(folder_, flat + std::string(ending));
  }

  FetchJob& job_;
  const std::string folder_;
};

// The file is there, and is the one that is meant.
bool FetchHere::is_whole(const FetchFile& file) const {
  const std::string path = path_of(file);
  const auto size = io::file_size(path);
  if (!size) return false;
  if (*size == file.bytes && read_tag(kept(file, ".tag")) == "done " + file.tag)
    return true;
  const auto exists = unfaithful_error({path, {}}, "already exists");
  if (*size != file.bytes || file.sha256.empty())
    throw exists.with_hint("fetch into another directory, or remove it");
  if (sum_of_file(path) != file.sha256)
    throw exists.with_hint(
        "it differs from the one that would be fetched: fetch into another "
        "directory, or remove it");
  return true;
}

void FetchHere::place(const FetchFile& file, const std::string& part) {
  const std::string path = path_of(file);
  std::error_code failed;
  fs::create_directories(io::parent(path), failed);
  if (failed)
    throw io_error(io::parent(path), "cannot make it", failed.value());
  fs::rename(part, path, failed);
  if (failed) throw io_error(path, "cannot rename to it", failed.value());
  if (job_.sync) io::sync_directory(io::parent(path));
  write_tag(kept(file, ".tag"), "done " + file.tag, job_.sync);
}

// From where an earlier run stopped; the sum is over all of it.
void FetchHere::copy(const FetchFile& file, const std::string& part) {
  Sha256 sum;
  const bool summed = !file.sha256.empty();
  const io::Handle to = io::Handle::open_write(part);
  const uint64_t begin = std::min(to.size(), file.bytes);
  std::vector<std::byte> buffer;
  for (uint64_t at = 0; at < begin && summed; at += buffer.size()) {
    buffer.resize(std::min<uint64_t>(kStep, begin - at));
    to.read(at, buffer);
    sum.update(buffer);
  }
  job_.progress.advance(begin);
  fetch_bytes(job_, open_fetched(file), begin, file.bytes, file.bytes,
              [&](uint64_t at, std::span<const std::byte> bytes) {
                to.write(at, bytes);
                if (summed) sum.update(bytes);
              });
  if (job_.sync) to.sync();
  if (!summed) return;
  try {
    check_sum(job_, file, sum.hex());
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove(part, ignored);
    throw;
  }
}

// As the disk has it now, by the sum that was promised.
void FetchHere::verify(const FetchFile& file) const {
  if (file.sha256.empty()) return;
  const std::string got = sum_of_file(path_of(file));
  if (got != file.sha256)
    throw input_error({path_of(file), {}},
                      "the file there has the sha256 {}, {} promises {}", got,
                      file.url, file.sha256)
        .with_hint(
            "the disk or the memory of this machine changed bytes: "
            "remove the file and fetch it again");
}

void FetchHere::fetch(const FetchFile& file) {
  if (is_whole(file)) {
    job_.progress.advance(file.bytes);
  } else {
    const std::string part = kept(file, ".part");
    const std::string tag = kept(file, ".tag");
    std::error_code ignored;
    if (read_tag(tag) != file.tag) {
      fs::remove(part, ignored);
      write_tag(tag, file.tag, job_.sync);
    }
    if (!io::is_file(part)) io::Handle::create(part);
    ++job_.copying;
    copy(file, part);
    --job_.copying;
    place(file, part);
  }
  if (job_.verify) verify(file);
}

void FetchHere::run() {
  std::error_code failed;
  fs::create_directories(folder_, failed);
  if (failed) throw io_error(folder_, "cannot make it", failed.value());
  const io::TargetLock lock(job_.target);
  try {
    parallel_for(
        job_.files.size(), [&](size_t i) { fetch(job_.files[i]); },
        kFetchThreads);
  } catch (const Interrupted&) {
    throw Interrupted("stopped; what was received is kept in " + folder_ +
                      "; run it again to resume");
  }
  fs::remove_all(folder_, failed);
}

}  // namespace

void fetch_here(FetchJob& job) { FetchHere(job).run(); }

}  // namespace ckpt::app
