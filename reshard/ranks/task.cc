// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/task.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include "lib/io/staging.h"
#include "lib/processors.h"
#include "reshard/cuda/load.h"
#include "reshard/engine.h"
#include "reshard/numbers/cast.h"
#include "reshard/ranks/exchange.h"
#include "reshard/ranks/pack.h"
#include "reshard/run/behind.h"

namespace ckpt::ranks {
namespace {

enum class Kind : uint8_t { kRun, kCheck, kGpu };

Progress progress_of(Control& control) {
  Progress progress;
  progress.on_advance = [&control](uint64_t bytes) {
    if (control.stopped) throw Stopped{};
    control.bytes += bytes;
  };
  return progress;
}

uint32_t threads_of(const Share& share) {
  if (share.threads) return share.threads;
  return std::max(1U, processors() / std::max(1U, share.neighbours));
}

reshard::RunOptions options_of(const Share& share, Control& control) {
  reshard::RunOptions options;
  options.threads = threads_of(share);
  options.max_mem = share.max_mem;
  options.block = share.block;
  options.io = share.io;
  options.digest = share.digest;
  options.count_losses = share.count_losses;
  options.saturate = share.saturate;
  options.progress = progress_of(control);
  if (share.cuda) options.device = &reshard::CudaModule::get();
  for (const reshard::PlannedTensor& tensor : share.plan.tensors) {
    if (!tensor.casts()) continue;
    options.cast = reshard::Caster();
    break;
  }
  return options;
}

bool writes_itself(const Share& share, uint32_t file) {
  return !share.target.files[file].path.empty() &&
         (share.mailing.round == 0 ||
          share.mailing.owners[file] == share.mailing.rank);
}

// The rank that publishes does not flush another machine's disk cache.
void flush_files(const Share& share) {
  for (uint32_t f = 0; f < share.target.files.size(); ++f)
    if (writes_itself(share, f))
      io::Handle::open_write(io::join(share.root, share.target.files[f].path))
          .sync();
}

Exchange::Setup exchange_setup(const Share& share, Control& control) {
  Exchange::Setup setup;
  setup.rank = share.mailing.rank;
  setup.owners = share.mailing.owners;
  setup.in.round = share.mailing.round;
  setup.buffer = share.mailing.buffer;
  setup.gpus = share.mailing.gpus;
  setup.in.away.assign(share.mailing.away.begin(), share.mailing.away.end());
  setup.in.sync = share.sync;
  setup.in.on_failure = [&control] {
    control.stopped = true;
    control.exchange->stop();
  };
  uint64_t bytes = 0;
  setup.in.files.resize(share.target.files.size());
  for (uint32_t f = 0; f < share.target.files.size(); ++f) {
    if (!writes_itself(share, f)) continue;
    const TargetFile& file = share.target.files[f];
    setup.in.files[f] = {io::join(share.root, file.path), file.size};
    bytes += file.size;
  }
  setup.in.behind = bytes > reshard::memory_bytes() / 2;
  return setup;
}

// The exchange of a task that sends, open while the task runs. A failure of the
// thread that writes for others stops them here.
class Sending {
 public:
  Sending(const Share& share, Control& control) : exchange_(control.exchange) {
    if (share.mailing.round == 0) exchange_ = nullptr;
    if (exchange_) exchange_->open(exchange_setup(share, control));
  }
  ~Sending() {
    if (exchange_) exchange_->end();
  }
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;
  Exchange* exchange() { return exchange_; }
  // Rethrows why the task was stopped, if that is known here.
  void rethrow_failure() {
    if (!exchange_) return;
    if (const auto why = exchange_->end()) std::rethrow_exception(why);
  }

 private:
  Exchange* exchange_;
};

std::vector<Sum> sums_of(const std::vector<Digest>& all) {
  std::vector<Sum> sums;
  for (uint32_t i = 0; i < all.size(); ++i)
    if (all[i] != Digest{}) sums.push_back({i, all[i]});
  return sums;
}

std::string pack_report(const Report& report) {
  Packer out;
  out.list(report.source);
  out.list(report.target);
  out.list(report.losses);
  out.list(report.crcs);
  out.list(report.seen);
  out.put(report.bytes_read);
  out.put(report.bytes_written);
  out.put(report.bytes_sent);
  out.put(report.bytes_received);
  out.put(report.messages);
  out.put(report.rounds);
  out.put(report.items);
  out.put(report.seconds);
  return out.take();
}

// CRCs are numbered within the share; everything else refers to the whole.
void renumber(const Share& share, std::vector<reshard::CrcPart>& parts) {
  for (reshard::CrcPart& part : parts)
    part.index = share.target_crcs.at(part.file).at(part.index);
}

// Where finished items go: into the journal, once nothing of them is in
// progress.
std::function<void(const reshard::Outcome&)> keep_in(reshard::Journal* journal,
                                                     const Share& share,
                                                     Exchange* exchange) {
  if (!journal) return [](const reshard::Outcome&) {};
  return [journal, &share, exchange](const reshard::Outcome& outcome) {
    reshard::Outcome whole = outcome;
    renumber(share, whole.crcs);
    if (!exchange) return journal->append(whole);
    exchange->when_written(
        [journal, whole = std::move(whole)] { journal->append(whole); });
  };
}

Report report_of(const Share& share, const reshard::RunResult& result,
                 const reshard::Output& output,
                 const reshard::SourceCrcs& crcs) {
  Report report;
  report.source = sums_of(result.source);
  for (const Sum& sum : sums_of(result.target))
    if (share.plan.tensors[sum.index].casts()) report.target.push_back(sum);
  for (const auto& [tensor, loss] : result.losses)
    report.losses.push_back({tensor, loss});
  report.crcs = output.crc_parts();
  renumber(share, report.crcs);
  report.seen = crcs.seen();
  for (auto& seen : report.seen) seen.index = share.crcs.at(seen.index);
  report.bytes_read = result.bytes_read;
  report.bytes_written = result.bytes_written;
  return report;
}

void add_traffic(const Exchange& exchange, Report& report) {
  const Exchange::Traffic traffic = exchange.traffic();
  report.bytes_sent = traffic.sent;
  report.bytes_received = traffic.received;
  report.messages = traffic.messages;
  report.rounds = traffic.rounds;
  report.bytes_written += traffic.received - traffic.sent;
}

// Runs the engine on the share's items, then takes what others have for this
// rank.
reshard::RunResult move_bytes(const Share& share, Control& control,
                              reshard::Output& output,
                              reshard::RunOptions& options, reshard::Part& part,
                              reshard::Journal* journal, Report& traffic) {
  Sending sending(share, control);
  Exchange* const exchange = sending.exchange();
  if (exchange) output.send_by(*exchange);
  part.finished = keep_in(journal, share, exchange);
  try {
    reshard::RunResult result =
        reshard::run(share.plan, share.source, output, options);
    if (!exchange) return result;
    exchange->finish();
    add_traffic(*exchange, traffic);
    return result;
  } catch (const Stopped&) {
    sending.rethrow_failure();
    throw;
  }
}

Report run_share(const Share& share, Control& control,
                 reshard::Journal* journal) {
  const auto begin = std::chrono::steady_clock::now();
  reshard::RunOptions options = options_of(share, control);
  std::optional<io::Handle> lock;
  std::optional<reshard::Journal> own;
  if (!share.journal.empty()) {
    lock = io::join_staging(share.root);
    own.emplace(reshard::Journal::create(share.journal, share.work));
  }
  reshard::SourceCrcs crcs(share.source);
  reshard::Part part{share.items, share.check_crcs ? &crcs : nullptr, {}};
  options.part = &part;
  const bool writes = !share.target.files.empty();
  reshard::Output output;
  if (writes) output = reshard::Output(share.target, share.root);
  Report traffic;
  const reshard::RunResult result = move_bytes(
      share, control, output, options, part, own ? &*own : journal, traffic);
  if (writes && share.sync && own) flush_files(share);

  Report report = report_of(share, result, output, crcs);
  report.bytes_sent = traffic.bytes_sent;
  report.bytes_received = traffic.bytes_received;
  report.messages = traffic.messages;
  report.rounds = traffic.rounds;
  report.bytes_written += traffic.bytes_written;
  report.items = own ? own->items() : 0;
  report.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  return report;
}

std::string check(Unpacker in, Control& control) {
  Catalog catalog;
  Kept kept;
  take_source(in, catalog, kept);
  for (StoredCrc& stored : catalog.crcs) stored.record = in.text();
  const auto which = in.list<uint32_t>();
  reshard::RunOptions options;
  options.threads = in.take<uint32_t>();
  options.max_mem = in.take<uint64_t>();
  options.io = in.take<ReadMode>();
  options.progress = progress_of(control);
  std::vector<uint32_t> all(catalog.crcs.size());
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  const auto problems = reshard::check_crcs(catalog, all, options);
  Packer out;
  out.put(uint64_t{problems.size()});
  for (const auto& [index, problem] : problems) {
    out.put(which.at(index));
    out.put(problem.severity);
    for (const std::string* text :
         {&problem.kind, &problem.file, &problem.tensor, &problem.message})
      out.text(*text);
  }
  return out.take();
}

}  // namespace

std::string run_task(const Share& share) {
  return std::string(1, static_cast<char>(Kind::kRun)) + pack(share);
}

std::string check_task(const Catalog& catalog,
                       const std::vector<uint32_t>& which,
                       const reshard::RunOptions& options) {
  Catalog part;
  std::vector<uint32_t> files(catalog.files.size(), reshard::kNone);
  for (const uint32_t i : which) {
    StoredCrc stored = catalog.crcs.at(i);
    uint32_t& file = files.at(stored.file);
    if (file == reshard::kNone) {
      file = static_cast<uint32_t>(part.files.size());
      part.files.push_back(catalog.files[stored.file]);
    }
    stored.file = file;
    part.crcs.push_back(std::move(stored));
  }
  Packer out;
  out.put(Kind::kCheck);
  put_source(out, part);
  for (const StoredCrc& stored : part.crcs) out.text(stored.record);
  out.list(which);
  out.put(options.threads);
  out.put(options.max_mem);
  out.put(options.io);
  return out.take();
}

std::string gpu_task() { return std::string(1, static_cast<char>(Kind::kGpu)); }

std::string perform(std::string_view task, Control& control,
                    reshard::Journal* journal) {
  if (task.empty()) throw bug_error({}, "a task without a kind");
  const auto kind = static_cast<Kind>(task.front());
  task.remove_prefix(1);
  if (kind == Kind::kCheck) return check(Unpacker(task), control);
  if (kind == Kind::kGpu) return reshard::CudaModule::get().meeting_name();
  return pack_report(run_share(unpack_share(task), control, journal));
}

std::string perform_share(const Share& share, Control& control) {
  return pack_report(run_share(share, control, nullptr));
}

Report unpack_report(std::string_view bytes) {
  Unpacker in(bytes);
  Report report;
  report.source = in.list<Sum>();
  report.target = in.list<Sum>();
  report.losses = in.list<LossSum>();
  report.crcs = in.list<reshard::CrcPart>();
  report.seen = in.list<reshard::SourceCrcs::Seen>();
  report.bytes_read = in.take<uint64_t>();
  report.bytes_written = in.take<uint64_t>();
  report.bytes_sent = in.take<uint64_t>();
  report.bytes_received = in.take<uint64_t>();
  report.messages = in.take<uint64_t>();
  report.rounds = in.take<uint64_t>();
  report.items = in.take<uint64_t>();
  report.seconds = in.take<double>();
  return report;
}

std::vector<std::pair<uint32_t, Problem>> unpack_problems(
    std::string_view bytes) {
  Unpacker in(bytes);
  std::vector<std::pair<uint32_t, Problem>> problems(in.count(37));
  for (auto& [index, problem] : problems) {
    index = in.take<uint32_t>();
    problem.severity = in.take<Problem::Severity>();
    for (std::string* text :
         {&problem.kind, &problem.file, &problem.tensor, &problem.message})
      *text = in.text();
  }
  return problems;
}

}  // namespace ckpt::ranks
