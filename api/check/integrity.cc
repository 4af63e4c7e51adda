// SPDX-License-Identifier: Apache-2.0
#include "api/check/integrity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>

#include "api/check/hub.h"
#include "api/check/read_all.h"
#include "api/check/sums.h"
#include "api/check/unruled.h"
#include "api/contents.h"
#include "api/edit/select.h"
#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hub_cache.h"
#include "convert/whole.h"
#include "formats/loose_files.h"
#include "formats/runs/counts.h"
#include "formats/runs/stale.h"
#include "formats/scan/heads.h"
#include "formats/scan/scan.h"
#include "formats/traits.h"
#include "lib/heap.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/manifest.h"
#include "lib/text/format.h"
#include "reshard/crc_check.h"
#include "reshard/plan_size.h"
#include "reshard/prove.h"
#include "reshard/ranks/run.h"

namespace ckpt::library {
namespace {

Problem problem_of(const Error& error, std::string kind) {
  std::string message = error.problem();
  if (!error.hint().empty()) message += "; " + error.hint();
  return damage(std::move(kind), {error.where().path, error.where().tensor},
                "{}", std::move(message));
}

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
    std::set<std::string> files;
    for (const File& file : catalog.files) files.insert(file.path);
    report_.files = files.size();
    for (const Problem& problem : catalog.problems)
      if (problem.severity != Problem::Severity::kNote ||
          problem.kind == "absent_part" || problem.kind == "unnamed_file")
        add(problem);
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
    const bool sound = found.sound();
    add_all(std::move(found.problems));
    if (sound && !manifest_of(catalog).empty()) return;
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
    options.passed = passed(catalog);
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
    auto [found, problems] = sums::beside(
        files_of(catalog, selected_),
        catalog.file_root.empty() ? catalog.path : catalog.file_root);
    HubRepo repo = look_at_repo(path_);
    for (const std::string& blob : repo.blobs)
      if (sums::Sum sum = sums::stored_under_sum(blob); !sum.hex.empty())
        found.push_back(std::move(sum));
    add_all(std::move(repo.problems));
    if (!manifest.empty())
      std::erase_if(found, [](const sums::Sum& sum) { return sum.begin != 0; });
    add_all(std::move(problems));
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

  // What can't be opened; returns false if a checksum contradicts it.
  bool as_summed(const std::string& path, const IntegrityOptions& options) {
    if (options.quick || std::exchange(summed_, true)) return true;
    const size_t before = report_.problems.size();
    const auto snapshot = hub_snapshot(path);
    const std::string& at = snapshot.empty() ? path : snapshot;
    auto [found, problems] =
        sums::beside(files_at(at), io::is_file(at) ? io::parent(at) : at);
    HubRepo repo = look_at_repo(path);
    for (const std::string& blob : repo.blobs)
      if (sums::Sum sum = sums::stored_under_sum(blob); !sum.hex.empty())
        found.push_back(std::move(sum));
    add_all(std::move(repo.problems));
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
    if (manifest.empty() && open)
      engine_.warn(fmt::format(
          "no checksums of {}, neither stored nor in a manifest: the structure "
          "was checked, the values can't be",
          open == catalog.tensors.size()
              ? "the tensors"
              : fmt::format("{} of {} tensors", open, catalog.tensors.size())));
    if (!reads_all(options, manifest, bare)) {
      reshard::count_read_plan(catalog, false);  // proves the cover
      if (!options.quick) lone_numbers(catalog);
      return;
    }
    const Reading reading = read_contents(catalog, options);
    report_.bytes += reading.bytes;
    add_all(reading.problems);
    report_zeros(catalog, reading);
    if (!manifest.empty()) compare_manifest(catalog, reading, manifest);
    if (options.finite) report_infinite(catalog, reading);
  }

  // Damage that ends it must not hide which records are damaged.
  Reading read_contents(Catalog& catalog, const IntegrityOptions& options) {
    try {
      return read_all(catalog, engine_,
                      {.replicas = true,
                       .stats = options.finite,
                       .crcs = with_contents_,
                       .passed = passed(catalog)});
    } catch (const Error& error) {
      if (with_contents_ && is_answer(error)) checksums(catalog);
      throw;
    }
  }

  // Checksums prove each file, and not that files are of one save: an optimizer
  // counts its steps on each rank. --deep compares all copies.
  void lone_numbers(Catalog& catalog) {
    if (io::is_url(catalog.path)) return;  // each would be a request
    std::vector<Tensor> some;
    for (const Tensor& tensor : catalog.tensors)
      if (tensor.pieces.size() > 1 && tensor.shape.empty())
        some.push_back(tensor);
    if (some.empty()) return;
    std::swap(catalog.tensors, some);
    const Reading reading = read_all(catalog, engine_, {.replicas = true});
    std::swap(catalog.tensors, some);
    add_all(reading.problems);
  }

  // Lists what would run if its files were loaded elsewhere. `reads`: all bytes
  // will be read.
  void pickles(const Catalog& catalog, bool reads) {
    if (reads && io::is_url(catalog.path)) heads_.emplace();
    if (!io::is_directory(catalog.path)) {
      std::set<std::string> paths{catalog.path};
      for (const File& file : catalog.files)
        if (!file.path.empty() && io::is_file(file.path))
          paths.insert(file.path);
      scanned_.assign(paths.begin(), paths.end());
    }
    scanned_in_ = catalog.path;
    scanned_at_ = report_.problems.size();
    const std::vector<Problem> found = found_pickles();
    scanned_problems_ = found.size();
    add_all(found);
  }

  // Once all bytes were read, or as many as damage left.
  void pickles_again() {
    if (!heads_ || heads_->all_harmless()) return;
    const std::vector<Problem> found = found_pickles();
    const auto at =
        report_.problems.begin() + static_cast<std::ptrdiff_t>(scanned_at_);
    report_.problems.insert(
        report_.problems.erase(
            at, at + static_cast<std::ptrdiff_t>(scanned_problems_)),
        found.begin(), found.end());
  }

  // What the reader inferred, to be proven by the bytes.
  void claims(const Catalog& catalog) {
    reshard::RunOptions options;
    options.threads = engine_.threads;
    options.max_mem = engine_.max_mem;
    options.io = engine_.io;
    options.progress = engine_.make_progress();
    report_.bytes += reshard::claim_bytes(catalog);
    add_all(reshard::check_claims(catalog, options));
  }

  // Compares the bytes of no tensor, in all files that the manifest lists; also
  // for a checkpoint that can't even be opened.
  void files(const std::string& path) {
    const Manifest manifest = read_manifest(path);
    const std::string root = root_of(path);
    for (const auto& [name, content] : manifest.contents) {
      if (!content.unproven.empty()) continue;
      const std::string full = io::join(root, name);
      try {
        if (io::file_size(full) != manifest.files.at(name)) continue;  // told
        const io::Handle file = io::Handle::open_read(full);
        const std::string found = sha256_of(file, content.ranges);
        if (found != content.sha256)
          add(damage("file_digest", {full, {}},
                     "{} SHA-256 {}, it was written with {}",
                     content.ranges.empty() ? "the content has"
                                            : "what is around the tensors has",
                     found, content.sha256));
      } catch (const std::out_of_range&) {
        add(damage("manifest", {path, {}},
                   "a file has a digest and no size: {}", name));
      } catch (const Error& error) {
        if (error.code() != ExitCode::kDamaged) throw;
        add(problem_of(error, "damaged"));
      }
    }
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

  // Checks for a manifest that can't be one, and for files that have appeared
  // beside those that it lists.
  void manifest_itself(const Catalog& catalog) {
    const std::string path = manifest_path(path_);
    if (io::is_directory(path))
      add(damage("manifest", {path, {}}, "is a directory"));
    if (!io::is_directory(path_) || !io::is_file(path)) return;
    const Manifest manifest = read_manifest(path);
    if (catalog.file_root != path_) return;
    for (const SourceFile& file : catalog.file_list)
      if (!manifest.files.contains(file.path))
        add(remark("unlisted_file", {io::join(path_, file.path), {}},
                   "the manifest does not list it: it came later"));
  }

  // What was wrong when it was written, and was written all the same.
  void unproven(const std::string& path) {
    const Manifest manifest = read_manifest(path);
    const auto tell = [&](const Where& where, const std::string& why) {
      if (!why.empty())
        add(damage("unproven", where, "was written unproven: {}", why));
    };
    for (const auto& [name, tensor] : manifest.tensors)
      tell({path_, name}, tensor.unproven);
    for (const auto& [name, content] : manifest.contents)
      tell({io::join(root_of(path), name), {}}, content.unproven);
  }

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
  std::vector<Problem> found_pickles() {
    scan::Heads* const heads = heads_ ? &*heads_ : nullptr;
    std::vector<Problem> found;
    for (const scan::FileScan& file : scanned_.empty()
                                          ? scan::scan_path(scanned_in_, heads)
                                          : scan::scan_files(scanned_, heads)) {
      for (const scan::Global& global : file.globals)
        if (!global.harmless)
          found.push_back(damage("executes", {file.path, {}},
                                 "loading it elsewhere runs {}",
                                 scan::describe(global)));
      // Dead links and FIFOs are named where the checkpoint is read.
      if (!file.problem.empty() && !file.absent)
        found.push_back(damage("unreadable_pickle", {file.path, {}},
                               "{}; what loading it would run is not known",
                               file.problem));
    }
    return found;
  }

  reshard::Passed passed(const Catalog& catalog) {
    if (!heads_) return {};
    heads_->expect(catalog);
    return [this](uint32_t file, uint64_t offset,
                  std::span<const std::byte> bytes) {
      heads_->see(file, offset, bytes);
    };
  }

  // Counts tensors with a piece in a record without a checksum. Those are read,
  // which at least finds unreadable sectors and chunks that can't be inflated.
  // `proven`: files whose whole content has the checksum that lies beside them.
  static uint64_t without_checksum(const Catalog& catalog,
                                   const std::set<std::string>& proven = {}) {
    using Place = std::pair<uint32_t, uint64_t>;
    std::vector<std::pair<Place, uint64_t>> summed;  // begins and ends
    summed.reserve(catalog.crcs.size());
    for (const StoredCrc& crc : catalog.crcs)
      summed.push_back({{crc.file, crc.begin}, crc.end});
    std::ranges::sort(summed);
    const auto is_summed = [&](const Extent& extent) {
      const Place place(extent.file, extent.offset);
      const auto after = std::ranges::upper_bound(
          summed, place, {}, [](const auto& record) { return record.first; });
      return after != summed.begin() &&
             std::prev(after)->first.first == extent.file &&
             extent.offset <= std::prev(after)->second;
    };
    const auto is_bare = [&](const Piece& piece) {
      const Codec codec = catalog.files[piece.extent.file].codec;
      if (proven.contains(catalog.files[piece.extent.file].path)) return false;
      return codec != Codec::kMemory && codec != Codec::kFill &&
             !is_summed(piece.extent);
    };
    return static_cast<uint64_t>(
        std::ranges::count_if(catalog.tensors, [&](const Tensor& tensor) {
          return byte_size(tensor) != 0 &&
                 std::ranges::any_of(tensor.pieces, is_bare);
        }));
  }

  static bool reads_all(const IntegrityOptions& options,
                        const std::string& manifest, uint64_t bare) {
    return !options.quick &&
           (!manifest.empty() || bare || options.deep || options.finite);
  }

  void compare_manifest(const Catalog& catalog, const Reading& reading,
                        const std::string& path) {
    const Manifest manifest = read_manifest(path);
    const std::string root = root_of(path);
    for (const auto& [file, size] : manifest.files) {
      const std::string full = io::join(root, file);
      const auto now = io::file_size(full);
      if (!now)
        add(damage("missing_file", {full, {}},
                   "the manifest lists it, it is not there"));
      else if (*now != size)
        add(damage("file_size", {full, {}}, "{} bytes, it was written with {}",
                   *now, size));
    }
    std::set<std::string_view> seen;
    for (size_t i = 0; i < catalog.tensors.size(); ++i) {
      const Tensor& tensor = catalog.tensors[i];
      const Edit edit = edit_of(edits_, tensor.name);
      auto entry = manifest.tensors.find(edit.stored);
      // A trainer's reader names state by its parameter, its file does not.
      if (entry == manifest.tensors.end() && tensor.kind == Kind::optim)
        entry = manifest.tensors.find("optimizer.state." + edit.stored);
      seen.insert(entry == manifest.tensors.end() ? tensor.name : entry->first);
      if (entry == manifest.tensors.end()) {
        if (!is_listed_content(manifest, root, catalog, tensor))
          add(warning("unlisted_tensor", {path, tensor.name},
                      "the manifest does not list it"));
      } else if (entry->second.unproven.empty() &&
                 entry->second.digest != reading.digests[i] && !edit.cut &&
                 !(selected_ && is_part(tensor.shape, entry->second)))
        add(damage("digest", {first_file(catalog, tensor), tensor.name},
                   "the content has digest {}, it was written with {}",
                   reading.digests[i].hex(), entry->second.digest.hex()));
    }
    if (selected_) return;  // what was deselected is not missing
    for (const auto& [name, entry] : manifest.tensors)
      if (!seen.contains(name))
        add(damage("missing_tensor", {path, name},
                   "the manifest lists it, the checkpoint does not hold it"));
  }

  // True for one that went along with its file's bytes: those that no listed
  // tensor has are compared as the file's.
  static bool is_listed_content(const Manifest& manifest,
                                const std::string& root, const Catalog& catalog,
                                const Tensor& tensor) {
    return std::ranges::all_of(tensor.pieces, [&](const Piece& piece) {
      const std::string& file = catalog.files[piece.extent.file].path;
      return file.starts_with(root + "/") &&
             manifest.contents.contains(file.substr(root.size() + 1));
    });
  }

  static std::string first_file(const Catalog& catalog, const Tensor& tensor) {
    return tensor.pieces.empty()
               ? catalog.path
               : catalog.files[tensor.pieces[0].extent.file].path;
  }

  // A hole in a file reads as zeros: a download that was cut, a failed disk.
  // Biases and new adapters are zero; a whole matrix is seldom.
  void report_zeros(const Catalog& catalog, const Reading& reading) {
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
  bool selected_ = false;       // only some tensors are checked
  bool with_contents_ = false;  // stored checksums are compared there
  Edits edits_;
  std::optional<scan::Heads> heads_;
  std::set<std::string> proven_;      // files as their checksums promise
  std::string against_;               // a manifest from elsewhere
  std::string scanned_in_;            // the directory
  std::vector<std::string> scanned_;  // or else the files of the catalog
  size_t scanned_at_ = 0;             // its problems in the report
  size_t scanned_problems_ = 0;
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

// A flipped bit may leave a checkpoint in no known format. If the manifest
// knows better, that is the answer.
Catalog open_checked(const std::string& path, const IntegrityOptions& source,
                     Check& check) {
  try {
    return formats::open(path, source.from, source.read);
  } catch (const Error& error) {
    if (is_answer(error)) throw;
    if (!check.as_summed(path, source))
      throw input_error({error.where().path, error.where().tensor}, "{}",
                        error.problem());
    Catalog none;
    none.path = path;
    const std::string manifest = check.manifest_of(none);
    if (manifest.empty()) throw;
    const size_t before = check.problems();
    check.files(manifest);
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
    const bool whole = !partly && holds_model(catalog);
    check.pickles(catalog, !options.quick);  // an index is decoded again
    {
      const heap::Unbounded threads;  // of a scan: it has a bound of its own
      check.manifest_itself(catalog);
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
      check.checksums(catalog, options);
    }
    check.sums(catalog, options);
    check.contents(catalog, options);
    tell_unruled(catalog, options.quick, engine, report);
    const std::string manifest = check.manifest_of(catalog);
    if (!manifest.empty() && !options.quick) check.files(manifest);
    if (!manifest.empty()) check.unproven(manifest);
    if (options.deep) check.claims(catalog);
    check.pickles_again();
  } catch (const Error& error) {
    const bool hole = is_hole(error, path, options);
    if (selecting) throw;
    if (check.as_summed(path, options) && !hole && !is_answer(error)) throw;
    check.pickles_again();
    check.add(problem_of(error, hole ? "missing_file"
                                : error.code() == ExitCode::kDamaged
                                    ? "damaged"
                                    : "incomplete"));
  }
  judge(report, options.strict);
  return report;
}

}  // namespace ckpt::library
