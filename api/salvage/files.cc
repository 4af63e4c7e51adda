// SPDX-License-Identifier: Apache-2.0
#include "api/salvage/files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "api/salvage/gone.h"
#include "ckpt/error.h"
#include "containers/hf/index.h"
#include "containers/hf/numbered.h"
#include "containers/hf/weight_names.h"
#include "containers/torch/container.h"
#include "lib/io/file.h"
#include "lib/io/listing.h"
#include "lib/io/remote.h"
#include "lib/pickle/decode.h"
#include "lib/text/format.h"
#include "lib/text/json.h"

namespace ckpt::library {
namespace {

namespace fs = std::filesystem;

// What megatron-core writes for any model.
constexpr std::string_view kDistMetadata =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
    R"("common_backend": "torch", "common_backend_version": 1})";

constexpr uint64_t kMostText = uint64_t{1} << 30;

bool ends_with_any(std::string_view name,
                   std::initializer_list<std::string_view> ends) {
  return std::ranges::any_of(
      ends, [name](std::string_view end) { return name.ends_with(end); });
}

bool is_json(std::string_view file) {
  const std::string name = io::base_name(file);
  return name.ends_with(".json") || name == ".zarray" || name == ".zattrs" ||
         name == ".zgroup";
}

bool is_torch(std::string_view file) {
  return ends_with_any(file, {".pt", ".pth", ".bin", ".ckpt", ".th"});
}

// True for files that say where things are or what the model is, and are the
// same in all steps of a run.
bool is_structure(std::string_view file) {
  const std::string name = io::base_name(file);
  for (const std::string_view known :
       {".metadata", "metadata.json", ".zarray", ".zattrs", ".zgroup",
        "config.json", "hf_config.json", "generation_config.json",
        "params.json", "model.yaml"})
    if (name == known) return true;
  return formats::is_index_name(name, ".safetensors") ||
         formats::is_index_name(name, ".bin");
}

// "0", "3.1": a chunk of a zarr array.
bool is_chunk(std::string_view file) {
  const std::string name = io::base_name(file);
  return !name.empty() &&
         name.find_first_not_of("0123456789.") == std::string::npos;
}

bool has_local_header(const io::Handle& file) {
  const std::string head =
      file.read_string(0, std::min<uint64_t>(file.size(), 1 << 16));
  return head.find("PK\3\4") != head.npos;
}

}  // namespace

std::vector<std::string> files_below(const std::string& directory) {
  std::vector<std::string> names;
  if (io::is_url(directory)) {
    for (io::RemoteEntry& one : io::files_below(directory))
      if (io::base_name(one.path) != kManifestName)
        names.push_back(std::move(one.path));
    std::ranges::sort(names);
    return names;
  }
  std::error_code failed;
  fs::recursive_directory_iterator at(directory, failed);
  for (; !failed && at != fs::recursive_directory_iterator();
       at.increment(failed)) {
    if (io::is_lost_and_found(at->path().string())) {
      at.disable_recursion_pending();
      continue;
    }
    if (at->is_directory() && at->is_symlink())
      throw Error(ExitCode::kUnsafe, {at->path().string(), {}},
                  "a link to a directory, which salvage doesn't follow",
                  "copy what it leads to in its place: cp -rL");
    if (at->is_directory() || at->path().filename() == kManifestName) continue;
    std::error_code nothing;
    const bool dangles =
        at->is_symlink() && !fs::exists(at->path(), nothing) && !nothing;
    if (!dangles && !at->is_regular_file())
      throw Error(ExitCode::kUnsafe, {at->path().string(), {}},
                  "neither a file nor a directory",
                  "remove it, or copy what it leads to");
    names.push_back(at->path().lexically_relative(directory).string());
  }
  if (failed)
    throw Error(ExitCode::kIo, {directory, {}},
                "can't be listed: " + failed.message(), "");
  std::ranges::sort(names);
  return names;
}

SalvageFiles::SalvageFiles(std::string source, const std::string& target,
                           const SalvageOptions& options, Salvaged& report)
    : source_(std::move(source)),
      options_(options),
      report_(report),
      shadow_(target) {
  if (io::is_file(source_))
    single_ = io::base_name(source_);
  else if (!io::is_directory(source_))
    throw missing_error({source_, {}}, "no such file or directory");
  names_ = io::is_file(source_) ? std::vector{single_} : files_below(source_);
}

std::string SalvageFiles::source_of(const std::string& file) const {
  return single_.empty() ? io::join(source_, file) : source_;
}

std::string SalvageFiles::like_of(const std::string& file) const {
  if (options_.like.empty()) return {};
  const std::string path =
      single_.empty() ? io::join(options_.like, file) : options_.like;
  return io::is_file(path) ? path : "";
}

std::string SalvageFiles::name_of(const std::string& shadow_path) const {
  return fs::path(shadow_path).lexically_relative(shadow_.path("")).string();
}

std::string SalvageFiles::origin(const std::string& file) const {
  const auto link = links_.find(file);
  return link == links_.end() ? shadow_.path(file) : link->second;
}

void SalvageFiles::note(const std::string& file, std::string what,
                        bool inferred) {
  report_.rebuilt.push_back({file, std::move(what), inferred});
}

Catalog* SalvageFiles::like() {
  if (options_.like.empty()) return nullptr;
  if (!like_) {
    like_ = std::make_unique<Catalog>(
        formats::open(options_.like, options_.from, options_.read));
    locate(*like_);
  }
  return like_.get();
}

void SalvageFiles::take(const std::string& file,
                        const salvage::Repair& repair) {
  shadow_.build(file, repair);
  links_.erase(file);
  if (!repair.gone.empty()) gone[file] = repair.gone;
  if (!repair.crcs.empty()) crcs[file] = repair.crcs;
  for (const salvage::Note& told : repair.notes)
    note(file, told.what, told.inferred);
}

io::Handle SalvageFiles::edit(const std::string& file) {
  if (const auto link = links_.find(file); link != links_.end()) {
    const std::string from = link->second;
    const uint64_t size = io::Handle::open_read(from).size();
    salvage::Repair copy;
    copy.size = size;
    copy.copies.push_back({from, 0, 0, size});
    shadow_.build(file, copy);
    links_.erase(file);
  }
  return shadow_.edit(file);
}

// A rank's directory shows that the rank existed, even if its files are lost.
void SalvageFiles::make_directories() {
  std::error_code failed;
  fs::recursive_directory_iterator at(source_, failed);
  for (; !failed && at != fs::recursive_directory_iterator();
       at.increment(failed)) {
    if (io::is_lost_and_found(at->path().string()))
      at.disable_recursion_pending();
    else if (at->is_directory() && !at->is_symlink())
      shadow_.make_directory(at->path().lexically_relative(source_).string());
  }
}

void SalvageFiles::run() {
  if (single_.empty()) make_directories();
  for (const std::string& file : names_) repair(file);
  if (!single_.empty()) return;
  find_missing();
  check_indexes();
  check_items();
  infer_common_part();
}

void SalvageFiles::repair(const std::string& file) {
  try {
    if (repair_contents(file)) return;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged &&
        error.code() != ExitCode::kMissing)
      throw;
    give_up(file, error.code() == ExitCode::kMissing ? "broken symlink"
                                                     : error.problem());
    return;
  }
  shadow_.link(file, source_of(file));
  links_[file] = source_of(file);
}

// True if it was rebuilt, false if it is as it should be or nobody can tell.
bool SalvageFiles::repair_contents(const std::string& file) {
  const std::string path = source_of(file);
  const io::Handle handle = io::Handle::open_read(path);
  const std::string other = like_of(file);
  // The locks of Megatron's flattened writes are empty .zarray files.
  if (handle.size() == 0 && file.ends_with(".sync/.zarray")) return false;
  if (handle.size() == 0) {
    if (is_torch(file) || is_structure(file) ||
        ends_with_any(file, {".safetensors", ".distcp"}))
      throw input_error({path, {}}, "is empty");
    return false;
  }
  if (file.ends_with(".safetensors")) {
    const auto repair = salvage::repair_safetensors(path, other);
    if (repair) take(file, *repair);
    return repair.has_value();
  }
  // Accelerate's random states are zips, too: random_states_0.pkl.
  const bool zip = !file.ends_with(".distcp") &&
                   torch::sniff(path).what == torch::Sniffed::kTorchZip;
  if (is_torch(file) || zip) {
    const torch::Sniffed what = torch::sniff(path).what;
    if (what != torch::Sniffed::kTorchZip && !has_local_header(handle)) {
      if (what == torch::Sniffed::kNothing && !other.empty())
        throw input_error({path, {}}, "no longer a recognized file");
      return false;
    }
    const auto repair = salvage::repair_zip(path);
    if (repair) take(file, *repair);
    return repair.has_value();
  }
  if (is_json(file))
    text::parse_python_json(io::read_file(path, kMostText), path);
  if (io::base_name(file) == ".metadata")
    pickle::decode(handle, 0, handle.size());
  return false;
}

void SalvageFiles::give_up(const std::string& file, const std::string& why) {
  // Done once all the shards that can be there are.
  if (formats::is_index_name(io::base_name(file), ".safetensors"))
    broken_indexes_.emplace(file, why);
  else
    give_up_others(file, why);
}

void SalvageFiles::give_up_others(const std::string& file,
                                  const std::string& why) {
  const std::string name = io::base_name(file);
  if (take_unrenamed(file, why)) return;
  const std::string other = like_of(file);
  const bool dist =
      name == "metadata.json" &&
      std::ranges::any_of(names_, [](const std::string& other_name) {
        return other_name.ends_with(".distcp");
      });
  if (other.empty() && dist) {
    shadow_.write(file, std::string(kDistMetadata));
    return note(file, why + "; what megatron-core writes there", true);
  }
  if (other.empty() &&
      (name == ".zarray" || name == "common.pt" || name == ".metadata")) {
    unknown_.emplace(file, why);
    return;
  }
  if (other.empty()) {
    report_.lost.push_back({file, why, false});
    return;
  }
  std::vector<salvage::Range> payload;
  if (!is_structure(file)) {
    const Catalog& catalog = *like();
    for (const Tensor& tensor : catalog.tensors) {
      for (const Piece& piece : tensor.pieces) {
        const File& at = catalog.files[piece.extent.file];
        if (at.path != other) continue;
        if (at.codec != Codec::kRaw) {
          report_.lost.push_back({file, why + "; it is compressed", false});
          return;
        }
        for_each_run(
            tensor, piece, {{0, element_count(piece)}},
            [&](uint64_t, uint64_t offset, uint64_t elements) {
              payload.push_back(
                  {offset, offset + elements * element_size(tensor.dtype)});
            });
      }
    }
  }
  salvage::Repair repair = salvage::from_template(other, std::move(payload));
  repair.notes[0].what = why + "; " + repair.notes[0].what;
  take(file, repair);
  // Values besides tensors (steps, seeds) belong to the other step.
  uint64_t others = 0;
  for (const salvage::Copy& copy : repair.copies) others += copy.size;
  if (others && !is_structure(file) && !file.ends_with(".safetensors"))
    report_.lost.push_back({file, "its values are those of " + other, true});
}

// Another step of this run has as many shards. Of any other folder the files
// would be "missing" here, and take the place of those that are sound.
void SalvageFiles::check_like(const std::set<std::string>& others) const {
  std::map<std::string, std::string> shards;  // by folder and ending
  const auto kind_of = [](const std::string& name) {
    return io::join(io::parent(name), fs::path(name).extension().string());
  };
  const auto count_of = [](const std::string& name) {
    const auto numbered = formats::parse_numbered(io::base_name(name));
    return numbered ? numbered->count : 1;
  };
  for (const std::string& name : names_)
    if (formats::has_loader(io::base_name(name)))
      shards.emplace(kind_of(name), name);
  for (const std::string& name : others) {
    const auto own = shards.find(kind_of(name));
    if (own == shards.end() || !formats::has_loader(io::base_name(name)) ||
        count_of(own->second) == count_of(name))
      continue;
    throw usage_error(
        {options_.like, {}}, "has {}, and {} has {}: no step of the same run",
        text::printable(name), source_, text::printable(own->second))
        .with_hint(
            "leave --like out: --partial zeros (or nan) writes what is left");
  }
}

// Finds what another step has or the manifest lists, but this one lacks.
void SalvageFiles::find_missing() {
  std::set<std::string> missing;
  if (!options_.like.empty() && io::is_directory(options_.like))
    for (const std::string& name : files_below(options_.like))
      missing.insert(name);
  check_like(missing);
  const std::string manifest = manifest_path(source_);
  if (io::is_file(manifest)) {
    try {
      for (const auto& [name, size] : read_manifest(manifest).files)
        missing.insert(name);
    } catch (const Error&) {
      note(std::string(kManifestName), "can't be read; not used", false);
    }
  }
  for (const std::string& name : names_) missing.erase(name);
  for (const std::string& name : missing) give_up(name, "it is missing");
  take_twins();
  find_lost_configuration();
  find_lost_structure();
  const Manifest known = manifest_of_source();
  match_metadata(known);
  const bool dist = std::ranges::any_of(
      names_, [](const std::string& name) { return name == "common.pt"; });
  const auto has = [&](const std::string& name) {
    return std::ranges::count(shadow_.files(), name) > 0;
  };
  if (dist && has(".metadata") && !has("metadata.json"))
    give_up("metadata.json", "it is missing");
  infer_arrays(known);
}

std::string SalvageFiles::folder_without_common() const {
  const std::vector<std::string> files = shadow_.files();
  for (const std::string& file : files) {
    const bool zarr = io::base_name(file) == ".zarray";
    const fs::path array = fs::path(file).parent_path();
    const fs::path folder = zarr ? array.parent_path() : array;
    const auto has = [&](const char* name) {
      return std::ranges::count(files, (folder / name).string()) > 0;
    };
    const bool item = file.ends_with(".distcp") && has(".metadata");
    if ((zarr || item) && has("metadata.json") && !has("common.pt"))
      return folder.empty() ? "." : folder.string();
  }
  return {};
}

// Finds data whose description is gone, if no other file tells what it held.
void SalvageFiles::find_lost_structure() {
  const std::vector<std::string> before = shadow_.files();
  for (const std::string& name : before) {
    const std::string index =
        (fs::path(name).parent_path() / ".metadata").string();
    if (name == index + ".tmp" && !std::ranges::binary_search(before, index))
      take_unrenamed(index, "it is missing");
  }
  std::set<std::string> there, told;
  for (const std::string& name : shadow_.files()) {
    there.insert(name);
    if (name.ends_with(".metadata"))  // a rank's: __0.metadata
      there.insert((fs::path(name).parent_path() / ".metadata").string());
  }
  for (const salvage::Note& note : report_.lost) told.insert(note.file);
  const bool zarr = std::ranges::any_of(there, [](const std::string& name) {
    return io::base_name(name) == ".zarray";
  });
  for (const std::string& name : there) {
    const fs::path folder = fs::path(name).parent_path();
    const std::string metadata = (folder / ".metadata").string();
    if (name.ends_with(".distcp") && !there.contains(metadata) &&
        !told.contains(metadata))
      unknown_.emplace(metadata, "it is missing");
    if (!zarr || !is_chunk(name)) continue;
    // Chunks whose indexes are joined by "/" are in folders of their own.
    fs::path array = folder;
    while (!there.contains((array / ".zarray").string()) &&
           is_chunk(array.string()))
      array = array.parent_path();
    const std::string file = (array / ".zarray").string();
    if (!there.contains(file)) unknown_.emplace(file, "it is missing");
  }
}

// Checks for files of items that are cut or lost: .metadata knows their
// lengths.
void SalvageFiles::check_items() {
  const std::vector<std::string> files = shadow_.files();
  for (const std::string& file : files) {
    if (io::base_name(file) != ".metadata") continue;
    try {
      check_items(file);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kDamaged) throw;  // left to its reader
    }
  }
}

void SalvageFiles::check_items(const std::string& metadata) {
  // Far more than any file has; the file system stores none of it.
  constexpr uint64_t kLong = uint64_t{1} << 42;
  const fs::path folder = fs::path(metadata).parent_path();
  const std::string path = shadow_.path(metadata);
  std::map<std::string, uint64_t> sizes;
  {
    Shadow probe(path);
    probe.link(".metadata", path);
    for (const std::string& name : salvage::data_files(path)) {
      probe.write(name, "");
      probe.edit(name).allocate(kLong);
    }
    sizes = salvage::data_sizes(probe.path(".metadata"));
  }
  for (const auto& [name, size] : sizes) {
    const std::string file = (folder / name).string();
    const bool there = std::ranges::binary_search(shadow_.files(), file);
    const std::string from = there ? origin(file) : "";
    const uint64_t have = there ? io::Handle::open_read(from).size() : 0;
    if (have >= size) continue;
    salvage::Repair repair;
    repair.size = size;
    if (have) repair.copies.push_back({from, 0, 0, have});
    repair.gone = {{have, size}};
    repair.notes.push_back(
        {file, fmt::format("{} bytes of {} are there", have, size), false});
    take(file, repair);
    std::erase_if(report_.lost,
                  [&](const salvage::Note& lost) { return lost.file == file; });
  }
}

}  // namespace ckpt::library
