#include "app/integrity.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "app/engine.h"
#include "app/progress.h"
#include "app/select.h"
#include "ckpt/error.h"
#include "formats/megatron/integrity.h"
#include "lib/io/file.h"
#include "lib/manifest.h"
#include "reshard/crc_check.h"
#include "reshard/prove.h"
#include "reshard/ranks/run.h"

namespace ckpt::app {
namespace {

Problem problem_of(const Error& error, std::string kind) {
  std::string message = error.problem();
  if (!error.hint().empty()) message += "; " + error.hint();
  return {Problem::Severity::kDamage, std::move(kind), error.where().path,
          error.where().tensor, std::move(message)};
}

// Damage in the checkpoint is the answer, not a failure to answer.
bool is_answer(const Error& error) {
  return error.code() == ExitCode::kDamaged ||
         error.code() == ExitCode::kUnfaithful;
}

class Check {
 public:
  Check(const std::string& path, const EngineOptions& engine,
        const OutputOptions& output, VerifyReport& report)
      : path_(path), engine_(engine), output_(output), report_(report) {}

  void headers(const Catalog& catalog) {
    report_.tensors = catalog.tensors.size();
    std::set<std::string> files;
    for (const File& file : catalog.files) files.insert(file.path);
    report_.files = files.size();
    for (const Problem& problem : catalog.problems)
      if (problem.severity != Problem::Severity::kNote) add(problem);
  }

  void checksums(const Catalog& catalog) {
    if (catalog.crcs.empty()) return;
    reshard::RunOptions options;
    options.threads = engine_.threads;
    options.max_mem = engine_.max_mem;
    options.io = engine_.io;
    options.progress = make_progress(output_);
    const uint64_t bytes = reshard::crc_bytes(catalog);
    options.progress.begin("checking", bytes);
    for (Problem& problem : ranks::check_crcs(catalog, options))
      add(std::move(problem));
    options.progress.end();
    report_.bytes += bytes;
  }

  // What a writer's own manifest says about whole files.
  void integrity_file(const Catalog& catalog) {
    if (!catalog.format.starts_with("megatron_")) return;
    megatron::IntegrityCheck found =
        megatron::check_integrity_file(catalog.path, make_progress(output_));
    report_.bytes += found.bytes;
    for (Problem& problem : found.problems) add(std::move(problem));
  }

  void contents(Catalog& catalog, const IntegrityOptions& options) {
    const std::string manifest = manifest_of(catalog);
    if (manifest.empty() && catalog.crcs.empty())
      spdlog::warn(
          "no checksums, neither stored nor in a manifest: the structure was "
          "checked, the values can't be");
    const bool read =
        !manifest.empty() || options.deep || options.finite || packed(catalog);
    if (!read) {
      reshard::make_read_plan(catalog, false);  // proves the cover
      return;
    }
    const Reading reading = read_all(
        catalog, engine_, output_, {.replicas = true, .stats = options.finite});
    report_.bytes += reading.bytes;
    for (const Problem& problem : reading.problems) add(problem);
    if (!manifest.empty()) compare_manifest(catalog, reading, manifest);
    if (options.finite) report_infinite(catalog, reading);
  }

  // What the reader inferred, of which the bytes are the proof.
  void claims(const Catalog& catalog) {
    reshard::RunOptions options;
    options.threads = engine_.threads;
    options.max_mem = engine_.max_mem;
    options.io = engine_.io;
    options.progress = make_progress(output_);
    report_.bytes += reshard::claim_bytes(catalog);
    for (Problem& problem : reshard::check_claims(catalog, options))
      add(std::move(problem));
  }

  void only_some() { selected_ = true; }
  void add(Problem problem) { report_.problems.push_back(std::move(problem)); }

 private:
  // Compressed chunks without a checksum: inflating them tells at least
  // whether they are whole.
  static bool packed(const Catalog& catalog) {
    return catalog.crcs.empty() &&
           std::ranges::any_of(catalog.files, [](const File& file) {
             return file.codec != Codec::kRaw && file.codec != Codec::kMemory &&
                    file.codec != Codec::kFill;
           });
  }

  // The manifest of what was asked for or of what it led to.
  std::string manifest_of(const Catalog& catalog) const {
    for (const std::string& root : {path_, catalog.path}) {
      const std::string manifest = manifest_path(root);
      if (io::is_file(manifest)) return manifest;
    }
    return "";
  }

  void compare_manifest(const Catalog& catalog, const Reading& reading,
                        const std::string& path) {
    const Manifest manifest = read_manifest(path);
    const std::string root = io::parent(path);
    for (const auto& [file, size] : manifest.files) {
      const std::string full = io::join(root, file);
      struct stat facts;
      if (::stat(full.c_str(), &facts) != 0)
        add({Problem::Severity::kDamage, "missing_file", full, "",
             "the manifest lists it, it is not there"});
      else if (static_cast<uint64_t>(facts.st_size) != size)
        add({Problem::Severity::kDamage, "file_size", full, "",
             fmt::format("{} bytes, it was written with {}", facts.st_size,
                         size)});
    }
    std::set<std::string_view> seen;
    for (size_t i = 0; i < catalog.tensors.size(); ++i) {
      const Tensor& tensor = catalog.tensors[i];
      seen.insert(tensor.name);
      const auto entry = manifest.tensors.find(tensor.name);
      if (entry == manifest.tensors.end())
        add({Problem::Severity::kWarning, "unlisted_tensor", path, tensor.name,
             "the manifest does not list it"});
      else if (entry->second.digest != reading.digests[i] &&
               !(selected_ && is_part(tensor.shape, entry->second)))
        add({Problem::Severity::kDamage, "digest", first_file(catalog, tensor),
             tensor.name,
             fmt::format("the content has digest {}, it was written with {}",
                         reading.digests[i].hex(),
                         entry->second.digest.hex())});
    }
    if (selected_) return;  // what was left out is not missing
    for (const auto& [name, entry] : manifest.tensors)
      if (!seen.contains(name))
        add({Problem::Severity::kDamage, "missing_tensor", path, name,
             "the manifest lists it, the checkpoint does not hold it"});
  }

  static std::string first_file(const Catalog& catalog, const Tensor& tensor) {
    return tensor.pieces.empty()
               ? catalog.path
               : catalog.files[tensor.pieces[0].extent.file].path;
  }

  void report_infinite(const Catalog& catalog, const Reading& reading) {
    for (size_t i = 0; i < catalog.tensors.size(); ++i) {
      const reshard::Stats& stats = reading.stats[i];
      if (stats.finite()) continue;
      add({Problem::Severity::kDamage, "not_finite",
           first_file(catalog, catalog.tensors[i]), catalog.tensors[i].name,
           fmt::format("{} NaN and {} infinite of {} elements", stats.nans,
                       stats.infs, stats.count)});
    }
  }

  const std::string& path_;
  const EngineOptions& engine_;
  const OutputOptions& output_;
  VerifyReport& report_;
  bool selected_ = false;  // only some tensors are looked at
};

}  // namespace

VerifyReport check_integrity(const std::string& path,
                             const SourceOptions& source,
                             const SelectOptions& selected,
                             const IntegrityOptions& options,
                             const EngineOptions& engine,
                             const OutputOptions& output) {
  VerifyReport report;
  Check check(path, engine, output, report);
  try {
    Catalog catalog = formats::open(path, source.from, source.read);
    const Selection selection = select(catalog, selected);
    if (selection.dropped || !selection.warning.empty()) check.only_some();
    check.headers(catalog);
    locate(catalog);
    load_objects(catalog);
    check.integrity_file(catalog);
    check.checksums(catalog);
    check.contents(catalog, options);
    if (options.deep) check.claims(catalog);
  } catch (const Error& error) {
    if (!is_answer(error)) throw;
    check.add(problem_of(
        error, error.code() == ExitCode::kDamaged ? "damaged" : "incomplete"));
  }
  report.ok = std::ranges::none_of(report.problems, [](const Problem& problem) {
    return problem.severity == Problem::Severity::kDamage ||
           problem.kind == "total_size";
  });
  return report;
}

}  // namespace ckpt::app
