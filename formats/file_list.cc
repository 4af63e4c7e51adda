// SPDX-License-Identifier: Apache-2.0
#include "formats/file_list.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>
#include <utility>

#include "ckpt/note.h"
#include "containers/foreign.h"
#include "formats/stray.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/io/mount.h"
#include "lib/io/remote.h"
#include "lib/text/glob.h"

namespace ckpt::formats {
namespace {

constexpr size_t kMaxDepth = 16;
// The largest machines have some hundred thousand ranks, with one file each.
constexpr size_t kMostFiles = 1'000'000;
// A training root may hold thousands of other checkpoints.
constexpr size_t kMostBeside = 10'000;

struct NameRow {
  const char* glob;
  std::string_view part;
  bool whole = false;  // the whole path, not its last component
};

// The first row that matches. Names of transformers, accelerate, torch,
// DeepSpeed, Lightning, Composer, fairseq2, OLMo-core, Megatron-LM and Meta.
constexpr auto kNames = std::to_array<NameRow>({
    {"rng_*", "rng"},
    {"random_states*", "rng"},
    {"trainer/rank_*.pt", "trainer", true},
    {"train/rank*.pt", "trainer", true},
    {"data_reader/*", "dataloader", true},
    {"*dataloader*", "dataloader"},
    {"*sampler*", "dataloader"},
    {"data_paths*", "dataloader"},
    {"global_indices*", "dataloader"},
    {"scheduler_config.json", "config"},
    {"scheduler*", "scheduler"},
    {"lr_scheduler*", "scheduler"},
    {"*_optim_states.pt", "optim"},
    {"optim*", "optim"},
    {"distrib_optim*", "optim"},
    {"*optimizer*", "optim"},
    {"scaler.pt", "optim"},
    {"trainer_state.json", "trainer"},
    {"training_args*", "trainer"},
    {"*train_state*", "trainer"},
    {"trainer*", "trainer"},
    {"scores/*", "trainer", true},
    {"events.out.tfevents*", "trainer"},
    {"latest", "trainer"},
    {"latest_checkpointed_iteration.txt", "trainer"},
    {"custom_checkpoint_*.pkl", "trainer"},
    {"resumption.pkl", "trainer"},
    {"composer_metadata.json", "trainer"},
    {"ep*-ba*-rank*.pt", "model"},
    {"tokenizer*", "tokenizer"},
    {"vocab*", "tokenizer"},
    {"merges.txt", "tokenizer"},
    {"special_tokens_map.json", "tokenizer"},
    {"added_tokens.json", "tokenizer"},
    {"spiece.model", "tokenizer"},
    {"sentencepiece*", "tokenizer"},
    {"*.model", "tokenizer"},
    {"*.model.v[0-9]*", "tokenizer"},
    {"*.tiktoken", "tokenizer"},
    {"tekken.json", "tokenizer"},
    {"chat_template*", "tokenizer"},
    {"chat_templates/*", "tokenizer", true},
    {"*.jinja", "tokenizer"},
    {"*.index.json", "model"},
    {"*.index.*.json", "model"},
    {"*.safetensors", "model"},
    {"*.distcp", "model"},
    {".metadata", "model"},
    {"__*.metadata", "model"},
    {"metadata.json", "model"},
    {"pytorch_model*.bin", "model"},
    {"adapter_model*.bin", "model"},
    {"consolidated*.pth", "model"},
    {"*model_states.pt", "model"},
    {"model*.pt", "model"},
    {"*.npz", "model"},
    {"*config.json", "config"},
    {"*config.yaml", "config"},
    {"*config.yml", "config"},
    {"*config.toml", "config"},
    {"params.json", "config"},
    {"model.yaml", "config"},
    {"modules.json", "config"},
    {"args.json", "config"},
    {"hparams.yaml", "config"},
    {"*.py", "config"},
});

struct Row {
  text::Glob glob;
  std::string_view part;
  bool whole;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all = [] {
    std::vector<Row> made;
    made.reserve(std::size(kNames));
    for (const NameRow& row : kNames)
      made.push_back({text::Glob(row.glob), row.part, row.whole});
    return made;
  }();
  return all;
}

// Which part the tensors in each file belong to; a file of both is the model's.
std::unordered_map<std::string_view, std::string_view> parts_by_tensors(
    const Catalog& catalog) {
  std::vector<std::string_view> parts(catalog.files.size());
  for (const Tensor& tensor : catalog.tensors)
    for (const Piece& piece : tensor.pieces) {
      std::string_view& part = parts[piece.extent.file];
      if (tensor.kind == Kind::model)
        part = "model";
      else if (tensor.kind == Kind::optim && part.empty())
        part = "optim";
    }
  std::unordered_map<std::string_view, std::string_view> by_path;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string_view& part = by_path[catalog.files[i].path];
    if (part != "model" && !parts[i].empty()) part = parts[i];
  }
  return by_path;
}

bool is_below(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) && path.size() > directory.size() &&
         (directory.ends_with('/') || path[directory.size()] == '/');
}

class Walk {
 public:
  explicit Walk(Catalog& catalog)
      : catalog_(catalog), parts_(parts_by_tensors(catalog)) {
    for (const File& file : catalog.files)
      if (file.codec == Codec::kRaw) sizes_.emplace(file.path, file.size);
    for (const Sidecar& sidecar : catalog.sidecars)
      sidecars_.insert(sidecar.path);
    for (SourceFile& file : catalog.file_list)
      if (!file.part.empty()) given_.emplace(file.path, std::move(file.part));
    catalog.file_list.clear();
  }

  // Adds the files below `folder` of the root, except those in `except`.
  void below(const std::string& folder, const std::string& except,
             size_t most) {
    except_ = except;
    most_ = catalog_.file_list.size() + std::min(most, kMostFiles);
    folders_ = {folder};
    while (!folders_.empty()) {
      const std::string next = std::move(folders_.back());
      folders_.pop_back();
      for (const std::string& name : io::list_directory(full(next))) {
        if (catalog_.file_list.size() >= most_) return cut();
        visit(next, name);
      }
    }
  }

  void only_files() {
    std::set<std::string_view> paths;
    for (const File& file : catalog_.files)
      if (file.codec != Codec::kMemory && file.codec != Codec::kFill)
        paths.insert(file.path);
    const std::string& root = catalog_.file_root;
    for (const std::string_view path : paths)
      add(std::string(is_below(path, root)
                          ? path.substr(root.size() + !root.ends_with('/'))
                          : path),
          std::string(path));
  }

  void add(const std::string& path, const std::string& where) {
    SourceFile file{.path = path, .bytes = 0, .part = {}};
    if (const auto known = sizes_.find(where); known != sizes_.end()) {
      file.bytes = known->second;
    } else {
      struct stat facts;
      if (io::stat_any(where, facts) && S_ISREG(facts.st_mode))
        file.bytes = static_cast<uint64_t>(facts.st_size);
    }
    file.part = part_of(path, where);
    file.sidecar = sidecars_.contains(where);
    if (!file.bytes) tell_lost(file, where);
    catalog_.file_list.push_back(std::move(file));
  }

 private:
  // A link to a file that is not there. The readers say so of what they need.
  void tell_lost(const SourceFile& file, const std::string& where) {
    if (io::leads_nowhere(where) && !is_stray(file, where))
      catalog_.problems.push_back(
          warning("broken_link", {where, {}},
                  "leads nowhere: the file that it stands for is missing"));
  }

  std::string full(const std::string& path) const {
    return io::join(catalog_.file_root, path);
  }

  std::string part_of(const std::string& path, const std::string& where) const {
    if (const auto found = given_.find(path); found != given_.end())
      return found->second;
    const auto found = parts_.find(where);
    if (found != parts_.end() && !found->second.empty())
      return std::string(found->second);
    return std::string(part_by_name(path));
  }

  void visit(const std::string& folder, const std::string& name) {
    if (is_own_file(name)) return;
    const std::string path = io::join(folder, name);
    if (path == except_) return;
    const std::string where = full(path);
    if (sizes_.contains(where)) return add(path, where);
    if (!io::is_link(where) && io::is_directory(where)) {
      if (std::ranges::count(path, '/') < static_cast<long>(kMaxDepth))
        folders_.push_back(path);
      else
        cut();
      return;
    }
    add(path, where);
  }

  void cut() {
    if (std::exchange(cut_, true)) return;
    catalog_.problems.push_back(
        remark("file_list", {catalog_.file_root, {}},
               "more files lie in it than the {} that are listed",
               catalog_.file_list.size()));
  }

  Catalog& catalog_;
  std::unordered_map<std::string_view, std::string_view> parts_;
  std::unordered_map<std::string_view, uint64_t> sizes_;
  std::unordered_map<std::string, std::string> given_;
  std::set<std::string_view> sidecars_;
  std::vector<std::string> folders_;
  std::string except_;
  size_t most_ = 0;
  bool cut_ = false;
};

}  // namespace

bool is_state(std::string_view part) {
  return part == "optim" || part == "scheduler" || part == "rng" ||
         part == "trainer" || part == "dataloader";
}

std::string_view part_by_name(std::string_view path) {
  const size_t slash = path.rfind('/');
  const std::string_view name =
      slash == path.npos ? path : path.substr(slash + 1);
  for (const Row& row : rows())
    if (row.glob.matches(row.whole ? path : name)) return row.part;
  for (const OtherFormat& other : other_formats())
    if (other.weights && name.ends_with(other.ending)) return "model";
  return "other";
}

bool is_own_file(std::string_view name) {
  return name.ends_with(".ckpt-manifest.json") ||
         (name.starts_with('.') && (name.ends_with(".ckpt-staging") ||
                                    name.ends_with(".ckpt-staging.bad") ||
                                    name.ends_with(".ckpt-salvage")));
}

void list_files(const std::string& opened, Catalog& catalog) {
  if (!io::is_directory(opened) && !io::is_directory(catalog.path)) {
    catalog.file_root = io::parent(opened);
    Walk walk(catalog);
    walk.only_files();
    const std::string name = io::base_name(opened);
    if (std::ranges::find(catalog.file_list, name, &SourceFile::path) ==
        catalog.file_list.end())
      walk.add(name, opened);
  } else {
    const bool followed =
        io::is_directory(opened) && is_below(catalog.path, opened);
    catalog.file_root =
        followed || !io::is_directory(catalog.path) ? opened : catalog.path;
    Walk walk(catalog);
    std::string inner =
        followed ? catalog.path.substr(opened.size() + !opened.ends_with('/'))
                 : "";
    // The step is one file.
    if (followed && !io::is_directory(catalog.path)) {
      const size_t slash = inner.rfind('/');
      inner = slash == inner.npos ? "" : inner.substr(0, slash);
    }
    walk.below(inner, {}, kMostFiles);
    if (!inner.empty()) walk.below("", inner, kMostBeside);
  }
  std::ranges::sort(catalog.file_list, {}, &SourceFile::path);
}

}  // namespace ckpt::formats
