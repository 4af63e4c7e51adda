// SPDX-License-Identifier: Apache-2.0
// Pieces of files arrive in any order, each by a request whose bytes go
// straight into the file. A run that was stopped is resumed from:
//
//   DIR/.ckpt-fetch/journal     what has come (fetch_journal.h)
//   DIR/.ckpt-fetch/NAME.part   a file, where its bytes belong
//   DIR/NAME                    when all files are whole, their sha256 is what
//                               the hub promises, and none changed meanwhile
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "app/commands/fetch.h"
#include "app/commands/fetch_journal.h"
#include "app/options/rate.h"
#include "ckpt/box.h"
#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "lib/io/lock.h"
#include "lib/io/probe.h"
#include "lib/io/remote.h"
#include "lib/io/rename.h"
#include "lib/io/watch.h"
#include "lib/parallel.h"
#include "lib/sha256.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kFetchMiB = uint64_t{1} << 20;
constexpr uint64_t kStep = 8 * kFetchMiB;
// Stays in cache while its sum is computed.
constexpr uint64_t kSumStep = kFetchMiB / 4;
// Each waits for one request; lib/net decides how many run.
constexpr size_t kPieces = 128;
// What is left is divided into this many shares, so that they end together.
constexpr uint64_t kShares = 24;
constexpr uint64_t kLeastPiece = 16 * kFetchMiB, kMostPiece = 64 * kFetchMiB;
constexpr uint64_t kMostPieces = uint64_t{1} << 20;  // about
// What a killed process may have fetched in vain of one piece, and what a
// machine that lost power may have fetched in vain of one file.
constexpr uint64_t kNoted = 16 * kFetchMiB, kKept = 1024 * kFetchMiB;

struct Stopped {};  // by another piece's error

// Hands over a file's bytes in order, as they are on this machine.
template <class Take>
void read_steps(const io::Handle& file, uint64_t begin, uint64_t end,
                const Take& take) {
  std::vector<std::byte> buffer(kSumStep);
  for (uint64_t at = begin; at < end; at += buffer.size()) {
    if (interrupted()) throw Interrupted("");
    buffer.resize(std::min<uint64_t>(kSumStep, end - at));
    file.read(at, buffer);
    take(buffer);
  }
}

std::string sum_of_file(const std::string& path) {
  Sha256 sum;
  const io::Handle file = io::Handle::open_read(path);
  read_steps(file, 0, file.size(),
             [&](const auto& bytes) { sum.update(bytes); });
  return sum.hex();
}

// A file being fetched.
struct Arrival {
  const FetchFile* file = nullptr;
  std::string name;  // in the journal, and the part's name

  std::mutex mutex;  // guards what follows
  std::unique_ptr<const io::Handle> from;
  std::shared_ptr<const io::Handle> to;
  Ranges came;
  uint64_t bytes = 0;    // that have arrived
  uint64_t unkept = 0;   // of those, not yet certainly on the disk
  bool keeping = false;  // a thread is waiting for the disk
  Sha256 sum;
  uint64_t summed = 0;
  bool summing = false;  // a thread is computing the sum
  bool ended = false;
};

struct Stretch {
  Arrival* arrival;
  uint64_t begin, end;
};

void copy_steps(const io::Handle& from, const io::Handle& to,
                const Stretch& piece,
                const std::function<void(uint64_t)>& look) {
  for (uint64_t at = piece.begin; at < piece.end;) {
    if (interrupted()) throw Interrupted("");
    const uint64_t size = std::min(kStep, piece.end - at);
    io::copy_range(from, at, to, at, size);
    at += size;
    look(at - piece.begin);
  }
}

class FetchHere {
 public:
  explicit FetchHere(FetchJob& job)
      : job_(job), folder_(io::join(job.target, ".ckpt-fetch")) {}

  void run();

 private:
  bool is_there(const FetchFile& file, const FetchJournal::Known& known) const;
  void look(const FetchFile& file);
  uint64_t left_to_fetch() const;
  std::vector<Stretch> cut();
  void fetch(const Stretch& piece);
  void open(Arrival& one);
  void copy(const Stretch& piece);
  void arrived(const Stretch& piece, uint64_t count, uint64_t& told,
               uint64_t& noted);
  void keep(Arrival& one);
  bool add_sum(Arrival& one);
  void end(Arrival& one);
  void answered();
  void place_all();
  void place(const FetchFile& file);
  void verify(const FetchFile& file) const;

  std::string path_of(const FetchFile& file) const {
    return io::join(job_.target, file.path);
  }
  std::string part_of(const std::string& name) const {
    return io::join(folder_, name + ".part");
  }

  FetchJob& job_;
  const std::string folder_;
  std::unique_ptr<FetchJournal> journal_;
  std::mutex mutex_;  // of the three
  std::deque<Arrival> arrivals_;
  std::vector<const FetchFile*> whole_;  // that wait for their names
  std::set<std::string> folders_;        // that files were placed in
  std::atomic<bool> stopped_ = false;
  std::atomic<size_t> unanswered_ = 0;  // pieces whose bytes aren't on the way
  std::future<void> unchanged_;
};

// What a run keeps is its own: through a link it would write elsewhere.
void refuse_link(const std::string& path) {
  if (io::is_link(path))
    throw unsafe_error({path, {}}, "is a link, and no run of ckpt made it")
        .with_hint("remove it, then run it again");
}

// True if the file is in place and is the right one.
bool FetchHere::is_there(const FetchFile& file,
                         const FetchJournal::Known& known) const {
  const std::string path = path_of(file);
  const auto size = io::file_size(path);
  if (!size) return false;
  if (*size == file.bytes && known.whole) return true;
  const auto exists = unfaithful_error({path, {}}, "already exists");
  const bool known_sum = *size == file.bytes && !file.sha256.empty();
  if (known_sum && sum_of_file(path) == file.sha256) return true;
  if (job_.overwrite) return false;
  throw exists.with_hint(
      std::string(known_sum ? "it differs from the one that would be fetched: "
                            : "") +
      "fetch into another directory, or replace it with --overwrite");
}

// Finds out how much of the file is already there.
void FetchHere::look(const FetchFile& file) {
  const std::string name = flat_name(file.path);
  const FetchJournal::Known known = journal_->known(name, file.tag);
  if (is_there(file, known)) {
    job_.progress.advance(file.bytes);
    if (job_.verify) verify(file);
    return;
  }
  const std::string part = part_of(name);
  refuse_link(part);
  const uint64_t size = io::file_size(part).value_or(0);
  if (known.whole && size == file.bytes && io::is_file(part)) {
    job_.progress.advance(file.bytes);
    const std::lock_guard lock(mutex_);
    whole_.push_back(&file);
    return;
  }
  const std::lock_guard lock(mutex_);
  Arrival& one = arrivals_.emplace_back();
  one.file = &file;
  one.name = name;
  for (const auto& [begin, end] : known.came)
    one.came.add(begin, std::min(end, size));
  one.bytes = one.came.bytes();
  job_.progress.advance(one.bytes);
  if (!one.came.empty()) return;
  std::error_code ignored;
  fs::remove(part, ignored);
}

// Refuses what the disk has no room for before the first byte. A server can
// claim any size, so the sum may be larger than a number.
uint64_t FetchHere::left_to_fetch() const {
  uint64_t left = 0;
  for (const Arrival& one : arrivals_)
    left = checked_add(left, one.file->bytes - one.bytes).value_or(UINT64_MAX);
  const auto free = io::free_bytes(folder_);
  if (free && left > *free)
    throw Error(ExitCode::kIo, {job_.target, {}},
                fmt::format("{} are left to fetch, and {} are free there",
                            text::iec_size(left), text::iec_size(*free)),
                "make room, or fetch into a directory on another disk");
  return left;
}

// Large pieces first, smaller ones towards the end.
std::vector<Stretch> FetchHere::cut() {
  uint64_t left = left_to_fetch();
  const uint64_t most = std::max(kMostPiece, left / kMostPieces);
  std::vector<Stretch> pieces;
  for (Arrival& one : arrivals_) {
    const Ranges missing = one.came.missing(one.file->bytes);
    if (missing.empty()) pieces.push_back({&one, 0, 0});
    for (const auto& [begin, end] : missing)
      for (uint64_t at = begin; at < end;) {
        const uint64_t share = std::clamp(
            left / kShares / kFetchMiB * kFetchMiB, kLeastPiece, most);
        // Leaves no tiny rest.
        const uint64_t size = end - at < share + share / 2 ? end - at : share;
        pieces.push_back({&one, at, at + size});
        at += size;
        left -= size;
      }
  }
  return pieces;
}

void FetchHere::open(Arrival& one) {
  const std::lock_guard lock(one.mutex);
  if (one.to) return;
  one.from = std::make_unique<const io::Handle>(open_fetched(*one.file));
  const std::string part = part_of(one.name);
  one.to = std::make_shared<const io::Handle>(io::is_file(part)
                                                  ? io::Handle::open_write(part)
                                                  : io::Handle::create(part));
}

// The piece's first `count` bytes are in the file.
void FetchHere::arrived(const Stretch& piece, uint64_t count, uint64_t& told,
                        uint64_t& noted) {
  if (count > told) {
    job_.fetched += count - told;
    job_.progress.advance(count - told);
    told = count;
  }
  if (stopped_) throw Stopped{};
  const Arrival& one = *piece.arrival;
  if (count < noted + kNoted || count == piece.end - piece.begin) return;
  journal_->came(one.name, one.file->tag, piece.begin, piece.begin + count);
  noted = count;
}

void FetchHere::copy(const Stretch& piece) {
  Arrival& one = *piece.arrival;
  const uint64_t size = piece.end - piece.begin;
  uint64_t stands = 0, told = 0, noted = 0;
  const auto note = [&] {
    journal_->came(one.name, one.file->tag, piece.begin, piece.begin + stands);
  };
  const auto look = [&](uint64_t count) {
    stands = count;
    arrived(piece, count, told, noted);
  };
  try {
    const io::RemoteFile* const remote = io::remote_of(*one.from);
    if (!remote)  // in the hub's cache
      copy_steps(*one.from, *one.to, piece, look);
    else if (max_rate() == 0)
      remote->copy(piece.begin, size, one.to, piece.begin, [&](uint64_t count) {
        if (stands == 0 && count > 0) answered();
        look(count);
      });
    else
      fetch_bytes(job_, *one.from, piece.begin, piece.end, piece.end,
                  [&](uint64_t at, std::span<const std::byte> bytes) {
                    one.to->write(at, bytes);
                    told = at + bytes.size() - piece.begin;
                    look(told);
                  });
  } catch (...) {
    note();
    throw;
  }
  if (size < one.file->bytes) note();
}

// Called now and then, so that a machine that loses power does not lose
// everything.
void FetchHere::keep(Arrival& one) {
  Ranges came;
  {
    const std::lock_guard lock(one.mutex);
    if (!job_.sync || one.keeping || one.unkept < kKept) return;
    one.keeping = true;
    one.unkept = 0;
    came = one.came;
  }
  one.to->sync();
  for (const auto& [begin, end] : came)
    journal_->kept(one.name, one.file->tag, begin, end);
  const std::lock_guard lock(one.mutex);
  one.keeping = false;
}

// Adds what has arrived in order to the sum. True for the one thread that finds
// the file complete.
bool FetchHere::add_sum(Arrival& one) {
  const bool wanted = !one.file->sha256.empty();
  std::unique_lock lock(one.mutex);
  if (one.summing || one.ended) return false;
  while (wanted && one.summed < one.came.prefix()) {
    const uint64_t begin = one.summed, end = one.came.prefix();
    one.summing = true;
    lock.unlock();
    read_steps(*one.to, begin, end,
               [&](const auto& bytes) { one.sum.update(bytes); });
    lock.lock();
    one.summed = end;
    one.summing = false;
  }
  if (one.bytes < one.file->bytes) return false;
  return one.ended = true;
}

void FetchHere::end(Arrival& one) {
  const FetchFile& file = *one.file;
  if (!file.sha256.empty()) try {
      check_sum(job_, file, one.sum.hex());
    } catch (const Error&) {
      // No part of it is known to be right.
      one.to.reset();
      std::error_code ignored;
      fs::remove(part_of(one.name), ignored);
      throw;
    }
  if (job_.sync) one.to->sync();
  one.to.reset();
  one.from.reset();
  journal_->whole(one.name, file.tag);
  const std::lock_guard lock(mutex_);
  whole_.push_back(&file);
}

// What is on the way is of the version that was looked at first. Once all of it
// is, whether the source still has that version can be asked meanwhile: a round
// trip less at the end.
void FetchHere::answered() {
  if (--unanswered_ != 0 || job_.files.size() < 2) return;
  try {
    unchanged_ = std::async(std::launch::async, io::watch::check_unchanged);
  } catch (const std::system_error&) {  // no thread: it is asked at the end
  }
}

// Nothing of a source that was replaced on the way gets a name: files of two
// versions, each of them whole, would be a checkpoint that never was. Indexes
// come last.
void FetchHere::place_all() {
  if (unchanged_.valid())
    unchanged_.get();
  else if (job_.files.size() > 1)
    io::watch::check_unchanged();
  std::ranges::stable_sort(
      whole_, {}, [](const FetchFile* file) { return is_index(*file); });
  for (const FetchFile* const file : whole_) place(*file);
  if (!job_.verify) return;
  parallel_for(
      whole_.size(), [&](size_t i) { verify(*whole_[i]); }, kFetchThreads);
}

void FetchHere::place(const FetchFile& file) {
  const std::string path = path_of(file), folder = io::parent(path);
  std::error_code failed;
  {
    const std::lock_guard lock(mutex_);
    if (!folders_.contains(folder)) fs::create_directories(folder, failed);
    if (failed) throw io_error(folder, "cannot make it", failed.value());
    folders_.insert(folder);
  }
  fs::rename(part_of(flat_name(file.path)), path, failed);
  if (failed) throw io_error(path, "cannot rename to it", failed.value());
}

// Checks the file as it is on the disk against the promised sum.
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

void FetchHere::fetch(const Stretch& piece) {
  if (stopped_) return;
  Arrival& one = *piece.arrival;
  try {
    open(one);
    if (piece.begin < piece.end) {
      copy(piece);
      const std::lock_guard lock(one.mutex);
      one.came.add(piece.begin, piece.end);
      one.bytes += piece.end - piece.begin;
      one.unkept += piece.end - piece.begin;
    }
    keep(one);
    if (add_sum(one)) end(one);
  } catch (const Stopped&) {
    return;
  } catch (...) {
    stopped_ = true;
    throw;
  }
}

void FetchHere::run() {
  std::error_code failed;
  const bool is_new = !fs::exists(job_.target, failed);
  const std::string journal = io::join(folder_, "journal");
  refuse_link(folder_);
  refuse_link(journal);
  for (const FetchFile& file : job_.files)
    if (path_of(file).starts_with(folder_ + "/"))
      throw unfaithful_error({text::printable(file.path), {}},
                             "has the name of what a fetch keeps while it "
                             "runs")
          .with_hint("--exclude '.ckpt-fetch/*' leaves it out");
  fs::create_directories(folder_, failed);
  if (failed) throw io_error(folder_, "cannot make it", failed.value());
  const io::TargetLock lock(job_.target);
  journal_ = std::make_unique<FetchJournal>(journal, job_.sync);
  try {
    parallel_for(
        job_.files.size(), [&](size_t i) { look(job_.files[i]); },
        kFetchThreads);
    const std::vector<Stretch> pieces = cut();
    unanswered_ = static_cast<size_t>(std::ranges::count_if(
        pieces, [](const Stretch& one) { return one.begin < one.end; }));
    parallel_for(
        pieces.size(), [&](size_t i) { fetch(pieces[i]); },
        max_rate() == 0 ? kPieces : kFetchThreads);
    place_all();
  } catch (const Interrupted&) {
    throw Interrupted("stopped; what was received is kept in " + folder_ +
                      "; run it again to resume");
  } catch (...) {
    // What says nothing but that a run began would be left over by each of
    // them.
    if (journal_->is_empty()) fs::remove_all(folder_, failed);
    if (is_new) fs::remove(job_.target, failed);  // if nothing is in it
    throw;
  }
  if (job_.sync)
    for (const std::string& folder : folders_) io::sync_directory(folder);
  fs::remove_all(folder_, failed);
}

}  // namespace

void fetch_here(FetchJob& job) { FetchHere(job).run(); }

}  // namespace ckpt::app
