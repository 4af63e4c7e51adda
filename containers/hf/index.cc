// SPDX-License-Identifier: Apache-2.0
#include "containers/hf/index.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <unordered_set>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/weight_names.h"
#include "lib/io/file.h"
#include "lib/lost_file.h"
#include "lib/pickle/json.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/name_table.h"
#include "lib/text/other_json.h"
#include "lib/text/scan.h"
#include "lib/text/shell.h"

namespace ckpt::formats {
namespace {

using text::printable;

constexpr uint64_t kMaxIndex = uint64_t{512} << 20;

// Files beside the index or in folders below it, as transformers joins them.
void check_inside(const Index& index, const std::string& tensor,
                  std::string_view file) {
  constexpr std::string_view kForbidden("\\\0", 2);
  bool inside = file.find_first_of(kForbidden) == file.npos;
  for (std::string_view rest = file; inside;) {
    const size_t end = rest.find('/');
    const std::string_view part = rest.substr(0, end);
    inside = !part.empty() && part != "." && part != "..";
    if (end == rest.npos) break;
    rest.remove_prefix(end + 1);
  }
  if (inside) return;
  throw unsafe_error({index.path, tensor},
                     "\"{}\" is not a plain file name, and may lead out of the "
                     "directory",
                     printable(file))
      .with_hint("the index must name files beside it; do not trust this one");
}

class Parser {
 public:
  Parser(std::string_view json, Index& index, std::string_view folder)
      : index_(index),
        folder_(folder),
        size_(json.size()),
        scan_(json, index.path) {}

  void parse() {
    scan_.enter_object();
    while (const auto key = scan_.next_key()) {
      if (*key == "weight_map") {
        once(has_weights_, "weight_map");
        read_weights();
      } else if (*key == "metadata") {
        once(has_metadata_, "metadata");
        read_metadata();
      } else {
        scan_.skip();
      }
    }
    scan_.finish();
    if (!has_weights_)
      throw input_error({index_.path, {}}, "\"weight_map\" is missing");
    number_files();
    check_unique();
  }

 private:
  void once(bool& seen, std::string_view key) {
    if (std::exchange(seen, true))
      scan_.fail(fmt::format("key \"{}\" given twice", key));
    scan_.about(key);
  }

  void read_weights() {
    scan_.enter_object();
    while (const auto key = scan_.next_key()) {
      std::string tensor(*key);
      std::string_view file = scan_.string();
      if (file.starts_with("./")) file.remove_prefix(2);
      auto found = files_.find(file);
      if (found == files_.end()) {
        check_inside(index_, tensor, in_folder(file));
        const auto id = static_cast<uint32_t>(files_.size());
        found = files_.emplace(file, id).first;
      }
      index_.weights.push_back({std::move(tensor), found->second});
    }
    scan_.about({});
  }

  // What follows "FOLDER/" if a name begins with it.
  std::string_view in_folder(std::string_view file) const {
    const bool inside = !folder_.empty() && file.starts_with(folder_) &&
                        file.substr(folder_.size()).starts_with('/');
    return inside ? file.substr(folder_.size() + 1) : file;
  }

  void read_metadata() {
    scan_.about({});
    if (scan_.peek() == text::Scanner::Kind::kNull) return scan_.literal();
    if (scan_.peek() != text::Scanner::Kind::kObject)
      throw input_error({index_.path, "metadata"}, "expected an object");
    index_.metadata = std::make_shared<pickle::Document>();
    pickle::JsonText values(*index_.metadata, scan_, index_.path, size_);
    std::vector<pickle::Id> pairs;
    scan_.enter_object();
    while (const auto key = scan_.next_key()) {
      if (*key == "total_size") {
        if (!index_.total_text.empty())
          scan_.fail("key \"total_size\" given twice");
        read_total();
        continue;
      }
      pairs.push_back(index_.metadata->add_string(*key));
      pairs.push_back(values.value());
    }
    index_.metadata->set_root(values.dict(std::move(pairs)));
  }

  // Older transformers counted a bool as 1/8 byte, and so wrote 1234.0.
  void read_total() {
    const bool is_number = scan_.peek() == text::Scanner::Kind::kNumber;
    index_.total_text = scan_.skip();
    if (!is_number) return;
    const auto value = text::parse_json(index_.total_text, index_.path);
    if (value.is_number_unsigned()) index_.total_size = value.get<uint64_t>();
    if (!value.is_number_float()) return;
    const auto number = value.get<double>();
    if (number >= 0 && number < 0x1p53 && number == std::floor(number))
      index_.total_size = static_cast<uint64_t>(number);
  }

  // Renumbers the files from order of appearance to order of names.
  void number_files() {
    std::vector<uint32_t> sorted(files_.size());
    for (const auto& [name, id] : files_) {
      sorted[id] = static_cast<uint32_t>(index_.files.size());
      index_.files.push_back(name);
    }
    for (Index::Weight& weight : index_.weights)
      weight.file = sorted[weight.file];
  }

  void check_unique() {
    text::NameTable names;
    names.reserve(index_.weights.size());
    for (uint32_t i = 0; const Index::Weight& weight : index_.weights)
      names.add(weight.tensor, i++);
    names.sort();
    if (const auto twice = names.duplicate())
      throw input_error({index_.path, std::string(twice->name)},
                        "given twice in weight_map");
  }

  Index& index_;
  const std::string_view folder_;
  const uint64_t size_;
  text::Scanner scan_;
  bool has_weights_ = false;
  bool has_metadata_ = false;
  std::map<std::string, uint32_t, std::less<>> files_;  // in order of
                                                        // appearance
};

// Files of weights that the index does not name.
size_t other_weights(const std::string& directory, const Index& index) {
  const size_t dot = index.files.front().rfind('.');
  const std::string_view ending =
      dot == std::string::npos
          ? std::string_view()
          : std::string_view(index.files.front()).substr(dot);
  const std::unordered_set<std::string_view> named(index.files.begin(),
                                                   index.files.end());
  size_t others = 0;
  for (const std::string& file : io::list_directory(directory))
    others += file.ends_with(ending) && !named.contains(file);
  return others;
}

// Where so many are missing, the others are not looked for: an index may name
// any number.
constexpr size_t kMostMissing = 10'000;

void check_files_exist(const std::string& directory, const Index& index) {
  std::vector<std::string> missing;
  for (const std::string& file : index.files) {
    const std::string path = io::join(directory, file);
    if (io::is_file(path)) continue;
    if (io::is_directory(path))
      throw input_error({index.path, {}},
                        "weight_map names {}, which is a directory",
                        printable(file));
    missing.push_back(file);
    if (missing.size() == kMostMissing) break;
  }
  if (missing.empty()) return;
  if (const size_t others = other_weights(directory, index);
      missing.size() == index.files.size() && others != 0)
    throw input_error({index.path, {}},
                      "is of another save: none of the {} files that "
                      "weight_map names is there ({}), and {} others are",
                      missing.size(), list_some(missing), others)
        .with_hint("`ckpt salvage " + text::shell_path(directory) +
                   " DST` makes an index of the files that are there");
  throw LostFile(
      input_error({index.path, {}},
                  "{}{} of the {} files that weight_map names {} missing: "
                  "{}",
                  missing.size() == kMostMissing ? "at least " : "",
                  missing.size(), index.files.size(),
                  missing.size() == 1 ? "is" : "are", list_some(missing))
          .with_hint("fetch the missing files again; a broken symlink counts "
                     "as missing"));
}

}  // namespace

bool is_index_name(std::string_view file_name, std::string_view suffix) {
  constexpr std::string_view kEnd = ".json";
  if (!file_name.ends_with(kEnd)) return false;
  file_name.remove_suffix(kEnd.size());
  const std::string middle = std::string(suffix) + ".index";
  const size_t at = file_name.rfind(middle);
  if (at == file_name.npos || at == 0) return false;
  const std::string_view variant = file_name.substr(at + middle.size());
  return variant.empty() || variant[0] == '.';
}

std::string index_of_torch_files(const std::string& directory) {
  std::string index;
  for (const std::string& name : io::list_directory(directory)) {
    if (name.ends_with(".safetensors") && !name.starts_with('.')) return {};
    if (is_index_name(name, ".safetensors")) index = name;
  }
  if (index.empty()) return {};
  const std::string path = io::join(directory, index);
  if (!io::is_file(path)) return {};
  const auto json = text::parse_or_discard(io::read_file(path, kMaxIndex));
  if (!json.is_object() || !json.contains("weight_map")) return {};
  const auto& map = json["weight_map"];
  const bool torch = map.is_object() && !map.empty() &&
                     std::ranges::all_of(map, [&](const auto& file) {
                       if (!file.is_string()) return false;
                       const auto& name =
                           file.template get_ref<const std::string&>();
                       return name.ends_with(".pt") || name.ends_with(".pth") ||
                              name.ends_with(".bin");
                     });
  return torch ? index : std::string();
}

bool indexes_others(const std::string& directory, const std::string& index_file,
                    std::string_view file) {
  const std::string path = io::join(directory, index_file);
  if (!io::is_file(path)) return false;
  const auto json = text::parse_or_discard(io::read_file(path, kMaxIndex));
  if (!json.is_object() || !json.contains("weight_map")) return false;
  const auto& map = json["weight_map"];
  return map.is_object() && std::ranges::any_of(map, [&](const auto& named) {
           return named.is_string() &&
                  named.template get_ref<const std::string&>() != file;
         });
}

WeightFiles find_weight_files(std::string_view stem, std::string_view suffix,
                              std::span<const std::string> names,
                              std::span<const std::string> indexes) {
  const std::string single = std::string(stem) + std::string(suffix);
  const std::string index = single + ".index.json";
  if (std::ranges::binary_search(names, single)) return {{single}, {}};
  if (std::ranges::binary_search(indexes, index)) return {{}, index};
  return {numbered_set(names, stem, suffix), {}};
}

Index read_index(const std::string& directory, const std::string& index_file,
                 std::string_view folder) {
  Index index;
  index.path = io::join(directory, index_file);
  const std::string json = io::read_file(index.path, kMaxIndex);
  Parser(json, index, folder).parse();
  check_files_exist(directory, index);
  return index;
}

std::vector<Located> select_indexed(
    const std::string& directory, const Index& index,
    std::span<const std::vector<std::string_view>> found,
    std::vector<Problem>& problems) {
  text::NameTable indexed;
  indexed.reserve(index.weights.size());
  for (uint32_t i = 0; const Index::Weight& weight : index.weights)
    indexed.add(weight.tensor, i++);
  indexed.sort();

  const auto path = [&](uint32_t file) {
    return io::join(directory, index.files[file]);
  };
  std::vector<bool> seen(index.weights.size());
  std::vector<Located> selected;
  for (uint32_t f = 0; f < found.size(); ++f) {
    for (uint32_t t = 0; t < found[f].size(); ++t) {
      const auto entry = indexed.find(found[f][t]);
      const std::string name(found[f][t]);
      if (entry.empty()) {
        problems.push_back(warning("unindexed_tensor", {path(f), name},
                                   "is not in the index; loaders that follow "
                                   "the index ignore it"));
      } else if (index.weights[entry[0].id].file != f) {
        const std::string& owner = index.files[index.weights[entry[0].id].file];
        problems.push_back(warning("duplicate_tensor", {path(f), name},
                                   "is here too; the index names the one in "
                                   "{}, many loaders take the last",
                                   printable(owner)));
        selected.push_back({f, t, true});
        continue;
      } else {
        seen[entry[0].id] = true;
      }
      selected.push_back({f, t});
    }
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i]) continue;
    const Index::Weight& weight = index.weights[i];
    throw input_error({index.path, weight.tensor},
                      "the index says it is in {}, but it is not",
                      printable(index.files[weight.file]));
  }
  return selected;
}

void add_copies(Catalog& catalog, std::vector<Tensor> copies) {
  if (copies.empty()) return;
  text::NameTable names;
  names.reserve(catalog.tensors.size());
  for (uint32_t i = 0; const Tensor& tensor : catalog.tensors)
    names.add(tensor.name, i++);
  names.sort();
  for (Tensor& copy : copies) {
    const auto found = names.find(copy.name);
    if (found.empty()) continue;
    Tensor& tensor = catalog.tensors[found[0].id];
    if (tensor.dtype == copy.dtype && tensor.shape == copy.shape) {
      std::ranges::move(copy.pieces, std::back_inserter(tensor.pieces));
      continue;
    }
    const auto path = [&](const Tensor& one) {
      return one.pieces.empty() ? catalog.path
                                : catalog.files[one.pieces[0].extent.file].path;
    };
    throw input_error({path(copy), copy.name},
                      "is {} {} here, and {} {} in {}, which the index names",
                      ckpt::name(copy.dtype), to_string(copy.shape),
                      ckpt::name(tensor.dtype), to_string(tensor.shape),
                      printable(io::base_name(path(tensor))))
        .with_hint("one of the two is of another save: remove it");
  }
}

namespace {

// ColossalAI's total_size is a fraction, of MiB.
bool is_in_mib(const std::string& text, uint64_t bytes) {
  if (text.find('.') == text.npos) return false;
  const double mib = std::strtod(text.c_str(), nullptr);
  return std::abs(mib * 0x1p20 - static_cast<double>(bytes)) < 0.5;
}

}  // namespace

void check_index_metadata(const Index& index, std::span<const uint64_t> sums,
                          std::vector<Problem>& problems) {
  if (!index.metadata && has_index_loader(io::base_name(index.path)))
    problems.push_back(warning(
        "index_metadata", {index.path, {}},
        "has no \"metadata\", and transformers fails on it (KeyError); vLLM "
        "does without; ckpt convert with --to safetensors writes it"));
  if (index.total_text.empty()) return;
  if (index.total_size &&
      std::ranges::find(sums, *index.total_size) != sums.end())
    return;
  if (is_in_mib(index.total_text, sums.front())) return;
  constexpr size_t kShown = 100;
  problems.push_back(warning("total_size", {index.path, {}},
                             "total_size is {}, the tensors have {} bytes",
                             printable(index.total_text.substr(0, kShown)),
                             sums.front()));
}

std::string write_index(std::span<const IndexEntry> weight_map,
                        uint64_t total_size, nlohmann::json metadata) {
  if (!metadata.is_object()) metadata = nlohmann::json::object();
  metadata["total_size"] = total_size;
  nlohmann::json map = nlohmann::json::object();
  for (const IndexEntry& entry : weight_map)
    map[std::string(entry.tensor)] = entry.file;
  const nlohmann::json index = {{"metadata", std::move(metadata)},
                                {"weight_map", std::move(map)}};
  constexpr bool kAscii = true;  // as Python's json.dumps
  return index.dump(2, ' ', kAscii) + "\n";
}

}  // namespace ckpt::formats
