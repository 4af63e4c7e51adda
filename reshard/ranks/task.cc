#include "reshard/ranks/task.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <thread>

#include "lib/interrupt.h"
#include "lib/io/staging.h"
#include "reshard/cast.h"
#include "reshard/engine.h"
#include "reshard/ranks/pack.h"

namespace ckpt::ranks {
namespace {

enum class Kind : uint8_t { kRun, kCheck };
enum class Failed : uint8_t { kStopped, kInterrupted, kError };

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
  return std::max(
      1U, std::thread::hardware_concurrency() / std::max(1U, share.neighbours));
}

reshard::RunOptions options_of(const Share& share, Control& control) {
  reshard::RunOptions options;
  options.threads = threads_of(share);
  options.max_mem = share.max_mem;
  options.block = share.block;
  options.digest = share.digest;
  options.progress = progress_of(control);
  for (const reshard::PlannedTensor& tensor : share.plan.tensors) {
    if (!tensor.casts()) continue;
    options.cast = reshard::Caster();
    break;
  }
  return options;
}

// Another machine's disk cache is not flushed by the rank that publishes.
void flush_files(const Share& share) {
  for (const TargetFile& file : share.target.files)
    if (!file.path.empty())
      io::Handle::open_write(io::join(share.root, file.path)).sync();
}

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
  out.list(report.crcs);
  out.list(report.seen);
  out.put(report.bytes_read);
  out.put(report.bytes_written);
  out.put(report.items);
  out.put(report.seconds);
  return out.take();
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
  options.journal = own ? &*own : journal;
  reshard::SourceCrcs crcs(share.source);
  const reshard::Part part{share.items, share.check_crcs ? &crcs : nullptr};
  options.part = &part;
  const bool writes = !share.target.files.empty();
  reshard::Output output;
  if (writes) output = reshard::Output(share.target, share.root);
  const reshard::RunResult result =
      reshard::run(share.plan, share.source, output, options);
  if (writes && share.sync && own) flush_files(share);

  Report report;
  report.source = sums_of(result.source);
  for (const Sum& sum : sums_of(result.target))
    if (share.plan.tensors[sum.index].casts()) report.target.push_back(sum);
  report.crcs = output.crc_parts();
  report.seen = crcs.seen();
  for (auto& seen : report.seen) seen.index = share.crcs.at(seen.index);
  report.bytes_read = result.bytes_read;
  report.bytes_written = result.bytes_written;
  report.items = own ? own->items() : 0;
  report.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  return report;
}

std::string check(Unpacker in, Control& control) {
  Catalog catalog;
  std::deque<std::string> memory;
  take_source(in, catalog, memory);
  for (StoredCrc& stored : catalog.crcs) stored.record = in.text();
  const auto which = in.list<uint32_t>();
  reshard::RunOptions options;
  options.threads = in.take<uint32_t>();
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

std::string failure(Failed how, int code, const Where& where = {},
                    const std::string& problem = {},
                    const std::string& hint = {}) {
  Packer out;
  out.put(how);
  out.put(int32_t{code});
  for (const std::string* text : {&where.path, &where.tensor, &problem, &hint})
    out.text(*text);
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
  std::deque<std::string> memory;
  for (const uint32_t i : which) {
    StoredCrc stored = catalog.crcs.at(i);
    uint32_t& file = files.at(stored.file);
    if (file == reshard::kNone) {
      file = static_cast<uint32_t>(part.files.size());
      part.files.push_back(catalog.files[stored.file]);
      if (const File& whole = part.files.back(); whole.codec == Codec::kMemory)
        memory.emplace_back(reinterpret_cast<const char*>(whole.memory),
                            whole.memory ? whole.size : 0);
    }
    stored.file = file;
    part.crcs.push_back(std::move(stored));
  }
  Packer out;
  out.put(Kind::kCheck);
  put_source(out, part, memory);
  for (const StoredCrc& stored : part.crcs) out.text(stored.record);
  out.list(which);
  out.put(options.threads);
  return out.take();
}

std::string perform(std::string_view task, Control& control,
                    reshard::Journal* journal) {
  if (task.empty()) throw bug_error({}, "a task without a kind");
  const auto kind = static_cast<Kind>(task.front());
  task.remove_prefix(1);
  if (kind == Kind::kCheck) return check(Unpacker(task), control);
  return pack_report(run_share(unpack_share(task), control, journal));
}

Report unpack_report(std::string_view bytes) {
  Unpacker in(bytes);
  Report report;
  report.source = in.list<Sum>();
  report.target = in.list<Sum>();
  report.crcs = in.list<reshard::CrcPart>();
  report.seen = in.list<reshard::SourceCrcs::Seen>();
  report.bytes_read = in.take<uint64_t>();
  report.bytes_written = in.take<uint64_t>();
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

std::string pack_failure(std::exception_ptr caught) {
  const auto code = [](ExitCode exit) { return static_cast<int>(exit); };
  try {
    std::rethrow_exception(caught);
  } catch (const Stopped&) {
    return failure(Failed::kStopped, 0);
  } catch (const Interrupted& stop) {
    return failure(Failed::kInterrupted, stop.signal(), {}, stop.what());
  } catch (const Error& error) {
    return failure(Failed::kError, code(error.code()), error.where(),
                   error.problem(), error.hint());
  } catch (const std::bad_alloc&) {
    return failure(Failed::kError, code(ExitCode::kResource), {},
                   "out of memory",
                   "a smaller --max-mem, fewer --threads or fewer ranks on a "
                   "machine need less");
  } catch (const std::exception& error) {
    return failure(Failed::kError, code(ExitCode::kBug), {},
                   std::string("internal: ") + error.what());
  } catch (...) {
    return failure(Failed::kError, code(ExitCode::kBug), {},
                   "internal: an exception of unknown type");
  }
}

bool is_stopped(std::string_view bytes) {
  return Unpacker(bytes).take<Failed>() == Failed::kStopped;
}

void throw_failure(std::string_view bytes, const std::string& by) {
  Unpacker in(bytes);
  const auto how = in.take<Failed>();
  const auto code = static_cast<ExitCode>(in.take<int32_t>());
  Where where;
  where.path = in.text();
  where.tensor = in.text();
  std::string problem = in.text();
  std::string hint = in.text();
  if (how != Failed::kError) throw Interrupted(problem);
  if (!by.empty()) problem += " [" + by + "]";
  throw Error(code, std::move(where), std::move(problem), std::move(hint));
}

}  // namespace ckpt::ranks
