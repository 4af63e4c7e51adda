// SPDX-License-Identifier: Apache-2.0
#include "formats/accounted.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "containers/foreign.h"
#include "formats/beside.h"
#include "formats/file_list.h"
#include "formats/format.h"
#include "lib/io/file.h"
#include "lib/manifest.h"
#include "lib/text/glob.h"

namespace ckpt::formats {
namespace {

using FileNames = std::vector<std::string>;

std::string_view extension(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == path.npos ? "" : path.substr(dot);
}

bool is_one_of(std::string_view text,
               std::initializer_list<std::string_view> all) {
  return std::ranges::find(all, text) != all.end();
}

// Of these, only files that were read belong to the checkpoint.
bool is_weights(std::string_view path) {
  return is_one_of(extension(path),
                   {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".distcp",
                    ".nemo", ".npz", ".npy"}) ||
         std::ranges::any_of(other_formats(), [&](const OtherFormat& other) {
           return path.ends_with(other.ending);
         });
}

// Files that people write, whatever their name: optimizer_notes.md.
bool is_written_by_hand(std::string_view path) {
  return is_one_of(
      extension(path),
      {".ipynb", ".md", ".sh", ".c", ".cc", ".cpp", ".h", ".cu", ".tex", ".rs",
       ".go", ".js", ".csv", ".docx", ".parquet", ".pdf"});
}

bool matches_any(std::string_view name, const std::vector<text::Glob>& globs) {
  return std::ranges::any_of(
      globs, [&](const text::Glob& glob) { return glob.matches(name); });
}

// Known files beside the weights, by their last component.
bool is_company(std::string_view name) {
  static const std::vector<text::Glob> all = {
      text::Glob("{README,LICENSE,LICENCE,NOTICE,Notice,USE_POLICY}*"),
      text::Glob("{MODEL_CARD,CITATION}*"),
      text::Glob("{.gitattributes,.gitignore,checklist.chk}"),
      text::Glob("{normalizer,sentence_bert_config,preprocessor}.json"),
      text::Glob("zero_to_*.py"),
      text::Glob("{latest.txt,checkpoint_metadata.json,score.txt}"),
      text::Glob("{metadata*,rank_*}.pt"),  // fairseq2's, until 0.4
      text::Glob("*.{png,jpg,jpeg,gif,svg,webp}")};
  return matches_any(name, all);
}

// Known files in folders that nothing is read from.
bool is_known_path(std::string_view path) {
  static const std::vector<text::Glob> all = {
      text::Glob("cc/config.json"), text::Glob("[0-9]_*/config.json"),
      text::Glob(".cache/huggingface/*")};
  return matches_any(path, all);
}

// Known files FOLDER/NAME, in a folder that something is read from.
bool is_known_below(std::string_view path) {
  static const std::vector<text::Glob> all = {
      text::Glob("{chat_templates,additional_chat_templates}/*.jinja"),
      text::Glob("{trainer,train}/rank*.pt"), text::Glob("data_reader/*"),
      text::Glob("scores/*")};
  return matches_any(path, all);
}

bool is_models_code(std::string_view name) {
  static const std::vector<text::Glob> all = {
      text::Glob(
          "{modeling,modelling,modular,configuration,tokenization}_*.py"),
      text::Glob("{processing,image_processing,feature_extraction}_*.py")};
  return matches_any(name, all);
}

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "" : path.substr(0, slash);
}

std::string last_of(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

// A file of a zarr array: its description, a chunk, a lock of Megatron's
// writes.
bool is_of_array(const std::string& path, const std::set<std::string>& all) {
  const std::string name = last_of(path);
  if (is_one_of(name, {".zarray", ".zattrs", ".zgroup"})) return true;
  if (name.find_first_not_of("0123456789.") != name.npos) return false;
  for (std::string at = directory_of(path); !at.empty(); at = directory_of(at))
    if (all.contains(at + "/.zarray")) return true;
  return false;
}

// Relative and sorted. A link counts as a file, wherever it leads: only the
// link itself would be removed.
FileNames files_of(const std::string& directory) {
  FileNames files, folders = {""};
  while (!folders.empty()) {
    const std::string folder = std::move(folders.back());
    folders.pop_back();
    for (const std::string& name :
         io::list_directory(io::join(directory, folder))) {
      const std::string path = io::join(folder, name);
      const std::string where = io::join(directory, path);
      if (!io::is_link(where) && io::is_directory(where))
        folders.push_back(path);
      else
        files.push_back(path);
    }
  }
  std::ranges::sort(files);
  return files;
}

class Accounts {
 public:
  Accounts(const std::string& directory, const FileNames& all)
      : directory_(directory), all_(all.begin(), all.end()) {
    folders_.insert("");
    try {
      take(open(directory, {}, {}));
    } catch (const Error& error) {
      if (error.code() == ExitCode::kIo) throw;
      if (error.code() != ExitCode::kMissing) why = error.problem();
    }
  }

  bool has(const std::string& path) const {
    if (path.ends_with(kManifestName))
      return path == kManifestName ||
             has(path.substr(0, path.size() - kManifestName.size()));
    if (read_.contains(path) || is_known_path(path)) return true;
    if (traits_of(format_).leaves_arrays && is_of_array(path, all_))
      return true;
    const std::string folder = directory_of(path);
    if (folders_.contains(directory_of(folder)) &&
        is_known_below(last_of(folder) + '/' + last_of(path)))
      return true;
    if (!is_read_folder(folder)) return false;
    const std::string name = last_of(path);
    if (is_company(name)) return true;
    if (name.ends_with(".py")) return is_models_code(name) || is_named(path);
    if (is_written_by_hand(name)) return false;
    const std::string_view part = part_of(path);
    const bool structure = part == "model" || part == "other";
    if (is_weights(name) && structure && name.find(".distcp") == name.npos)
      return false;
    return part != "other" || is_format_file(format_, path);
  }

  // Code that config.json or other code names: "module.Class", from .module.
  void follow_code(const FileNames& files) {
    for (const std::string& path : files)
      if (has(path) && (path.ends_with(".py") || path.ends_with("config.json")))
        read_text(path);
    for (bool more = !code_.empty(); more;) {
      more = false;
      for (const std::string& path : files) {
        if (!path.ends_with(".py") || is_named(path) || !is_mentioned(path))
          continue;
        named_.insert(path);
        read_text(path);
        more = true;
      }
    }
  }

  std::string why;

 private:
  // Also works for files that were opened as ./DST, or through a link above it.
  std::string relative(const std::string& path) const {
    const std::string below = directory_ + '/';
    return path.starts_with(below) ? path.substr(below.size()) : "";
  }

  // verl keeps config and tokenizer in ACTOR/huggingface.
  bool is_read_folder(const std::string& folder) const {
    return folders_.contains(folder) ||
           (last_of(folder) == "huggingface" &&
            folders_.contains(directory_of(folder)));
  }

  void add(const std::string& path) {
    const std::string name = relative(path);
    if (name.empty()) return;
    read_.insert(name);
    for (std::string at = directory_of(name); folders_.insert(at).second;)
      at = directory_of(at);
  }

  void take(const Catalog& catalog) {
    format_ = catalog.format;
    for (const File& file : catalog.files) add(file.path);
    for (const SourceFile& file : catalog.file_list)
      if (const std::string name =
              relative(io::join(catalog.file_root, file.path));
          !name.empty())
        parts_[name] = file.part;
  }

  std::string_view part_of(const std::string& path) const {
    const auto found = parts_.find(path);
    return found == parts_.end() ? part_by_name(path)
                                 : std::string_view(found->second);
  }

  bool is_named(const std::string& path) const { return named_.contains(path); }

  void read_text(const std::string& path) {
    constexpr uint64_t kLong = 1 << 22;
    try {
      code_[directory_of(path)] +=
          io::read_file(io::join(directory_, path), kLong);
    } catch (const Error&) {  // what can't be read names nothing
    }
  }

  bool is_mentioned(const std::string& path) const {
    const auto code = code_.find(directory_of(path));
    if (code == code_.end()) return false;
    const std::string name = last_of(path);
    const std::string stem = name.substr(0, name.size() - 3);
    for (const std::string& text :
         {'"' + stem + '.', "--" + stem + '.', "from ." + stem + " import"})
      if (code->second.find(text) != std::string::npos) return true;
    return false;
  }

  const std::string directory_;
  std::string format_;
  const std::set<std::string> all_;
  std::set<std::string> read_, folders_, named_;
  std::map<std::string, std::string> parts_, code_;
};

// Replaces files by the topmost folder in which everything is strange.
FileNames shortened(const FileNames& all, const FileNames& strange) {
  std::map<std::string, int64_t> accounted;  // by folder
  const auto count = [&](const FileNames& files, int64_t one) {
    for (const std::string& path : files)
      for (std::string at = directory_of(path); !at.empty();
           at = directory_of(at))
        accounted[at] += one;
  };
  count(all, 1);
  count(strange, -1);
  FileNames names;
  for (const std::string& path : strange) {
    std::string name = path;
    for (size_t slash = path.find('/'); slash != path.npos;
         slash = path.find('/', slash + 1))
      if (accounted[path.substr(0, slash)] == 0) {
        name = path.substr(0, slash + 1);
        break;
      }
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  return names;
}

}  // namespace

Strangers find_strangers(
    const std::string& given,
    const std::function<bool(const std::string&)>& is_listed) {
  std::string directory = given;
  while (directory.size() > 1 && directory.ends_with('/')) directory.pop_back();
  const FileNames all = files_of(directory);
  const auto listed = [&](const std::string& path) {
    return path == kManifestName || is_listed(path);
  };
  FileNames rest;
  std::ranges::remove_copy_if(all, std::back_inserter(rest), listed);
  if (rest.empty()) return {};
  Accounts accounts(directory, all);
  accounts.follow_code(rest);
  std::erase_if(rest,
                [&](const std::string& path) { return accounts.has(path); });
  return {shortened(all, rest), rest.size(), rest.empty() ? "" : accounts.why};
}

}  // namespace ckpt::formats
