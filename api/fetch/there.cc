// SPDX-License-Identifier: Apache-2.0
// From one server to another: one part of a file at a time is in the spool, is
// sent while the next ones arrive, and is freed. Nothing appears until all
// parts of all files are there. Parts that an earlier run sent are not fetched
// again, except for files with a promised checksum, which needs their bytes.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "api/fetch/fetch.h"
#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "lib/io/staging.h"
#include "lib/parallel.h"
#include "lib/session.h"

namespace ckpt::library {
namespace {

// What the spool's parts are of; another list makes them useless.
std::string list_of(const FetchJob& job) {
  std::string text = "ckpt-fetch 1\n";
  for (const FetchFile& file : job.files)
    text += fmt::format("{} {} {}\n", file.tag, file.url, file.path);
  return text;
}

class FetchThere {
 public:
  explicit FetchThere(FetchJob& job)
      : job_(job),
        staging_(job.target, {.single_file = job.single,
                              .overwrite = job.overwrite,
                              .resume = true}) {}

  void run();

 private:
  void prepare();
  void fetch(uint32_t number);
  void fetch_parts(uint32_t number, const io::Handle& from,
                   const io::Handle& to, const TakeBytes& add);

  FetchJob& job_;
  io::Staging staging_;
  io::Upload* upload_ = nullptr;
};

void FetchThere::prepare() {
  const std::string list = list_of(job_);
  const std::string path = staging_.journal_path();
  const bool known = std::ranges::all_of(job_.files, &FetchFile::versioned) &&
                     io::is_file(path) &&
                     io::read_file(path, list.size() + 1) == list;
  if (!known) {
    staging_.clear();
    const io::Handle file = io::Handle::create(path);
    file.write(0, std::string_view(list));
    file.sync();
  }
  for (const FetchFile& file : job_.files)
    staging_.create(file.path, file.bytes, known);
  upload_ = staging_.begin_upload();
}

void FetchThere::fetch(uint32_t number) {
  const FetchFile& file = job_.files[number];
  const io::Handle to =
      io::Handle::open_write(io::join(staging_.root(), file.path));
  const io::Handle from = open_fetched(file);
  std::optional<sums::Hash> sum;
  if (!file.sha256.empty()) sum.emplace(sums::Algorithm::kSha256, file.bytes);
  std::vector<sums::Hash> listed;
  for (const sums::Sum& one : file.sums)
    listed.emplace_back(one.algorithm, file.bytes);
  const TakeBytes add = [&](uint64_t, std::span<const std::byte> bytes) {
    if (sum) sum->update(bytes);
    for (sums::Hash& one : listed) one.update(bytes);
  };
  ++job_.copying;
  fetch_parts(number, from, to, add);
  --job_.copying;
  if (sum) check_sum(job_, file, sum->hex());
  for (size_t i = 0; i < listed.size(); ++i)
    check_listed(job_, file, file.sums[i], listed[i].hex());
}

void FetchThere::fetch_parts(uint32_t number, const io::Handle& from,
                             const io::Handle& to, const TakeBytes& add) {
  const FetchFile& file = job_.files[number];
  const uint64_t size = upload_->part_bytes(number);
  const uint64_t step = size == 0 ? std::max<uint64_t>(1, file.bytes) : size;
  const bool summed = !file.sha256.empty() || !file.sums.empty();
  for (uint64_t begin = 0; begin < file.bytes; begin += step) {
    const uint64_t end = std::min(file.bytes, begin + step);
    const bool there = size != 0 && upload_->stands(number, begin / step);
    if (there && !summed) {
      job_.progress.advance(end - begin);
      continue;
    }
    fetch_bytes(job_, from, begin, end, file.bytes,
                [&](uint64_t at, std::span<const std::byte> bytes) {
                  if (!there) to.write(at, bytes);
                  add(at, bytes);
                });
    if (size != 0 && !there)
      upload_->send(number, begin / step, {{begin, end}});
  }
}

void FetchThere::run() {
  std::ranges::stable_sort(job_.files, {}, is_index);
  try {
    prepare();
    parallel_for(
        job_.files.size(), [&](size_t i) { fetch(static_cast<uint32_t>(i)); },
        kFetchThreads);
    if (job_.files.size() > 1) Session::current()->watch.check_unchanged();
    staging_.publish();
  } catch (const Interrupted&) {
    staging_.keep();
    throw Interrupted(
        "stopped; the parts that were sent are kept; run it again "
        "to resume");
  } catch (const Error& error) {
    // Parts whose bytes are not the promised ones are useless.
    if (error.code() != ExitCode::kDamaged) staging_.keep();
    throw;
  }
}

}  // namespace

void fetch_there(FetchJob& job) { FetchThere(job).run(); }

}  // namespace ckpt::library
