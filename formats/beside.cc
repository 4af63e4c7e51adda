// SPDX-License-Identifier: Apache-2.0
#include "formats/beside.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/index.h"
#include "containers/sums/sums.h"
#include "formats/file_list.h"
#include "formats/format.h"
#include "formats/loose_files.h"
#include "formats/runs/read/run.h"
#include "formats/stray.h"
#include "lib/decoding.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"

namespace ckpt::formats {
namespace {

namespace fs = std::filesystem;

struct OwnFiles {
  std::string_view format;
  std::vector<text::Glob> globs;
};

const std::vector<OwnFiles>& own_files() {
  static const std::vector<OwnFiles> all = [] {
    std::vector<OwnFiles> rows;
    for (const Format& format : all_formats()) {
      OwnFiles& row = rows.emplace_back(OwnFiles{format.name, {}});
      for (const std::string_view glob : format.traits.own_files)
        row.globs.emplace_back(std::string(glob));
    }
    return rows;
  }();
  return all;
}

}  // namespace

bool is_format_file(std::string_view format, std::string_view path) {
  const auto& all = own_files();
  const auto row = std::ranges::find(all, format, &OwnFiles::format);
  return row != all.end() &&
         std::ranges::any_of(row->globs, [&](const text::Glob& glob) {
           return glob.matches(path);
         });
}

namespace {

bool is_below(const fs::path& path, const fs::path& directory) {
  const auto [in, at] = std::ranges::mismatch(directory, path);
  return in == directory.end();
}

// .git, and what downloads leave behind.
bool is_hidden_folder(std::string_view path) {
  constexpr auto kFolders = std::to_array<std::string_view>(
      {".git", ".cache", "__pycache__", ".ipynb_checkpoints"});
  while (path.find('/') != path.npos) {
    if (std::ranges::count(kFolders, path.substr(0, path.find('/'))))
      return true;
    path.remove_prefix(path.find('/') + 1);
  }
  return false;
}

// Files of the working directory are opened as "x" and as "./x".
std::string plain(std::string path) {
  while (path.starts_with("./")) path.erase(0, 2);
  return path;
}

class Settling {
 public:
  Settling(const Catalog& source, Target& target)
      : source_(source), target_(target) {
    for (const File& file : source.files)
      payload_.emplace(plain(file.path), false);
    for (const Tensor& tensor : source.tensors) use(tensor);
    for (const Redundant& one : source.redundant) use(one.tensor);
    for (const Problem& problem : target.problems)
      if (problem.kind == "object_left_out") dropped_.insert(problem.tensor);
    for (const Object& object : source.objects)
      if (object.bytes && !is_dropped(object)) use(object.file);
    for (const Sidecar& sidecar : source.sidecars) {
      sidecars_.insert(plain(sidecar.path));
      if (sidecar.text) made_.insert(sidecar.name);
    }
    for (const Problem& problem : source.problems) {
      if (problem.kind == "unread_file" || problem.kind == "stray_file")
        unread_.emplace(plain(problem.file), problem.message);
      if (problem.kind == "own_tensors") own_.insert(plain(problem.file));
    }
    for (const TargetFile& file : target.files) {
      if (!file.copy_of.empty()) copies_.insert(plain(file.copy_of));
      take(file.path);
    }
    for (FileFate& fate : target.fates)
      decided_.emplace(fate.path, std::move(fate));
    target.fates.clear();
    find_nested();
  }

  void settle() {
    for (const SourceFile& file : source_.file_list)
      target_.fates.push_back(decide(file));
    // Payload comes first; the file that completes the checkpoint comes last.
    target_.files.insert(
        target_.files.begin() +
            static_cast<ptrdiff_t>(target_.catalog.files.size()),
        std::make_move_iterator(added_.begin()),
        std::make_move_iterator(added_.end()));
    tell();
    tell_unreadable_copies(target_);
  }

 private:
  void use(uint32_t file) { use(source_.files[file]); }
  void use(const File& file) {
    if (!is_decoded(file)) {
      payload_[plain(file.path)] = true;
      return;
    }
    const Decoding& from = decoding_of(file);
    for (const Tensor* part : parts_of(from))
      for (const Piece& piece : part->pieces)
        use(from.files->at(piece.extent.file));
  }
  void use(const Tensor& tensor) {
    for (const Piece& piece : tensor.pieces) use(piece.extent.file);
  }

  // Marks the name and all folders above it as the target's.
  void take(std::string path) {
    names_.insert(path);
    for (path = io::parent(path); path != "." && path != "/";
         path = io::parent(path))
      folders_.insert(path);
  }

  FileFate decide(const SourceFile& file) {
    const std::string where = io::join(source_.file_root, file.path);
    const std::string key = plain(where);
    if (const auto found = decided_.find(file.path); found != decided_.end())
      return std::move(found->second);
    if (copies_.contains(key)) {
      check(where);
      return {file.path, Fate::kCarried, {}};
    }
    // An adapter in its base's folder is loaded with it, and fails without its
    // weights once its configuration is there.
    const bool beside =
        keeps_hf() && io::base_name(file.path).starts_with("adapter_model");
    if (const auto found = unread_.find(key); found != unread_.end() && !beside)
      return left(file, found->second);
    if (const Nested* nested = nested_of(key)) {
      if (nested->why.empty())
        return carry(file, name_in_checkpoint(where).value(), where);
      return left(file, nested->why);
    }
    if (const auto found = payload_.find(key); found != payload_.end()) {
      if (found->second) return {file.path, Fate::kConverted, {}};
      if (!(file.part == "model" || file.part == "optim")) {
        if (!source_.run || keeps_values(file.path))
          return {file.path, Fate::kConverted, {}};
        return left(file, "none of its values has a place in the target");
      }
      return left(file,
                  "no tensor is taken from it: it has none, none was asked "
                  "for, or another "
                  "file has the same");
    }
    if (io::base_name(key) == ".metadata")
      if (const auto used = uses_folder(io::parent(key))) {
        if (*used) return {file.path, Fate::kConverted, {}};
        return left(file, "no tensor is taken from the files that it lists");
      }
    const auto inner = name_in_checkpoint(where);
    if (is_format_file(source_.format, inner.value_or(file.path)) ||
        is_in_array(where) || (file.sidecar && !sidecars_.contains(key)))
      return {file.path, Fate::kConverted, {}};
    if (source_.run && !traits_of(target_.catalog.format).is_run &&
        runs::is_trainers_own(source_.run->trainer,
                              inner.value_or(file.path)) &&
        keeps_values(file.path))
      return {file.path, Fate::kConverted, {}};
    std::string why = why_not(file, inner);
    if (!why.empty()) return left(file, std::move(why));
    return carry(file, loaders_name(file, inner.value_or(file.path)), where);
  }

  // Megatron keeps a tokenizer in a folder of the step; transformers looks for
  // it beside the weights.
  std::string loaders_name(const SourceFile& file, std::string name) const {
    constexpr std::string_view kFolder = "tokenizer/";
    const bool moves = name.starts_with(kFolder) &&
                       traits_of(source_.format).dialect == "mcore" &&
                       traits_of(target_.catalog.format).is_container &&
                       file.part == "tokenizer";
    return moves ? name.substr(kFolder.size()) : name;
  }

  // A folder with an index and none of the payload is a checkpoint of its own:
  // it goes whole, into a target of the same kind, or not at all.
  struct Nested {
    std::string folder;
    std::string why;  // it is left out; "" if it goes along
  };

  void find_nested() {
    if (source_.run) return;
    for (const SourceFile& file : source_.file_list) {
      const std::string where = io::join(source_.file_root, file.path);
      if (io::base_name(where) != ".metadata") continue;
      const std::string folder = io::parent(where);
      const auto inner = name_in_checkpoint(folder);
      if (!inner || uses_below(plain(folder))) continue;
      const std::string path = io::join(target_.beside, *inner);
      const bool one_file =
          !target_.files.empty() && target_.files.front().path.empty();
      const bool fits = !one_file && !names_.contains(path) &&
                        !folders_.contains(path) &&
                        source_.format == target_.catalog.format;
      nested_.push_back(
          {plain(folder),
           fits ? std::string()
                : fmt::format("{} is a checkpoint of its own: convert it by "
                              "itself",
                              text::printable(*inner))});
    }
  }

  bool uses_below(const std::string& folder) const {
    return std::ranges::any_of(payload_, [&](const auto& one) {
      return one.first.starts_with(folder + "/");
    });
  }

  const Nested* nested_of(const std::string& key) const {
    for (const Nested& one : nested_)
      if (key.starts_with(one.folder + "/")) return &one;
    return nullptr;
  }

  // Whether anything is taken from the payload in a folder; nothing if it has
  // none.
  std::optional<bool> uses_folder(const std::string& folder) const {
    std::optional<bool> used;
    for (const auto& [path, is_used] : payload_)
      if (io::parent(path) == folder) used = used.value_or(false) || is_used;
    return used;
  }

  bool is_dropped(const Object& object) const {
    return dropped_.contains(object.name) ||
           dropped_.contains(text::printable(object.name));
  }

  // Values of a run's file are objects named after it, behind their role.
  bool keeps_values(const std::string& path) const {
    const std::string name = io::base_name(path);
    const std::string stem = name.substr(0, name.rfind('.'));
    return std::ranges::any_of(source_.objects, [&](const Object& object) {
      const size_t at = object.name.find(stem);
      if (at == std::string::npos || is_dropped(object)) return false;
      const size_t end = at + stem.size();
      return (at == 0 || object.name[at - 1] == '.') &&
             (end == object.name.size() || object.name[end] == '.');
    });
  }

  // Megatron's zarr strategy leaves its own arrays: NAME.sync.
  bool is_in_array(const std::string& where) const {
    return traits_of(source_.format).leaves_arrays &&
           io::is_file(io::join(io::parent(where), ".zarray"));
  }

  // Relative to the checkpoint; nothing if it is beside it.
  std::optional<std::string> name_in_checkpoint(
      const std::string& where) const {
    std::string below = source_.path;
    if (below == source_.file_root) below = io::join(below, "");
    while (below.ends_with('/')) below.pop_back();
    if (!where.starts_with(below + "/")) return std::nullopt;
    std::string_view rest = std::string_view(where).substr(below.size());
    while (rest.starts_with('/')) rest.remove_prefix(1);
    return std::string(rest);
  }

  std::string why_not(const SourceFile& file,
                      const std::optional<std::string>& inner) const {
    if (!target_.files.empty() && target_.files.front().path.empty())
      return "the target is one file";
    if (!inner && file.path.find('/') != file.path.npos)
      return "it lies beside the checkpoint that was opened";
    if (is_hidden_folder(file.path))
      return "version control and download caches are not part of a checkpoint";
    const std::string name = io::base_name(file.path);
    if (sums::is_list(name)) return "checksums of the source's files";
    if (name.starts_with("adapter_model") && !keeps_hf())
      return "an adapter in the names of the source: convert it by itself";
    // torch's HuggingFaceStorageWriter makes the model's files of these.
    if (file.part == "model" && inner && inner->starts_with("sharded/shard-"))
      return "the ranks' parts of the same tensors";
    if (file.part == "model" && !name.starts_with("adapter_model") &&
        !own_.contains(plain(io::join(source_.file_root, file.path))))
      return "weights that are not part of this checkpoint: convert them by "
             "themselves";
    if (source_.run && !traits_of(target_.catalog.format).is_run &&
        runs::is_trainers_own(source_.run->trainer, inner.value_or(file.path)))
      return fmt::format("{} alone reads it", source_.run->trainer);
    if (!inner && file.part == "optim")
      return "a state of the optimizer beside the step, by the source's ranks: "
             "none of the target's would find its own in it";
    if (is_state(file.part) && !keeps_state())
      return fmt::format(
          "a state of training as {} keeps it: {} does not "
          "read it",
          source_.format, target_.catalog.format);
    return {};
  }

  // Each container reads what the other has beside its weights.
  bool keeps_hf() const {
    return traits_of(source_.format).is_container &&
           traits_of(target_.catalog.format).is_container &&
           source_.dialect == target_.catalog.dialect;
  }

  bool keeps_state() const {
    if (source_.run) return false;  // the target is not any trainer's folder
    return source_.format == target_.catalog.format ||
           (traits_of(source_.format).is_container &&
            traits_of(target_.catalog.format).is_container);
  }

  FileFate carry(const SourceFile& file, const std::string& name,
                 const std::string& where) {
    // What lies beside a step is not its own: nothing there may stop it.
    const bool beside = io::is_link(where) && !name_in_checkpoint(where);
    try {
      if (io::is_link(where) && io::is_listed_directory(where))
        return left(file, "a link to a directory, which is not followed");
      check(where);
    } catch (const Error& error) {
      if (beside)
        return left(file, "beside the checkpoint, " + error.problem());
      if (is_stray(file, where)) return left(file, io::why_unreadable(where));
      throw;
    }
    const std::string path = io::join(target_.beside, name);
    // The target's file was made from it.
    if (file.part == "config" && made_.contains(name) && names_.contains(path))
      return {file.path, Fate::kConverted, {}};
    if (names_.contains(path) || folders_.contains(path) || in_file(path))
      return left(file,
                  "the target has a " + text::printable(path) + " of its own");
    TargetFile copy;
    copy.path = path;
    copy.size = io::file_size(where).value_or(0);
    copy.copy_of = where;
    added_.push_back(std::move(copy));
    take(path);
    return {file.path, Fate::kCarried, {}};
  }

  // True if a folder above it is a file of the target.
  bool in_file(std::string path) const {
    for (path = io::parent(path); path != "." && path != "/";
         path = io::parent(path))
      if (names_.contains(path)) return true;
    return false;
  }

  // A link may point to any file on the machine, which would be published with
  // the target.
  void check(const std::string& where) {
    if (io::leads_nowhere(where))
      throw missing_error({where, {}}, "broken symlink")
          .with_hint(
              "fetch the file again (a pruned cache keeps such links), or "
              "remove the link to convert without it");
    if (!io::is_file(where)) {  // throws for anything but files and folders
      if (io::is_url(where) && !io::is_directory(where))
        throw missing_error({where, {}},
                            "is listed, and the server does not have it")
            .with_hint("the directory is changing, or it is a broken symlink");
      return;
    }
    if (!io::is_link(where)) return;
    if (root_.empty()) root_ = fs::canonical(source_.file_root);
    const fs::path real = fs::canonical(where);
    if (is_below(real, root_)) return;
    for (fs::path up = root_; up.has_relative_path(); up = up.parent_path())
      if (up.parent_path().filename() == "snapshots" &&
          is_below(real, up.parent_path().parent_path() / "blobs"))
        return;
    throw unsafe_error({where, {}},
                       "is a link to {}, which lies outside of the source",
                       text::printable(real.string()))
        .with_hint("put a copy of the file in its place, or remove the link");
  }

  static FileFate left(const SourceFile& file, std::string why) {
    return {file.path, Fate::kLeftOut, std::move(why)};
  }

  void tell() {
    std::vector<std::string> names;
    for (const FileFate& fate : target_.fates)
      if (fate.fate == Fate::kLeftOut && !is_hidden_folder(fate.path))
        names.push_back(text::printable(fate.path));
    if (names.empty()) return;
    target_.problems.push_back(warning(
        "files_left_out", {}, "{} of the source {} left out: {} (-v says why)",
        text::counted(names.size(), "file"), names.size() == 1 ? "is" : "are",
        list_some(names)));
  }

  const Catalog& source_;
  Target& target_;
  std::unordered_map<std::string, bool> payload_;  // whether it is used
  std::unordered_set<std::string> dropped_;        // objects
  std::unordered_set<std::string> sidecars_;
  std::unordered_set<std::string> made_;                 // names
  std::unordered_map<std::string, std::string> unread_;  // path, why
  std::unordered_set<std::string> own_;  // weights beside the checkpoint's
  std::unordered_set<std::string> copies_;
  std::unordered_set<std::string> names_;    // of the target's files
  std::unordered_set<std::string> folders_;  // above them
  std::unordered_map<std::string, FileFate> decided_;
  std::vector<Nested> nested_;
  std::vector<TargetFile> added_;
  fs::path root_;
};

}  // namespace

void leave_out(const Sidecar& sidecar, const Catalog& source,
               std::string reason, Target& target) {
  const std::string above = io::join(source.file_root, "") + "/";
  if (sidecar.path.starts_with(above))
    target.fates.push_back(
        {sidecar.path.substr(above.size()), Fate::kLeftOut, std::move(reason)});
}

void settle_files(const Catalog& source, Target& target) {
  Settling(source, target).settle();
}

}  // namespace ckpt::formats
