// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/run.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/remove.h"
#include "reshard/cuda/load.h"
#include "reshard/ranks/by_target.h"
#include "reshard/ranks/job.h"
#include "reshard/ranks/share.h"
#include "reshard/ranks/split.h"
#include "reshard/ranks/task.h"
#include "reshard/sources/source_crcs.h"

namespace ckpt::ranks {
namespace {

using reshard::Item;
using reshard::Outcome;
using reshard::Plan;
using reshard::RunOptions;
using reshard::RunResult;

// The sums of all ranks and of earlier runs.
class Total {
 public:
  Total(const Plan& plan, const Catalog& source, reshard::Output& output,
        const RunOptions& options)
      : plan_(plan), output_(output), crcs_(source) {
    if (!options.digest) return;
    result_.source.resize(plan.slots);
    result_.target.resize(plan.tensors.size());
  }

  void add(const Outcome& outcome) {
    for (const auto& [slot, part] : outcome.source)
      result_.source.at(slot) += part;
    for (const auto& [tensor, part] : outcome.target)
      result_.target.at(tensor) += part;
    for (const auto& [tensor, loss] : outcome.losses)
      result_.losses[tensor] += loss;
    for (const reshard::CrcPart& part : outcome.crcs) output_.add_crc(part);
  }
  void add(const Report& report) {
    for (const Sum& sum : report.source)
      result_.source.at(sum.index) += sum.part;
    for (const Sum& sum : report.target)
      result_.target.at(sum.index) += sum.part;
    for (const LossSum& sum : report.losses)
      result_.losses[sum.tensor] += sum.part;
    for (const reshard::CrcPart& part : report.crcs) output_.add_crc(part);
    for (const auto& seen : report.seen) crcs_.add(seen);
    result_.bytes_read += report.bytes_read;
    result_.bytes_written += report.bytes_written;
  }
  RunResult take() {
    for (size_t i = 0; i < result_.target.size(); ++i)
      if (!plan_.tensors[i].casts()) result_.target[i] = result_.source[i];
    return std::move(result_);
  }
  const reshard::SourceCrcs& crcs() const { return crcs_; }

 private:
  const Plan& plan_;
  reshard::Output& output_;
  reshard::SourceCrcs crcs_;
  RunResult result_;
};

// All items except those in a journal, whose sums are added.
std::vector<Item> items_left(const Plan& plan, const reshard::Journal* journal,
                             Total& total) {
  std::vector<Item> items = reshard::cut_items(plan, reshard::kItemBytes);
  if (!journal) return items;
  std::vector<bool> done(items.size());
  for (const Outcome& outcome : journal->done()) {
    if (outcome.item >= items.size() || done[outcome.item])
      throw bug_error({}, "the journal has item {} of {} twice or not at all",
                      outcome.item, items.size());
    done[outcome.item] = true;
    total.add(outcome);
  }
  std::erase_if(items, [&](const Item& item) { return done[item.number]; });
  return items;
}

// True if each rank has its own GPU and they can meet.
bool have_gpus(Job& job) {
  std::set<std::pair<std::string, std::string>> all;
  const std::vector<std::string> names =
      job.run([](uint32_t) { return gpu_task(); }, {}, nullptr);
  for (uint32_t rank = 0; rank < job.size(); ++rank)
    if (!names[rank].empty())
      all.emplace(job.accounts()[rank].host, names[rank]);
  return all.size() == job.size();
}

// Who writes what, and how it gets there; nothing if nothing is sent.
class Post {
 public:
  Post(Job& job, const Site& site, const RunOptions& options) : job_(job) {
    if (!site.target || sharing().mode != Mode::kSend) return;
    mailing_.round = job.next_round();
    mailing_.buffer = exchange_buffer(sharing().buffer, options.max_mem);
    mailing_.owners = owners_of(*site.target, job.size());
    if (options.device && have_gpus(job))
      mailing_.gpus = reshard::CudaPeers::make_id(*options.device);
  }
  Mailing of(uint32_t rank) const {
    Mailing mailing = mailing_;
    mailing.rank = rank;
    if (mailing.round) mailing.away = job_.away_from(rank);
    return mailing;
  }

 private:
  Job& job_;
  Mailing mailing_;
};

void set_options(Share& share, uint32_t rank, const Site& site,
                 const RunOptions& options) {
  share.root = site.root;
  if (rank != 0 && site.target)
    share.journal = fmt::format("{}.{}", site.journal, rank);
  share.work = site.work;
  share.max_mem = options.max_mem - kExchangeSlots * share.mailing.buffer;
  share.block = options.block;
  share.threads = options.threads;
  share.neighbours = current()->neighbours(rank);
  share.io = options.io;  // but not reads_once: ranks of a node share pages
  share.digest = options.digest;
  share.check_crcs = options.check_crcs;
  share.sync = site.sync;
  share.cuda = options.device != nullptr;
  share.count_losses = options.count_losses;
  share.saturate = options.saturate;
}

void account(Account& account, const Report& report) {
  account.bytes_read += report.bytes_read;
  account.bytes_written += report.bytes_written;
  account.bytes_sent += report.bytes_sent;
  account.bytes_received += report.bytes_received;
  account.messages += report.messages;
  account.rounds += report.rounds;
  account.seconds += report.seconds;
}

using Problems = std::vector<std::pair<uint32_t, Problem>>;

// reshard::check_crcs by all ranks: whole records, in order, by bytes.
Problems check_some(Job& job, const Catalog& catalog,
                    const std::vector<uint32_t>& which,
                    const RunOptions& options) {
  if (which.empty()) return {};
  const auto size = [&](uint32_t i) {
    return catalog.crcs[i].end - catalog.crcs[i].begin;
  };
  uint64_t all = 0, given = 0;
  for (const uint32_t i : which) all += size(i);
  std::vector<std::vector<uint32_t>> parts(job.size());
  for (const uint32_t i : which) {
    const unsigned __int128 middle = given + size(i) / 2;
    const auto rank = static_cast<uint32_t>(
        all ? std::min<unsigned __int128>(middle * job.size() / all,
                                          job.size() - 1)
            : 0);
    parts[rank].push_back(i);
    job.accounts()[rank].bytes_read += size(i);
    given += size(i);
  }
  const std::vector<std::string> results = job.run(
      [&](uint32_t rank) { return check_task(catalog, parts[rank], options); },
      options.progress, nullptr);
  Problems found;
  for (const std::string& result : results)
    for (auto& problem : unpack_problems(result))
      found.push_back(std::move(problem));
  return found;
}

// The journals of ranks beside `path`: NAME.1, NAME.2 …
std::vector<std::string> journals_beside(const std::string& path) {
  const std::string root = io::parent(path);
  const std::string begin = io::base_name(path) + ".";
  std::vector<std::string> found;
  for (const std::string& name : io::list_directory(root)) {
    if (!name.starts_with(begin) || name.size() == begin.size()) continue;
    if (name.find_first_not_of("0123456789", begin.size()) == name.npos)
      found.push_back(io::join(root, name));
  }
  return found;
}

}  // namespace

RunResult run(const Plan& plan, const Catalog& source, reshard::Output& output,
              const RunOptions& options, const Site& site) {
  Job* const job = current();
  // An observer is a function of this process.
  if (!job || options.observe)
    return reshard::run(plan, source, output, options);
  RunOptions own = options;
  if (site.target) own.max_mem -= exchange_memory(options.max_mem);
  reshard::buffer_bytes(plan, own);  // refuses too little memory
  Total total(plan, source, output, options);
  std::vector<Item> items = items_left(plan, options.journal, total);
  const bool by_target = site.target && sharing().mode == Mode::kRead;
  ByTarget work;
  if (by_target)
    work = split_by_target(plan, *site.target, items, job->size());
  else
    work.parts = split(plan, source, std::move(items), job->size());
  const Post post(*job, site, options);
  const std::vector<std::string> results = job->run(
      [&](uint32_t rank) {
        Share share = make_share(by_target ? work.plan : plan, source,
                                 site.target, work.parts[rank], post.of(rank));
        set_options(share, rank, site, options);
        // If several ranks read the same bytes, checksums can't be added up on
        // the way: the records are read separately below.
        if (by_target) share.check_crcs = false;
        return run_task(share);
      },
      options.progress, options.journal);
  for (uint32_t rank = 0; rank < job->size(); ++rank) {
    const Report report = unpack_report(results[rank]);
    total.add(report);
    account(job->accounts()[rank], report);
  }
  RunResult result = total.take();
  if (!options.check_crcs) return result;
  result.wrong_crcs = total.crcs().wrong(plan);
  RunOptions again = options;
  again.progress = {};
  for (const auto& [index, problem] :
       check_some(*job, source, total.crcs().unsure(plan), again))
    result.wrong_crcs.push_back(index);
  return result;
}

RunResult add_up(const Plan& plan, const Catalog& source,
                 reshard::Output& output, const RunOptions& options,
                 const std::vector<std::string>& reports) {
  Total total(plan, source, output, options);
  for (const std::string& report : reports) total.add(unpack_report(report));
  return total.take();
}

std::vector<Problem> check_crcs(const Catalog& catalog,
                                const RunOptions& options) {
  Job* const job = current();
  if (!job) return reshard::check_crcs(catalog, options);
  std::vector<uint32_t> all(catalog.crcs.size());
  std::iota(all.begin(), all.end(), 0U);
  return reshard::named_problems(catalog,
                                 check_some(*job, catalog, all, options));
}

void collect_journals(const std::string& path, uint64_t work) {
  const std::vector<std::string> others = journals_beside(path);
  if (others.empty()) return;
  auto main = reshard::Journal::open(path, work);
  if (!main) return;  // from another boot: everything starts over
  std::vector<bool> done;
  const auto is_new = [&](uint32_t item) {
    if (item >= done.size()) done.resize(item + 1);
    const bool fresh = !done[item];
    done[item] = true;
    return fresh;
  };
  for (const Outcome& outcome : main->done()) is_new(outcome.item);
  for (const std::string& other : others) {
    const auto journal = reshard::Journal::open(other, work);
    if (!journal) continue;
    if (journal->is_doubtful() && !main->is_doubtful()) main->doubt();
    for (const Outcome& outcome : journal->done())
      if (is_new(outcome.item)) main->append(outcome);
  }
  main.reset();  // what was appended is now on file
  remove_journals(path);
}

// True if they have more than the header line.
bool has_journals(const std::string& path) {
  constexpr uint64_t kHead = 80;
  try {
    return std::ranges::any_of(journals_beside(path), [](const auto& other) {
      return io::Handle::open_read(other).size() > kHead;
    });
  } catch (const Error&) {
    return false;  // what can't be examined can't be resumed
  }
}

void remove_journals(const std::string& path) {
  for (const std::string& other : journals_beside(path)) io::remove_tree(other);
}

}  // namespace ckpt::ranks
