// SPDX-License-Identifier: Apache-2.0
#include "api/check/integrity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "api/check/facts.h"
#include "api/check/fingerprint.h"
#include "api/check/hub.h"
#include "api/check/manifest_check.h"
#include "api/check/pickles.h"
#include "api/check/read_all.h"
#include "api/check/seal.h"
#include "api/check/sums.h"
#include "api/check/unruled.h"
#include "api/contents.h"
#include "api/deltas.h"
#include "api/edit/select.h"
#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "containers/hf/hub_cache.h"
#include "convert/warnings.h"
#include "convert/whole/whole.h"
#include "formats/loose_files.h"
#include "formats/runs/find/stale.h"
#include "formats/runs/read/counts.h"
#include "formats/traits.h"
#include "lib/decoding.h"
#include "lib/heap.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/lost_file.h"
#include "lib/manifest.h"
#include "lib/text/format.h"
#include "reshard/plan/plan_size.h"
#include "reshard/prove/prove.h"
#include "reshard/ranks/run.h"
#include "reshard/run/crc_check.h"

namespace ckpt::library {
namespace {

// True for damage in the checkpoint, which is an answer, not a failure to
// answer.
bool is_answer(const Error& error) {
  return error.code() == ExitCode::kDamaged ||
         error.code() == ExitCode::kUnfaithful;
}

std::string hub_snapshot(const std::string& path) {
  try {
    const auto found = formats::find_snapshot(path);
    return found ? found->path : "";
  } catch (const Error&) {
    return "";  // none is there
  }
}

class Check {
 public:
  Check(const std::string& path, const Engine& engine, Report& report)
      : path_(path), engine_(engine), report_(report) {}

  void headers(const Catalog& catalog) {
    report_.tensors = catalog.tensors.size();
    report_.files = file_count(catalog);
    for (const Problem& problem : catalog.problems)
      if (problem.severity != Problem::Severity::kNote ||
          problem.kind == "absent_part" || problem.kind == "unnamed_file")
        add(problem);
    const std::string delta = delta_text(catalog);
    is_model_ = delta.empty();
    if (!is_model_) add(remark("delta", {catalog.path, {}}, "{}", delta));
  }

  // Damage if there is nothing to prove: a folder of values, or one whose
  // tensors are in files that nobody reads.
  void not_empty(const Catalog& catalog) {
    if (!catalog.tensors.empty()) return;
    add(damage("no_tensors", {catalog.path, {}},
               "no tensors ({} of {}): nothing shows that it is "
               "whole",
               catalog.objects.empty() ? "nothing" : "values alone",
               catalog.format));
  }

  // Is everything there that the configuration's model has? A manifest is the
  // writer's list, where no rules say more.
  void whole(const Catalog& catalog) {
    families::Whole found = families::check_whole(catalog);
    drop_slices(catalog, found.problems);
    add_all(std::move(found.problems));
    if (auto left = families::leftover_quantization(
            catalog, formats::config_json_of(catalog)))
      add(std::move(*left));
    report_.open = std::move(found.open);
  }

  // Over a wire all bytes come once: where their digests are wanted, contents()
  // compares these on the way. Files here have them in the page cache.
  void checksums(const Catalog& catalog, const IntegrityOptions& options) {
    with_contents_ =
        io::is_url(catalog.path) &&
        reads_all(options, manifest_of(catalog), without_checksum(catalog));
    if (!with_contents_) checksums(catalog);
  }

  void checksums(const Catalog& catalog) {
    if (catalog.crcs.empty()) return;
    reshard::RunOptions options;
    options.threads = engine_.threads;
    options.max_mem = engine_.max_mem;
    options.io = engine_.io;
    options.progress = engine_.make_progress();
    options.passed = pickles_.passed(catalog);
    const uint64_t bytes = reshard::crc_bytes(catalog);
    options.progress.begin("checking", bytes);
    add_all(ranks::check_crcs(catalog, options));
    options.progress.end();
    report_.bytes += bytes;
  }

  // What a writer's own manifest says about whole files.
  void integrity_file(const Catalog& catalog) {
    const auto check = formats::traits_of(catalog.format).check_files;
    if (!check) return;
    formats::FileCheck found = check(catalog.path, engine_.make_progress());
    report_.bytes += found.bytes;
    add_all(std::move(found.problems));
  }

  // What others left beside the files, and what the user brought. A manifest of
  // ckpt's is compared elsewhere, and says more than a header's old sum.
  void sums(const Catalog& catalog, const IntegrityOptions& options) {
    const std::string manifest = manifest_of(catalog);
    std::vector<sums::Sum> found =
        beside(path_, files_of(catalog, selected_),
               catalog.file_root.empty() ? catalog.path : catalog.file_root);
    if (!manifest.empty())
      std::erase_if(found, [](const sums::Sum& sum) { return sum.begin != 0; });
    if (!options.against.empty())
      std::ranges::move(read_against(options.against, root_of(catalog)).sums,
                        std::back_inserter(found));
    if (options.quick) {
      if (!found.empty())
        engine_.warn(
            fmt::format("--quick: {} beside the files are not compared",
                        text::counted(found.size(), "checksum")));
      return;
    }
    summed_ = true;
    if (!found.empty()) proven_ = check_sums(found, engine_, report_);
  }

  // The checksums beside `files`, and those that a repository's blobs have as
  // names.
  std::vector<sums::Sum> beside(const std::string& path,
                                const std::vector<std::string>& files,
                                const std::string& root) {
    auto [found, problems] = sums::beside(files, root);
    HubRepo repo = look_at_repo(path);
    for (const std::string& blob : repo.blobs)
      if (sums::Sum sum = sums::stored_under_sum(blob); !sum.hex.empty())
        found.push_back(std::move(sum));
    add_all(std::move(repo.problems));
    add_all(std::move(problems));
    return std::move(found);
  }

  // What can't be opened; returns false if a checksum contradicts it.
  bool as_summed(const std::string& path, const IntegrityOptions& options) {
    if (options.quick || std::exchange(summed_, true)) return true;
    const size_t before = report_.problems.size();
    const auto snapshot = hub_snapshot(path);
    const std::string& at = snapshot.empty() ? path : snapshot;
    const std::vector<sums::Sum> found =
        beside(path, files_at(at), io::is_file(at) ? io::parent(at) : at);
    check_sums(found, engine_, report_);
    return std::none_of(
        report_.problems.begin() + static_cast<std::ptrdiff_t>(before),
        report_.problems.end(),
        [](const Problem& one) { return one.kind == "checksum"; });
  }

  // What a list names its files from.
  std::string root_of(const Catalog& catalog) const {
    if (io::is_file(path_)) return io::parent(path_);
    return catalog.file_root.empty() ? path_ : catalog.file_root;
  }

  void contents(Catalog& catalog, const IntegrityOptions& options) {
    const std::string manifest = manifest_of(catalog);
    const uint64_t bare = without_checksum(catalog);
    const uint64_t open = without_checksum(catalog, proven_);
    report_.unproven = options.quick || (manifest.empty() && open);
    if (manifest.empty()) report_.without_checksum = open;
    if (!reads_all(options, manifest, bare)) {
      reshard::count_read_plan(catalog, false);  // proves the cover
      if (!options.quick) lone_numbers(catalog);
      return;
    }
    const bool blocks = has_blocks(catalog);
    if (blocks && options.finite)
      report_infinite(catalog, read_contents(catalog, options));
    take_stored(catalog);  // what a manifest has digests of
    Reading reading = read_contents(catalog, options);
    report_.bytes += reading.bytes;
    if (!selected_) report_.fingerprint = fingerprint(catalog, reading.digests);
    add_all(reading.problems);
    report_zeros(catalog, reading);
    if (!manifest.empty())
      add_all(listed(manifest).tensors(catalog, reading, edits_, selected_));
    if (options.finite && !blocks) report_infinite(catalog, reading);
    if (options.seal) digests_ = std::move(reading.digests);
  }

  std::optional<Manifest> seal_of(const Catalog& catalog) {
    if (selected_ || !manifest_of(catalog).empty()) return std::nullopt;
    return library::seal_of(catalog, digests_, report_.problems);
  }

  // Damage that ends it must not hide which records are damaged.
  Reading read_contents(Catalog& catalog, const IntegrityOptions& options) {
    try {
      return read_all(catalog, engine_,
                      {.replicas = true,
                       .stats = options.finite,
                       .crcs = with_contents_,
                       .passed = pickles_.passed(catalog)});
    } catch (const Error& error) {
      if (with_contents_ && is_answer(error)) checksums(catalog);
      throw;
    }
  }

  // Checksums prove each file, and not that files are of one save: an optimizer
  // counts its steps on each rank, and a tensor may be in two shards. --deep
  // compares all copies.
  void lone_numbers(Catalog& catalog) {
    if (io::is_url(catalog.path)) return;  // each would be a request
    std::set<std::string_view> twice;
    for (const auto* problems : {&report_.problems, &catalog.problems})
      for (const Problem& problem : *problems)
        if (problem.kind == "duplicate_tensor") twice.insert(problem.tensor);
    std::vector<Tensor> some;
    for (const Tensor& tensor : catalog.tensors)
      if (tensor.pieces.size() > 1 &&
          (tensor.shape.empty() || twice.contains(tensor.name)))
        some.push_back(tensor);
    if (some.empty()) return;
    std::swap(catalog.tensors, some);
    const Reading reading = read_all(catalog, engine_, {.replicas = true});
    std::swap(catalog.tensors, some);
    add_all(reading.problems);
  }

  // What the reader inferred, and the main weights beside the weights, to be
  // proven by the bytes: all of them, or the first of each.
  void claims(const Catalog& catalog, bool deep) {
    if (!deep && io::is_url(catalog.path)) return;  // each would be a request
    reshard::RunOptions options;
    options.threads = engine_.threads;
    options.max_mem = engine_.max_mem;
    options.io = engine_.io;
    options.progress = engine_.make_progress();
    if (!deep) {
      add_all(reshard::sample_main_weights(reshard::main_weights(catalog),
                                           options));
      return;
    }
    report_.bytes += reshard::claim_bytes(catalog);
    add_all(reshard::check_claims(catalog, options));
  }

  ManifestCheck listed(const std::string& manifest) const {
    return {manifest, root_of(manifest)};
  }

  // The directory that the names in a manifest are relative to.
  std::string root_of(const std::string& manifest) const {
    if (against_.empty()) return io::parent(manifest);
    return io::is_file(path_) ? io::parent(path_) : path_;
  }

  // Call first: --against.
  void compare_with(const std::string& against) {
    if (against.empty()) return;
    if (read_against(against, path_).manifest) against_ = against;
  }

  // The manifest of what was requested or of what that led to; "" if there is
  // none, or if it describes another file.
  std::string manifest_of(const Catalog& catalog) const {
    if (!against_.empty()) return against_;
    for (const std::string& root : {path_, catalog.path}) {
      const std::string manifest = manifest_path(root);
      if (!io::is_file(manifest)) continue;
      if (!io::is_file(root) ||
          !is_stale(read_manifest(manifest), io::Handle::open_read(root)))
        return manifest;
      engine_.warn(manifest +
                   " is of another file that stood here before: it is ignored");
    }
    return "";
  }

  // `reads`: all bytes will be read.
  void pickles(const Catalog& catalog, bool reads) {
    pickles_.begin(catalog, reads, report_.problems);
  }
  void pickles_again() { pickles_.again(report_.problems); }

  bool is_model() const { return is_model_; }  // once headers() was called
  size_t problems() const { return report_.problems.size(); }

  void only_some(const Edits& edits) {
    selected_ = true;
    edits_ = edits;
  }
  void add(Problem problem) { report_.problems.push_back(std::move(problem)); }
  void add_all(std::vector<Problem> problems) {
    std::ranges::move(problems, std::back_inserter(report_.problems));
  }

 private:
  static bool reads_all(const IntegrityOptions& options,
                        const std::string& manifest, uint64_t bare) {
    return !options.quick && (!manifest.empty() || bare || options.deep ||
                              options.finite || options.seal);
  }

  // A hole in a file reads as zeros: a download that was cut, a failed disk.
  // Biases and new adapters are zero; a whole matrix is seldom.
  void report_zeros(const Catalog& catalog, const Reading& reading) {
    if (!is_model_) return;  // of equal tensors the difference is zero
    for (size_t i = 0; i < catalog.tensors.size(); ++i) {
      const Tensor& tensor = catalog.tensors[i];
      if (tensor.kind != Kind::model || tensor.shape.size() < 2 ||
          element_count(tensor.shape).value_or(0) == 0 ||
          reading.digests[i] != Digest() ||
          tensor.name.find("lora_") != tensor.name.npos)
        continue;
      add(warning("zeros", {first_file(catalog, tensor), tensor.name},
                  "all elements are zero: a hole in the file?"));
    }
  }

  void report_infinite(const Catalog& catalog, const Reading& reading) {
    for (size_t i = 0; i < catalog.tensors.size(); ++i) {
      const reshard::Stats& stats = reading.stats[i];
      if (stats.finite()) continue;
      add(damage(
          "not_finite",
          {first_file(catalog, catalog.tensors[i]), catalog.tensors[i].name},
          "{} NaN and {} infinite of {} elements", stats.nans, stats.infs,
          stats.count));
    }
  }

  const std::string& path_;
  const Engine& engine_;
  Report& report_;
  bool summed_ = false;         // checksums beside the files are compared
  bool is_model_ = true;        // no difference
  bool selected_ = false;       // only some tensors are checked
  bool with_contents_ = false;  // stored checksums are compared there
  Edits edits_;
  std::set<std::string> proven_;  // files as their checksums promise
  std::string against_;           // a manifest from elsewhere
  PickleCheck pickles_;
  std::vector<Digest> digests_;  // of each tensor, for a seal
};

// True for damage: a directory that a format recognises as its own but that
// lacks something. What no format recognises is not a checkpoint to be judged.
bool is_hole(const Error& error, const std::string& path,
             const IntegrityOptions& source) {
  if (error.code() != ExitCode::kMissing || !source.read.trainer.empty() ||
      !io::is_directory(path))
    return false;
  try {
    if (source.from.empty()) return formats::detect(path).format != nullptr;
    const formats::Format& format = formats::find_format(source.from);
    return format.reader && format.reader->supports(path).yes;
  } catch (const Error&) {
    return false;
  }
}

bool is_lost(const Error& error) {
  return dynamic_cast<const LostFile*>(&error) != nullptr;
}

// A flipped bit may leave a checkpoint in no known format. If the manifest
// knows better, that is the answer.
Catalog open_checked(const std::string& path, const IntegrityOptions& source,
                     Check& check) {
  try {
    return formats::open(path, source.from, source.read);
  } catch (const Error& error) {
    if (is_answer(error)) throw;
    if (!check.as_summed(path, source)) {
      const Error alone = input_error(error.where(), "{}", error.problem());
      if (is_lost(error)) throw LostFile(alone);
      throw Error(alone);
    }
    Catalog none;
    none.path = path;
    const std::string manifest = check.manifest_of(none);
    if (manifest.empty()) throw;
    const size_t before = check.problems();
    check.add_all(check.listed(manifest).files());
    if (check.problems() == before) throw;
    throw input_error({error.where().path, error.where().tensor}, "{}",
                      error.problem());
  }
}

// False for what has values or state alone.
bool holds_model(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
    return tensor.kind == Kind::model;
  });
}

}  // namespace

Problem problem_of(const Error& error, std::string kind) {
  std::string message = error.problem();
  if (!error.hint().empty()) message += "; " + error.hint();
  return damage(std::move(kind), {error.where().path, error.where().tensor},
                "{}", std::move(message));
}

void check_blobs(const std::string& path, const IntegrityOptions& options,
                 const Engine& engine, Report& report) {
  Check(path, engine, report).as_summed(path, options);
}

Report check_integrity(const std::string& path, const Selection& selection,
                       const IntegrityOptions& options, const Engine& engine) {
  if (options.from.empty() && is_hub(path))
    return check_hub(path, selection, options, engine);
  Report report;
  Check check(path, engine, report);
  bool selecting = false;  // an error here is the question's fault
  check.compare_with(options.against);
  std::optional<std::pair<std::string, Manifest>> seal;
  try {
    Catalog catalog = open_checked(path, options, check);
    add_carried_crcs(catalog);
    check.not_empty(catalog);
    selecting = true;
    const Chosen chosen = choose(catalog, selection);
    selecting = false;
    const bool partly =
        chosen.dropped || !chosen.warning.empty() || !chosen.edits.empty();
    if (partly) check.only_some(chosen.edits);
    check.headers(catalog);
    const bool whole = !partly && check.is_model() && holds_model(catalog);
    check.pickles(catalog, !options.quick);  // an index is decoded again
    {
      const heap::Unbounded threads;  // of a scan: it has a bound of its own
      check.add_all(manifest_itself(path, catalog));
      check.add_all(formats::check_loose_files(catalog));
    }
    locate(catalog);
    load_objects(catalog);
    if (whole) check.whole(catalog);
    const heap::Unbounded counted;  // what follows counts what it takes
    if (!options.quick) {
      check.add_all(runs::check_counts(catalog));
      check.add_all(runs::check_shared(catalog));
      check.integrity_file(catalog);
      if (whole && !io::is_url(catalog.path))
        if (auto unlike = unlike_tied_head(catalog, engine))
          check.add(*std::move(unlike));
      check.checksums(catalog, options);
    }
    check.sums(catalog, options);
    check.contents(catalog, options);
    tell_unruled(catalog, options.quick, engine, report);
    const std::string manifest = check.manifest_of(catalog);
    if (!manifest.empty() && !options.quick)
      check.add_all(check.listed(manifest).files());
    if (!manifest.empty()) check.add_all(check.listed(manifest).unproven(path));
    if (!options.quick) check.claims(catalog, options.deep || options.seal);
    check.pickles_again();
    if (options.seal)
      if (auto sealed = check.seal_of(catalog))
        seal.emplace(seal_path(catalog), std::move(*sealed));
  } catch (const Error& error) {
    const bool hole = is_hole(error, path, options);
    if (selecting) throw;
    if (check.as_summed(path, options) && !hole && !is_answer(error)) throw;
    check.pickles_again();
    check.add(problem_of(error, hole || is_lost(error) ? "missing_file"
                                : error.code() == ExitCode::kDamaged
                                    ? "damaged"
                                    : "incomplete"));
  }
  judge(report, options.strict);
  if (seal && report.ok) {
    write_seal(seal->first, seal->second);
    report.sealed = seal->first;
  }
  return report;
}

}  // namespace ckpt::library
