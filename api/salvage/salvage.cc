// SPDX-License-Identifier: Apache-2.0
#include "api/salvage/salvage.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include "api/check/integrity.h"
#include "api/check/sums.h"
#include "api/salvage/salvager.h"
#include "api/write/replace.h"
#include "api/write/write.h"
#include "convert/whole/whole.h"
#include "lib/failures.h"
#include "lib/interrupt.h"
#include "lib/io/file.h"
#include "lib/text/shell.h"
#include "reshard/plan/planner.h"
#include "reshard/run/read.h"

namespace ckpt::library {

Salvager::Salvager(const std::string& source, const std::string& target,
                   const SalvageOptions& options, const Progress& progress)
    : source_(source),
      target_(target),
      options_(options),
      progress_(progress),
      files_(source, target, options, report_) {
  run_.threads = options.save.threads;
  run_.max_mem = options.save.max_mem;
}

namespace {

// An error in the other step's path must not be blamed on SRC.
void check_like(const std::string& like) {
  if (like.empty()) return;
  try {
    if (!io::is_file(like) && !io::is_directory(like))
      throw missing_error({like, {}}, "no such file or directory");
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged) throw;
    throw usage_error({like, {}}, "--like: {}", error.problem());
  }
}

}  // namespace

Salvaged Salvager::run() {
  check_like(options_.like);
  try {
    work();
  } catch (const Error& error) {
    throw of_source(error);
  }
  return std::move(report_);
}

void Salvager::work() {
  const uint64_t begin = failures::mark();
  check_place(target_, {source_, options_.like});
  files_.run();
  open();
  locate_all();
  check_objects();
  check_crcs();
  find_gone();
  from_replicas();
  check_digests();
  undo_shift();
  from_tied();
  from_like();
  list_gone();
  list_lost_values();
  check_names();
  check_model();
  if (writes()) {
    seal();
    verify_result();
  }
  // A disk that doesn't answer has not said that something is lost.
  for (const std::string& root : {files_.root(), source_})
    if (const auto failure = failures::since(begin, root)) throw *failure;
  finish();
}

// Messages never name the shadow: its paths are shown as the source's.
std::string Salvager::shown(std::string text) const {
  const std::string root = files_.is_single() ? files_.path() : files_.root();
  const std::string plain =
      std::filesystem::path(root).lexically_normal().string();
  for (const std::string* const from : {&root, &plain})
    for (size_t at = text.find(*from); at != text.npos;
         at = text.find(*from, at + source_.size()))
      text.replace(at, from->size(), source_);
  return text;
}

Error Salvager::of_source(const Error& error) const {
  std::string hint = shown(error.hint());
  if (hint.empty() && is_answer(error))
    hint = options_.like.empty()
               ? "--like OTHER, an older or newer step of the same run, "
                 "tells more; `ckpt inspect` and `ckpt verify` show what "
                 "can be read"
               : "`ckpt inspect` and `ckpt verify` show what can be read";
  return Error(error.code(), {shown(error.where().path), error.where().tensor},
               shown(error.problem()), hint);
}

std::string Salvager::first_lost() const {
  return report_.lost.empty()
             ? ""
             : "; lost: " + report_.lost[0].file + ": " + report_.lost[0].what;
}

std::string Salvager::next_step() const {
  const std::string like =
      "--like OTHER, an older or newer step of the same run, tells what was "
      "where";
  const std::string folder = files_.folder_without_common();
  if (folder.empty()) return like;
  return like +
         "; common.pt is lost, which alone has the arguments and the states of "
         "training: `ckpt convert " +
         text::shell_path(folder == "." ? source_ : io::join(source_, folder)) +
         " DST --from dcp --to megatron_torch_dist` makes one of what the "
         "tensors say";
}

void Salvager::open() {
  try {
    std::string from = options_.from;
    if (from.empty() && !options_.like.empty())
      from = formats::detect(options_.like).format->name;
    catalog_ = formats::open(files_.path(), from, options_.read);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kMissing)
      throw input_error({source_, {}}, "what is left is not a checkpoint{}",
                        first_lost())
          .with_hint("--from names the format; " + next_step());
    if (!is_answer(error)) throw;
    throw input_error({source_, error.where().tensor},
                      "what is left can't be read: {}{}", error.problem(),
                      first_lost())
        .with_hint(
            "--like OTHER, an older or newer step of the same run, tells "
            "what was where");
  }
  report_.format = catalog_.format;
  // Damage that remains is lost: a state that its step no longer has.
  for (const Problem& problem : catalog_.problems) {
    salvage::Note note{shown(problem.file), shown(problem.message), false};
    // Another configuration is another model. vLLM's save_sharded_state writes
    // none ("no_config"), so that nothing of it is lost.
    const bool lost =
        problem.kind == "no_model_yaml" || problem.kind == "no_params";
    if (problem.severity == Problem::Severity::kDamage || lost)
      report_.lost.push_back(std::move(note));
    else if (problem.severity == Problem::Severity::kWarning)
      report_.warnings.push_back(std::move(note));
  }
}

// Finds tensors that only the manifest names.
void Salvager::check_names() {
  report_.tensors = catalog_.tensors.size();
  if (!manifest()) return;
  std::unordered_map<std::string_view, bool> there;
  for (const Tensor& tensor : catalog_.tensors) there[tensor.name] = true;
  for (const auto& [name, entry] : manifest_->tensors)
    if (!entry.unproven.empty())
      report_.lost.push_back({"",
                              fmt::format("tensor {}: was written unproven: {}",
                                          name, entry.unproven),
                              false});
    else if (!there.contains(name))
      report_.lost.push_back(
          {"",
           fmt::format("tensor {} {}{}: no file holds it", name,
                       ckpt::name(entry.dtype), to_string(entry.shape)),
           false});
  for (const auto& [file, content] : manifest_->contents)
    if (!content.unproven.empty())
      report_.lost.push_back(
          {file, "was written unproven: " + content.unproven, false});
}

// Finds what the model's reader will not find, though every file is sound.
void Salvager::check_model() {
  if (report_.whole())
    for (const Problem& problem : families::check_whole(catalog_).problems)
      if (problem.severity == Problem::Severity::kDamage)
        report_.lost.push_back({"",
                                fmt::format("{}{}{}", problem.tensor,
                                            problem.tensor.empty() ? "" : " ",
                                            shown(problem.message)),
                                false});
}

// Checks it as any reader sees it: every element is in place exactly once.
void Salvager::prove() {
  // A trainer's step is not a directory of its parts' format.
  Catalog whole = formats::open(files_.path(),
                                catalog_.run ? options_.from : catalog_.format,
                                options_.read);
  locate(whole);
  load_objects(whole);
  const reshard::Plan plan = reshard::make_read_plan(whole, true);
  reshard::Output nowhere;
  const reshard::RunResult result = reshard::run(plan, whole, nowhere, run_);
  // Gaps are filled, so replicas differ.
  if (report_.whole()) reshard::check_replicas(plan, result, whole);
  std::set<std::string_view> gone;
  for (const GoneElements& range : report_.gone) gone.insert(range.tensor);
  proven_.format = proven_.source_format = report_.format;
  proven_.source_path =
      options_.source_name.empty() ? source_ : options_.source_name;
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    Manifest::Entry& entry = proven_.tensors[whole.tensors[i].name];
    entry.dtype = whole.tensors[i].dtype;
    entry.shape = whole.tensors[i].shape;
    entry.digest = result.source[i];
    if (gone.contains(whole.tensors[i].name))
      entry.unproven = "elements of it were lost, and filled";
  }
}

// Checksums that lie beside the source are those of what it was. Some lie above
// it, or beside a single file, where no shadow is.
std::vector<sums::Sum> Salvager::sums_of_source() const {
  const bool single = files_.is_single();
  std::map<std::string, std::string> shadows;  // by source
  std::vector<std::string> sources;
  for (const std::string& file : files_.shadow().files()) {
    const std::string source = single ? source_ : io::join(source_, file);
    if (!io::is_file(source)) continue;  // it is made of another step's
    sources.push_back(source);
    shadows[source] = files_.shadow().path(file);
  }
  sums::Beside found =
      sums::beside(sources, single ? io::parent(source_) : source_);
  for (sums::Sum& sum : found.sums) sum.file = shadows.at(sum.file);
  std::erase_if(found.sums, [&](const sums::Sum& sum) {
    return is_shifted_file(sum.file);
  });
  return std::move(found.sums);
}

// The result must pass like any other checkpoint. What `scan` says of it holds
// for the source, too.
void Salvager::verify_result() {
  const Engine engine{.threads = options_.save.threads,
                      .max_mem = options_.save.max_mem};
  Report found =
      check_integrity(files_.path(), {},
                      {.from = catalog_.run ? options_.from : catalog_.format,
                       .read = options_.read},
                      engine);
  check_sums(sums_of_source(), engine, found);
  for (const Problem& problem : found.problems) {
    if (problem.severity != Problem::Severity::kDamage ||
        problem.kind == "executes")
      continue;
    const std::string what = shown(problem.message);
    const bool told = std::ranges::any_of(
        report_.lost,
        [&](const salvage::Note& note) { return note.what == what; });
    if (!told)
      report_.lost.push_back(
          {shown(problem.file),
           problem.tensor.empty() ? what : problem.tensor + ": " + what,
           false});
  }
}

// Writes the checksums of records that were filled or came from elsewhere.
void Salvager::seal() {
  for (const auto& [file, ranges] : files_.crcs) {
    files_.edit(file);
    files_.shadow().seal(file, ranges);
  }
}

// What is lost of a file, or with it, is no longer certified of it; "." is the
// whole.
void Salvager::mark_lost(library::Prepared& prepared) {
  const std::string one = files_.is_single() ? io::base_name(target_) : "";
  for (const salvage::Note& note : report_.lost) {
    std::string file = note.file.empty() ? "." : note.file;
    if (!one.empty()) file = one;
    prepared.unproven.files.emplace(file, note.what);
    const auto& files = prepared.target.files;
    if (one.empty() &&
        std::ranges::find(files, file, &TargetFile::path) == files.end())
      proven_.contents[file] = {
          .sha256 = {}, .ranges = {}, .unproven = note.what};
  }
}

// The files as tensors of bytes, so that the engine copies them like any
// other writer's: in parts, with a journal. A file that was rebuilt is another
// one in each run, so that its name has its content for --resume.
void Salvager::plan_copies(library::Prepared& prepared) const {
  Catalog& to = prepared.target.catalog;
  to.format = report_.format;
  for (const std::string& file : files_.shadow().files()) {
    const std::string from = files_.origin(file);
    const io::Handle handle = io::Handle::open_read(from);
    const bool rebuilt = from == files_.shadow().path(file);
    Tensor bytes;
    bytes.name = file;
    if (rebuilt) bytes.name += '\0' + sha256_of(handle, {});
    bytes.dtype = DType::u8;
    bytes.shape = {handle.size()};
    Piece whole;
    whole.box = Box::whole(bytes.shape);
    whole.extent.file = static_cast<uint32_t>(prepared.source.files.size());
    bytes.pieces = {whole};
    TargetFile copy;
    copy.path = files_.is_single() ? "" : file;
    copy.size = handle.size();
    prepared.target.files.push_back(std::move(copy));
    prepared.source.files.push_back({.path = from, .size = handle.size()});
    to.files.push_back({.path = file, .size = handle.size()});
    to.tensors.push_back(bytes);
    prepared.source.tensors.push_back(std::move(bytes));
  }
  prepared.plan = reshard::make_plan(prepared.source, prepared.target, false);
}

void Salvager::finish() {
  library::Prepared prepared;
  prepared.path = target_;
  prepared.single_file = files_.is_single();
  plan_copies(prepared);
  for (const TargetFile& file : prepared.target.files)
    report_.bytes += file.size;
  report_.files = prepared.target.files.size();
  if (!writes()) return;
  prove();
  const SaveOptions& save = options_.save;
  mark_lost(prepared);
  prepared.known = std::move(proven_);
  if (options_.dry_run) {
    check_target(prepared, save);
    return;
  }
  execute(prepared, save, progress_);
  report_.written = true;
}

Salvaged salvage_checkpoint(const std::string& source,
                            const std::string& target,
                            const SalvageOptions& options,
                            const Progress& progress) {
  const InterruptScope scope;
  Salvaged result = Salvager(source, target, options, progress).run();
  if (interrupted() && !result.written)
    throw Interrupted("stopped; " + target + " was not touched");
  return result;
}

}  // namespace ckpt::library
