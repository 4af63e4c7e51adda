// SPDX-License-Identifier: Apache-2.0
#include "api/write/write.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <new>
#include <string_view>
#include <vector>

#include "api/contents.h"
#include "api/rank_part.h"
#include "api/write/config_name.h"
#include "api/write/decoded.h"
#include "api/write/file_names.h"
#include "api/write/losses.h"
#include "api/write/manifests.h"
#include "api/write/replace.h"
#include "api/write/resume.h"
#include "api/write/sending.h"
#include "api/write/unproven.h"
#include "api/write/write_steps.h"
#include "containers/assume.h"
#include "containers/hf/hf.h"
#include "convert/quantized/dequantize.h"
#include "convert/quantized/quantized.h"
#include "formats/beside.h"
#include "formats/format.h"
#include "formats/loose_files.h"
#include "formats/meant.h"
#include "formats/options.h"
#include "formats/rank_rules.h"
#include "formats/scan/unknown.h"
#include "lib/decoding.h"
#include "lib/interrupt.h"
#include "lib/io/ahead.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/io/staging.h"
#include "lib/io/upload.h"
#include "lib/session.h"
#include "lib/text/shell.h"
#include "lib/trace.h"
#include "lib/unruled.h"
#include "reshard/numbers/cast.h"
#include "reshard/plan/planner.h"
#include "reshard/prove/prove.h"
#include "reshard/ranks/job.h"
#include "reshard/ranks/run.h"
#include "reshard/run/journal.h"
#include "reshard/run/parts.h"
#include "reshard/sources/made.h"

namespace ckpt::library {
namespace {

bool is_cast(const Tensor& tensor) {
  const bool wide = tensor.dtype == DType::f64 || tensor.dtype == DType::f32 ||
                    tensor.dtype == DType::f16 || tensor.dtype == DType::bf16;
  return (wide || families::is_small_float(tensor.dtype)) &&
         tensor.kind != Kind::optim;
}

// Gives the tensors the target's dtypes, for the writer to see; returns the
// stored ones. (Copying a catalog of millions of pieces would cost more than
// everything else.)
std::vector<DType> set_dtypes(Catalog& source, std::optional<DType> dtype) {
  std::vector<DType> stored;
  stored.reserve(source.tensors.size());
  for (const Tensor& tensor : source.tensors) stored.push_back(tensor.dtype);
  for (Tensor& tensor : source.tensors) {
    if (tensor.pinned)
      tensor.dtype = *tensor.pinned;
    else if (dtype && is_cast(tensor))
      tensor.dtype = *dtype;
  }
  if (!dtype) return stored;
  const auto kept = std::ranges::count_if(
      source.tensors, [](const Tensor& t) { return t.kind == Kind::optim; });
  if (kept)
    source.assumptions.push_back(fmt::format(
        "--dtype {}: the {} tensors of optimizer state keep their dtype",
        name(*dtype), kept));
  return stored;
}

// A state dict of NumPy's arrays has values alone: what holds tensors only
// would be whole, and empty.
void check_not_all_left(const Catalog& source, const Target& target) {
  if (!target.catalog.tensors.empty()) return;
  const auto left =
      std::ranges::find_if(target.problems, [](const Problem& problem) {
        return problem.kind == "object_left_out" &&
               problem.severity != Problem::Severity::kNote;
      });
  if (left == target.problems.end()) return;
  throw unfaithful_error({source.path, left->tensor},
                         "has no tensors, and {} of its values would be left "
                         "out: nothing of them would be there",
                         source.objects.size())
      .with_hint(fmt::format(
          "ckpt inspect {} --objects shows them; arrays of NumPy are tensors "
          "once they were saved as torch.from_numpy(array)",
          text::shell_path(source.path)));
}

// Reports what a review found together with what the writer did: it is about
// the target.
void tell_review(const Catalog& source, size_t problems, size_t assumptions,
                 Target& target) {
  const auto from = [](const auto& all, size_t first) {
    return all.begin() + static_cast<ptrdiff_t>(std::min(first, all.size()));
  };
  target.problems.insert(target.problems.begin(),
                         from(source.problems, problems),
                         source.problems.end());
  target.assumptions.insert(target.assumptions.begin(),
                            from(source.assumptions, assumptions),
                            source.assumptions.end());
}

// Writes as literals the sidecars that no file holds.
void write_sidecars(const Catalog& source, Target& target) {
  for (const Sidecar& sidecar : source.sidecars) {
    if (!sidecar.text) continue;
    for (TargetFile& file : target.files) {
      if (file.copy_of != sidecar.path) continue;
      file.copy_of.clear();
      file.literals = {{0, *sidecar.text}};
    }
  }
}

void check_topology(const Topology& asked, const Target& target) {
  const Topology& is = target.catalog.topology;
  if (is == asked) return;
  std::vector<std::string_view> odd;
  if (is.tp != asked.tp) odd.emplace_back("--tp");
  if (is.pp != asked.pp) odd.emplace_back("--pp");
  if (is.dp != asked.dp) odd.emplace_back("--dp");
  if (is.ep != asked.ep) odd.emplace_back("--ep");
  throw unfaithful_error({}, "format {} can't hold {}: it would be {}",
                         target.catalog.format, to_string(asked), to_string(is))
      .with_hint(fmt::format(
          "leave {} out, or `ckpt convert SRC DST --to FORMAT`: Megatron's "
          "formats have ranks of all kinds, fairseq2 all but --ep",
          fmt::join(odd, " and ")));
}

void copy_sidecar(const TargetFile& file, const std::string& root) {
  const io::Handle from = io::Handle::open_read(file.copy_of);
  if (from.size() != file.size)
    throw input_error({file.copy_of, {}},
                      "changed its size while it was copied: {} bytes, then {}",
                      file.size, from.size());
  const io::Handle to = io::Handle::open_write(io::join(root, file.path));
  io::copy_range(from, 0, to, 0, file.size);
}

reshard::RunResult fill(Prepared& prepared, io::Staging& staging,
                        reshard::Journal& journal, uint64_t work,
                        const SaveOptions& options, const Progress& progress) {
  Target& target = prepared.target;
  reshard::RunOptions run = run_options(prepared, options);
  run.progress = progress;
  run.journal = &journal;
  // A manifest tells what is unproven; without one nobody asks.
  run.check_crcs = !options.ignore_checksums || options.manifest;
  leave_room(prepared.source, run);
  run.digest = wants_sums(prepared, options) || !prepared.plan.replicas.empty();
  const auto sending = Sending::begin(prepared, staging);
  prove_journal(prepared, staging, sending.get(), journal, options, run);
  reshard::Output output(target, staging.root());
  if (sending) {
    write_rest(prepared, output, staging.root(), true);
    sending->follow(output, run);
  }
  progress.begin("copying", prepared.plan.bytes_read);
  staging.share_lock();  // shared with the other ranks
  const reshard::RunResult result =
      ranks::run(prepared.plan, prepared.source, output, run,
                 {.target = &target,
                  .root = staging.root(),
                  .journal = staging.journal_path(),
                  .work = work,
                  .sync = options.sync});
  check_losses(prepared.path, prepared.plan, result, options.overflow);
  check_read(prepared, result, run, options);
  std::vector<const TargetFile*> copies;
  std::vector<std::string> paths;
  for (const TargetFile& file : target.files) {
    if (file.copy_of.empty()) continue;
    copies.push_back(&file);
    paths.push_back(file.copy_of);
  }
  io::FilesAhead ahead(std::move(paths));
  for (size_t i = 0; i < copies.size(); ++i) {
    ahead.reach(i);
    check_copied(prepared, *copies[i], options, [&] {
      check_stored_crcs(io::Handle::open_read(copies[i]->copy_of));
    });
    copy_sidecar(*copies[i], staging.root());
  }
  for (const TargetFile& file : target.files)
    if (!file.carried.empty())
      check_copied(prepared, file, options,
                   [&] { check_carried(prepared.source, file); });
  // Possibly for the second time: files that are not sent in parts lack CRCs.
  write_rest(prepared, output, staging.root(), !sending);
  progress.end();
  return result;
}

// Watches every file that the target is made from, including what other ranks
// read.
void watch_source(const Prepared& prepared, const std::string& staging) {
  std::vector<std::string> paths;
  for (const File& file : prepared.source.files)
    if (file.codec != Codec::kMemory && file.codec != Codec::kFill)
      paths.push_back(file.path);
  for (const TargetFile& file : prepared.target.files)
    if (!file.copy_of.empty()) paths.push_back(file.copy_of);
  std::ranges::sort(paths);
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  io::Watch& watch = Session::current()->watch;
  watch.begin();
  watch.ignore_below(staging);
  watch.ignore_below(prepared.path);
  watch.add(paths);
}

// Which work this is. Of whole files (Prepared::known), those that the run
// itself made are known by the content in their names.
uint64_t work_of(const Prepared& prepared) {
  if (!prepared.known)
    return reshard::fingerprint(prepared.plan, prepared.source,
                                prepared.target);
  Catalog others;
  for (size_t f = 0; f < prepared.source.files.size(); ++f)
    if (prepared.source.tensors[f].name.find('\0') == std::string::npos)
      others.files.push_back(prepared.source.files[f]);
  return reshard::fingerprint(prepared.plan, others, prepared.target);
}

struct WatchEnd {
  ~WatchEnd() { Session::current()->watch.end(); }
};

// What is made of numbers and scales as it is read is found by its pieces.
bool has_made_files(const Catalog& source) {
  return std::ranges::any_of(source.files, [](const File& file) {
    return is_decoded(file) || reshard::is_made(file);
  });
}

}  // namespace

uint64_t Prepared::file_bytes() const {
  uint64_t bytes = 0;
  for (const TargetFile& file : target.files) bytes += file.size;
  return bytes;
}

namespace {

constexpr char kLostLayers[] = "lost_layers";

bool has_lost_layers(const Problem& problem) {
  return problem.kind == kLostLayers &&
         problem.severity == Problem::Severity::kDamage;
}

// Refuses what would be written as a model of fewer layers that looks whole.
void check_layers(const Catalog& source) {
  const auto found = std::ranges::find_if(source.problems, has_lost_layers);
  if (found == source.problems.end()) return;
  throw unfaithful_error({source.path, {}}, "{}", found->message)
      .with_hint(
          "take a checkpoint that was saved with one pipeline stage; --keys "
          "'*' writes the layers that are here");
}

// Its headers are there, and its tensors are zeros as far as they are not.
void refuse_unfinished(const Catalog& source) {
  const auto found = std::ranges::find(
      source.problems, formats::kUnfinishedFile, &Problem::kind);
  if (found == source.problems.end()) return;
  throw input_error({found->file, {}}, "{}", found->message)
      .with_hint(
          "if the file is whole all the same (its checksum says so), remove "
          "what lies beside it");
}

// A format that splits any tensors over ranks gets the rules that no reader
// gave from the dialect of the names.
void add_rules_of_names(const Layout& layout, const formats::Traits& target,
                        Catalog& source) {
  if (layout.topology.tp <= 1 || !target.any_tensors || target.is_container ||
      !formats::lacks_rank_rules(source))
    return;
  library::add_rank_rules(source, layout.topology.tp);
}

}  // namespace

void accept_lost_layers(Catalog& source) {
  for (Problem& problem : source.problems)
    if (has_lost_layers(problem))
      problem.severity = Problem::Severity::kWarning;
}

Prepared prepare(Catalog source, Layout layout, const std::string& path,
                 const SaveOptions& options, Use use, const PlanSeen& seen) {
  const formats::Format& format = formats::find_format(layout.format);
  if (!format.writer)
    throw unfaithful_error({}, "format {} can be read, not written",
                           layout.format)
        .with_hint(formats::written_instead(layout.format));
  formats::check_options(layout);
  const Topology& grid = layout.topology;
  if (grid.tp == 0 || grid.pp == 0 || grid.dp == 0 || grid.ep == 0)
    throw usage_error({}, "a topology of no ranks ({})", to_string(grid));
  if (path.empty()) throw usage_error({}, "the target has no path");
  check_layers(source);
  refuse_unfinished(source);
  refuse_row_order(source);
  layout.name = io::base_name(path);
  const size_t problems = source.problems.size();
  const size_t assumptions = source.assumptions.size();
  warn_of_main_weights(source, options);
  if (options.dtype && families::may_be_quantized(source)) {
    locate(source);
    families::dequantize(source, *options.dtype);
  }
  if (options.dtype)
    // Decoded already; a GGUF target would keep the blocks.
    for (Tensor& tensor : source.tensors)
      if (blocks_of(tensor, source)) tensor.pinned = options.dtype;
  source = format.writer->review(std::move(source), layout);
  Prepared prepared;
  prepared.path = path;
  prepared.shown_only = use == Use::kShow;
  prepared.in_place = use != Use::kRun && !has_made_files(source);
  if (prepared.shown_only)
    prepared.assumed = formats::assume_places(source);
  else
    locate(source);
  if (format.writer->wants_objects()) load_objects(source);
  add_rules_of_names(layout, format.traits, source);
  if (!options.keep_unknown_globals) scan::leave_out_unknown(source);
  if (options.dtype) {
    families::prepare_cast(source, *options.dtype);
    // DCP has no configuration, but often there is one beside it.
    const formats::Traits& from = formats::traits_of(source.format);
    formats::set_config_dtype(source, *options.dtype,
                              from.any_tensors && !from.is_container);
  }
  const std::vector<DType> stored = set_dtypes(source, options.dtype);
  prepared.target = format.writer->lay_out(source, layout);
  for (size_t i = 0; i < stored.size(); ++i)
    source.tensors[i].dtype = stored[i];
  // They were made from the source's; their pieces are counted in their own
  // shapes.
  for (Tensor& tensor : prepared.target.catalog.tensors) tensor.grid = {};
  formats::settle_files(source, prepared.target);
  write_sidecars(source, prepared.target);
  name_config(source, prepared.target);
  check_file_names(prepared.target);
  tell_review(source, problems, assumptions, prepared.target);
  if (!options.keep_unknown_globals)
    scan::check_unknown(source, prepared.target);
  check_topology(layout.topology, prepared.target);
  if (prepared.target.files.empty())
    throw unfaithful_error({source.path, {}}, "there is nothing to write");
  check_not_all_left(source, prepared.target);
  {
    const trace::Span span("plan");
    make_plan(source, prepared, options, seen);
  }
  prepared.source = std::move(source);
  prepared.single_file = prepared.target.files.front().path.empty();
  return prepared;
}

void prove(const Prepared& prepared, const SaveOptions& options,
           const Progress& progress) {
  reshard::RunOptions run = limits(prepared, options);
  run.progress = progress;
  reshard::prove_claims(prepared.source, run);
  reshard::prove_redundant(prepared.source, run);
}

reshard::RunOptions run_options(const Prepared& prepared,
                                const SaveOptions& options) {
  reshard::RunOptions run = writing(prepared, options);
  for (const reshard::PlannedTensor& tensor : prepared.plan.tensors) {
    if (!tensor.casts()) continue;
    const reshard::Caster caster;
    caster.check(tensor.source_dtype, tensor.target_dtype, tensor.name);
    run.cast = caster;
    check_overflow(tensor, options.overflow);
    run.count_losses = true;
    run.saturate = options.overflow == Overflow::kSaturate;
  }
  return run;
}

void check_target(const Prepared& prepared, const SaveOptions& options) {
  check_place(prepared.path, {prepared.source.path, prepared.source.root});
  io::Staging::check(prepared.path, staging_options(prepared, options));
  if (options.overwrite) check_replaceable(prepared);
  check_beside(prepared, options);
}

SaveOptions told_outside(SaveOptions options) {
  options.progress = outside(std::move(options.progress));
  options.note = outside(std::move(options.note));
  options.naming.note = outside(std::move(options.naming.note));
  return options;
}

reshard::RunResult execute(Prepared& prepared, const SaveOptions& options,
                           const Progress& progress) {
  if (prepared.shown_only)
    throw bug_error({prepared.path, {}}, "a plan that was to be shown is run");
  constexpr uint64_t kSaturated = 2;
  constexpr uint64_t kNoSums = 1;  // such a journal can't be resumed
  const InterruptScope scope;
  const Session::Joined session;
  Session::current()->flush_failed = false;
  io::Watch& watch = Session::current()->watch;
  check_target(prepared, options);
  check_lists(prepared, options);
  io::Staging staging(prepared.path, staging_options(prepared, options));
  const WatchEnd watch_end;
  watch_source(prepared, staging.root());
  if (const auto change = watch.find_change_here()) throw *change;
  if (prepared.single_file)
    prepared.target.files.front().path = io::base_name(staging.target());
  const bool sums = wants_sums(prepared, options);
  if (!sums) reshard::leave_tensor_digests(prepared.plan);
  if (io::is_target_url(prepared.path))
    reshard::order_for_sending(prepared.plan, prepared.target);
  const uint64_t work =
      work_of(prepared) ^ (sums ? 0 : kNoSums) ^
      (options.overflow == Overflow::kSaturate ? kSaturated : 0);
  reshard::Journal journal = start_journal(work, staging, options);
  const auto has_work = [&] {
    return journal.items() || ranks::has_journals(staging.journal_path());
  };
  // Why another rank failed is not told apart.
  const auto keep_staging = [&] {
    if (Session::current()->flush_failed ||
        (journal.is_doubtful() && ranks::has_journals(staging.journal_path())))
      journal.doubt(reshard::Journal::Doubt::kFlush);
    staging.keep();
  };
  const std::string kept = "what was done is kept in " + staging.root() +
                           ": run it again with --resume";
  try {
    make_files(prepared, staging, journal.items() != 0);
    const reshard::RunResult result =
        fill(prepared, staging, journal, work, options, progress);
    if (options.manifest)
      prepared.manifest_bytes = write_manifest(prepared, result, staging);
    publish(prepared, staging, options);
    return result;
  } catch (const Interrupted&) {
    const bool keep = has_work();
    if (keep) keep_staging();
    throw Interrupted("stopped; " + prepared.path + " was not touched" +
                      (keep ? "; " + kept : ""));
  } catch (const Error& error) {
    if (staging.is_published()) throw;
    // Objects of it stand there: only this run can end what it began.
    const bool half = io::is_target_url(prepared.path) &&
                      io::is_half_published(prepared.path);
    // Then what is staged is of no use, and whatever failed follows from it.
    if (!half)
      if (const auto change = watch.find_change()) throw *change;
    // A lack of memory, too, says nothing against what was copied.
    const bool sound = error.code() == ExitCode::kIo ||
                       error.code() == ExitCode::kResource || half;
    if (!sound || !has_work()) throw;
    // What failed may be the flush of anything that was written before.
    if (error.code() != ExitCode::kResource) journal.doubt();
    keep_staging();
    throw error.with_hint(error.hint().empty() ? kept
                                               : error.hint() + "; " + kept);
  } catch (const std::bad_alloc&) {
    if (!staging.is_published() && has_work()) keep_staging();
    throw;
  }
}

}  // namespace ckpt::library
