// SPDX-License-Identifier: Apache-2.0
// Pieces of files arrive in any order, each by a request whose bytes go
// straight into the file. A run that was stopped is resumed from:
//
//   DIR/.ckpt-fetch/journal     what has come (journal.h)
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

#include "api/fetch/fetch.h"
#include "api/fetch/journal.h"
#include "ckpt/box.h"
#include "ckpt/error.h"
#include "lib/hash/sha256.h"
#include "lib/interrupt.h"
#include "lib/io/lock.h"
#include "lib/io/probe.h"
#include "lib/io/remote.h"
#include "lib/io/rename.h"
#include "lib/parallel.h"
#include "lib/session.h"
#include "lib/text/format.h"

namespace ckpt::library {
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
// What a killed process may have fetched in vain of one piece.
constexpr uint64_t kNoted = 16 * kFetchMiB;

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
  return sums::hash_of(io::Handle::open_read(path), sums::Algorithm::kSha256);
}

// A file being fetched.
struct Arrival {
  const FetchFile* file = nullptr;
  std::string name;  // in the journal, and the part's name

  std::mutex mutex;  // guards what follows
  std::unique_ptr<const io::Handle> from;
  std::shared_ptr<const io::Handle> to;
  Ranges came;
  uint64_t bytes = 0;  // that have arrived
  Sha256 sum;
  uint64_t summed = 0;
  bool summing = false;  // a thread is computing the sum
  bool ended = false;
};

struct Stretch {
  Arrival* arrival;
  uint64_t begin, end;
};
// How far it is: its first bytes that stand in the file, and how many of those
// were counted and are in the journal.
struct Progressed {
  uint64_t stands = 0, told = 0, noted = 0;
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
  using Parts = std::vector<FetchJournal::Part>;
  bool is_there(const FetchFile& file, const Parts& known) const;
  void look(const FetchFile& file);
  uint64_t left_to_fetch() const;
  std::vector<Stretch> cut();
  void fetch(const Stretch& piece);
  void open(Arrival& one);
  void copy(const Stretch& piece);
  void note(const Stretch& piece, Progressed& far);
  void arrived(const Stretch& piece, Progressed& far);
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
bool FetchHere::is_there(const FetchFile& file, const Parts& known) const {
  const std::string path = path_of(file);
  const auto size = io::file_size(path);
  if (!size) return false;
  const bool promised = !file.sha256.empty();
  if (*size == file.bytes) {
    if (promised && sum_of_file(path) == file.sha256) return true;
    if (!promised &&
        proven(io::Handle::open_read(path), known).missing(file.bytes).empty())
      return true;
    // Nothing says what it should be: what the server has is read once more.
    if (!promised && !job_.overwrite && same_bytes(job_, file, path))
      return true;
  }
  if (job_.overwrite) return false;
  throw unfaithful_error({path, {}}, "already exists")
      .with_hint(
          std::string(*size == file.bytes
                          ? "it differs from the one that would be fetched: "
                          : "") +
          "fetch into another directory, or replace it with --overwrite");
}

// Finds out how much of the file is already there.
void FetchHere::look(const FetchFile& file) {
  const std::string name = flat_name(file.path);
  // Of a file without versions nobody knows whose bytes they were.
  const bool resumes = file.versioned || !file.sha256.empty();
  const Parts known = resumes ? journal_->known(name, file.tag) : Parts();
  if (is_there(file, known)) {
    job_.progress.advance(file.bytes);
    if (job_.verify) verify(file);
    return;
  }
  const std::string part = part_of(name);
  refuse_link(part);
  Ranges came;
  if (!known.empty() && io::is_file(part))
    came = proven(io::Handle::open_read(part), known);
  if (came.empty()) {
    std::error_code ignored;
    fs::remove(part, ignored);
  }
  const std::lock_guard lock(mutex_);
  Arrival& one = arrivals_.emplace_back();
  one.file = &file;
  one.name = name;
  one.came = std::move(came);
  one.bytes = one.came.bytes();
  job_.progress.advance(one.bytes);
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

// Large ones first, smaller ones towards the end.
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
        // Leaves no tiny rest. One request brings one version.
        const bool whole = !one.file->ranges || !one.file->versioned;
        const uint64_t size =
            whole || end - at < share + share / 2 ? end - at : share;
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

// The bytes are looked at where they lie, while the page cache has them.
void FetchHere::note(const Stretch& piece, Progressed& far) {
  if (far.noted >= far.stands) return;
  const uint64_t begin = piece.begin + far.noted;
  const uint64_t end = piece.begin + far.stands;
  far.noted = far.stands;
  const Arrival& one = *piece.arrival;
  journal_->came(one.name, one.file->tag,
                 {begin, end, digest_of(*one.to, begin, end)});
}

// The piece's first bytes are in the file.
void FetchHere::arrived(const Stretch& piece, Progressed& far) {
  if (far.stands > far.told) {
    job_.fetched += far.stands - far.told;
    job_.progress.advance(far.stands - far.told);
    far.told = far.stands;
  }
  if (stopped_) throw Stopped{};
  if (far.stands >= far.noted + kNoted) note(piece, far);
}

void FetchHere::copy(const Stretch& piece) {
  Arrival& one = *piece.arrival;
  const uint64_t size = piece.end - piece.begin;
  Progressed far;
  const auto look = [&](uint64_t count) {
    if (far.stands == 0 && count > 0) answered();
    far.stands = count;
    arrived(piece, far);
  };
  try {
    const io::RemoteFile* const remote = io::remote_of(*one.from);
    if (!remote)  // in the hub's cache
      copy_steps(*one.from, *one.to, piece, look);
    else if (!job_.paced)
      remote->copy(piece.begin, size, one.to, piece.begin, look);
    else
      fetch_bytes(job_, *one.from, piece.begin, piece.end, piece.end,
                  [&](uint64_t at, std::span<const std::byte> bytes) {
                    one.to->write(at, bytes);
                    far.told = at + bytes.size() - piece.begin;
                    look(far.told);
                  });
  } catch (...) {
    note(piece, far);
    throw;
  }
  note(piece, far);
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
  try {
    if (!file.sha256.empty()) check_sum(job_, file, one.sum.hex());
    for (const sums::Sum& sum : file.sums)
      check_listed(job_, file, sum,
                   sums::hash_of(io::Handle::open_read(part_of(one.name)),
                                 sum.algorithm, sum.begin));
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
  const std::lock_guard lock(mutex_);
  whole_.push_back(&file);
}

// What is on the way is of the version that was looked at first. Once all of it
// is, whether the source still has that version can be asked meanwhile: a round
// trip less at the end.
void FetchHere::answered() {
  if (--unanswered_ != 0 || job_.files.size() < 2) return;
  try {
    unchanged_ = std::async(std::launch::async, in_session([] {
                              Session::current()->watch.check_unchanged();
                            }));
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
    Session::current()->watch.check_unchanged();
  // It says of what has its name already that it came from here.
  if (job_.sync) journal_->sync();
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
    }
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
  Session::current()->watch.ignore_below(folder_);
  journal_ = std::make_unique<FetchJournal>(journal);
  try {
    parallel_for(
        job_.files.size(), [&](size_t i) { look(job_.files[i]); },
        kFetchThreads);
    const std::vector<Stretch> pieces = cut();
    unanswered_ = static_cast<size_t>(std::ranges::count_if(
        pieces, [](const Stretch& one) { return one.begin < one.end; }));
    parallel_for(
        pieces.size(), [&](size_t i) { fetch(pieces[i]); },
        job_.paced ? kFetchThreads : kPieces);
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

}  // namespace ckpt::library
