// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/foreign.h"
#include "containers/hf/hub_cache.h"
#include "formats/dcp/directory.h"
#include "formats/file_list.h"
#include "formats/format.h"
#include "formats/loose_files.h"
#include "formats/runs/read/adopt.h"
#include "formats/runs/read/run.h"
#include "formats/runs/read/unsigned.h"
#include "formats/tried.h"
#include "formats/unrecognized.h"
#include "lib/failures.h"
#include "lib/io/file.h"
#include "lib/io/listing.h"
#include "lib/io/remote.h"
#include "lib/io/remote_below.h"
#include "lib/tensor_part.h"
#include "lib/text/format.h"
#include "lib/trace.h"
#include "lib/tree_memory.h"
#include "models/family.h"
#include "models/rules.h"

namespace ckpt::formats {
namespace {

// A file that can't be read, and whose name says it is something else, most
// likely is that: a .keras file is a zip archive, like
// torch's.
Catalog read(const Format& format, const std::string& path,
             const ReadOptions& options) {
  try {
    Catalog catalog = format.reader->read_catalog(path, options);
    if (TensorPart::is_set())
      std::erase_if(catalog.tensors, [](const Tensor& tensor) {
        return !TensorPart::wanted(tensor.name);
      });
    list_files(catalog.root.empty() ? path : catalog.root, catalog);
    return catalog;
  } catch (const tree_memory::Full& error) {
    throw resource_error({path, {}}, "{}", error.problem())
        .with_hint(error.hint());
  } catch (const Error& error) {
    const std::string& file = error.where().path;
    if (error.code() == ExitCode::kDamaged && io::is_file(file)) {
      if (const auto found = recognise_file(file); found && found->stands_in)
        throw missing_error({file, {}}, "not a checkpoint: this is {}",
                            found->what)
            .with_hint(std::string(found->hint));
      if (file == path && io::file_size(file) == 0) empty_file(path);
    }
    const auto foreign = recognise({}, io::base_name(path));
    if (!foreign) throw;
    throw error.with_hint(fmt::format("by its name this is {}", foreign->what));
  }
}

// Reads a run's step the way any other format's path is read.
class StepReader final : public Reader {
 public:
  StepReader(const runs::Found& found, std::string given)
      : found_(found), given_(std::move(given)) {}
  std::string_view name() const override { return "run"; }
  Support supports(const std::string&) const override {
    return {true, found_.why};
  }
  Catalog read_catalog(const std::string&,
                       const ReadOptions& options) const override {
    if (auto catalog = runs::read_run(found_, given_, options))
      return *std::move(catalog);
    Catalog nobodys;
    nobodys.path = found_.step;
    return nobodys;
  }

 private:
  const runs::Found& found_;
  const std::string given_;
};

// Says of an empty file whose step it is in, and what to do.
Error of_step(const Error& error, const runs::Found& found) {
  const std::string& file = error.where().path;
  const bool damaged = error.code() == ExitCode::kDamaged;
  if (!damaged || !io::is_file(file) || io::file_size(file) != 0) return error;
  const bool told = error.problem().find("is empty") != std::string::npos;
  return input_error(error.where(), "{} (in a step of {})",
                     told ? error.problem() : "is empty", found.trainer->what)
      .with_hint(error.hint().empty()
                     ? "fetch it again from where the step was saved"
                     : error.hint());
}

// Nothing if the step turns out not to be any trainer's.
std::optional<Catalog> read_found(const runs::Found& found,
                                  const std::string& path,
                                  const ReadOptions& options) {
  const Format format{.name = "run",
                      .what = "",
                      .reader = std::make_unique<StepReader>(found, path),
                      .writer = nullptr};
  // If a step is one file, there is nothing else to read.
  const bool file = !io::is_directory(found.step);
  try {
    Catalog catalog = read(format, file ? found.step : path, options);
    if (!catalog.run && catalog.root.empty()) return std::nullopt;
    return catalog;
  } catch (const Error& error) {
    throw of_step(error, found);
  }
}

Detection try_formats(const std::string& path) {
  Detection detection;
  detection.path = path;
  for (const Format& format : all_formats()) {
    if (!format.reader) continue;
    Support support = format.reader->supports(path);
    detection.tried.emplace_back(format.name, std::move(support.why));
    if (!support.yes) continue;
    detection.format = &format;
    return detection;
  }
  return detection;
}

// Megatron and OLMo-core put their own descriptions beside torch's files: a
// part stands for its directory, whichever format reads that.
Detection of_whole(Detection found, const std::string& path) {
  if (!dcp::is_part_name(path) || !io::is_file(path)) return found;
  Detection whole = try_formats(io::parent(path));
  const bool other = whole.format && whole.format != found.format;
  return other ? whole : found;
}

}  // namespace

std::vector<std::string> tried_formats(const std::string& path) {
  const io::SameListings listings;
  std::vector<std::string> answers;
  for (const auto& [name, why] : try_formats(path).tried)
    answers.push_back(fmt::format("not {}: {}", name, why));
  return answers;
}

Detection detect(const std::string& path) {
  failures::add_source(path);
  check_path(path);
  const io::SameListings listings;
  Detection detection = of_whole(try_formats(path), path);
  if (detection.format != nullptr) return detection;
  // No format knows the content, but the name still says which one can tell
  // what is wrong with it.
  if (io::is_file(path) && path.ends_with(".safetensors")) {
    detection.format = &find_format("safetensors");
    detection.tried.emplace_back("safetensors", "is named .safetensors");
    return detection;
  }
  if (io::is_directory(path)) unknown_directory(detection);
  unknown_file(detection);
}

namespace {

Catalog read_detected(const std::string& path, const ReadOptions& options);

// Throws what is missing if a directory that is not recognized, or damaged, is
// a trainer's step or its root but for one file.
void throw_nearest_step(const std::string& path, const Error& error,
                        const ReadOptions& options) {
  const bool damaged = error.code() == ExitCode::kDamaged;
  if (!damaged && error.code() != ExitCode::kMissing) return;
  auto step = runs::find_unsigned(path);
  if (!step) step = runs::find_unsigned_below(path);
  if (!step) step = runs::find_renamed(path);
  if (!step) return;
  // Only a step that opens without its trainer is worth naming.
  if (step->step != path) read_detected(step->step, options);
  const Error said = runs::without_sign(*step, path);
  throw damaged && !error.hint().empty() ? said.with_hint(error.hint()) : said;
}

// Whoever opens a step without its trainer's signature is told so: by an error
// if only a part of it would be read.
Catalog read_detected(const std::string& path, const ReadOptions& options) {
  const bool any_trainer = options.trainer.empty() && io::is_directory(path);
  Detection detection;
  Catalog catalog;
  try {
    detection = detect(path);
    catalog = read(*detection.format, detection.path, options);
  } catch (const Error& error) {
    if (any_trainer) throw_nearest_step(path, error, options);
    throw;
  }
  if (detection.path != path) {
    catalog.root = path;
    catalog.assumptions.push_back(fmt::format(
        "{} is a part of the checkpoint in {}, which is read",
        text::printable(io::base_name(path)), text::printable(detection.path)));
  }
  if (options.trainer.empty()) runs::adopt(catalog, {}, options);
  if (any_trainer && !catalog.run) {
    auto step = runs::find_unsigned(path);
    if (!step && catalog.path != path) step = runs::find_unsigned(catalog.path);
    const auto renamed = step ? step : runs::find_renamed(path);
    if (renamed && runs::is_part_of(*renamed, catalog))
      throw runs::without_sign(*renamed, path);
    if (step) catalog.problems.push_back(runs::note_without_sign(*step));
  }
  catalog.assumptions.insert(
      catalog.assumptions.begin(),
      fmt::format("format {}: {}", detection.format->name,
                  detection.tried.back().second));
  return catalog;
}

Catalog open_as(const std::string& path, const std::string& from,
                const ReadOptions& options) {
  if (const auto snapshot = find_snapshot(path)) {
    Catalog catalog = open_as(snapshot->path, from, options);
    catalog.assumptions.insert(catalog.assumptions.begin(), snapshot->why);
    return catalog;
  }
  const trace::Span span("headers");
  const io::SameListings listings;
  if (io::is_url(path) && from.empty() && options.trainer != "none")
    io::look_beside_remote(path);
  if (from.empty() && options.trainer != "none") {
    check_path(path);
    if (const auto found = runs::find_run(path, options.trainer))
      if (auto catalog = read_found(*found, path, options))
        return *std::move(catalog);
    if (!options.trainer.empty())
      throw missing_error({path, {}},
                          "is neither a step of {} nor a root of steps",
                          options.trainer)
          .with_hint("leave --trainer out: inspect -v says what it is");
  }
  if (from.empty()) return read_detected(path, options);
  const Format& format = find_format(from);
  if (!format.reader)
    throw usage_error({}, "format {} can be written, not read", from);
  check_path(path);
  return read(format, path, options);
}

// Names of files below are cut off behind the path and one slash, and the name
// of a folder says which step it is: "step/", "./" and ".." have neither.
std::string tidied(const std::string& given) {
  std::string path = given;
  const size_t scheme = path.find("://");
  const size_t least = io::is_url(path) && scheme != path.npos
                           ? path.find('/', scheme + 3)
                           : size_t{0};
  while (least != path.npos && path.size() > least + 1 && path.ends_with('/'))
    path.pop_back();
  // A file has no slash at its end.
  if (!io::is_url(path) && path != given && !io::is_directory(path))
    return given;
  const std::string name = io::base_name(path);
  if (io::is_url(path) || (name != "." && name != "..")) return path;
  std::error_code failed;
  const auto real = std::filesystem::canonical(path, failed);
  return failed ? path : real.string();
}

}  // namespace

Catalog open(const std::string& given, const std::string& from,
             const ReadOptions& options) {
  const std::string path = tidied(given);
  // Report a misspelt family before anything is read.
  if (!options.family.empty() && !families::Rules::is_family(options.family))
    families::Family::by_name(options.family);
  const uint64_t begin = failures::mark();
  failures::add_source(path);
  try {
    Catalog catalog = open_as(path, from, options);
    find_unfinished(catalog);
    if (const auto failure = failures::since(begin, path)) throw *failure;
    return catalog;
  } catch (const Error& error) {
    const auto failure = failures::since(begin, path);
    if (failure && failures::may_hide_behind(error)) throw *failure;
    throw;
  }
}

}  // namespace ckpt::formats
