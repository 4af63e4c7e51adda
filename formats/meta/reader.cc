// SPDX-License-Identifier: Apache-2.0
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "containers/safetensors/header.h"
#include "containers/torch/container.h"
#include "containers/torch/tree.h"
#include "formats/meta/layout.h"
#include "formats/meta/locate.h"
#include "formats/meta/meta.h"
#include "formats/meta/params.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "models/rules.h"

namespace ckpt::meta {
namespace {

using formats::Cut;
using text::printable;
using Severity = Problem::Severity;

// A tensor as in one file: its only piece is the whole of it.
struct RankFile {
  std::string path;
  std::vector<Tensor> tensors;
  std::unordered_map<std::string_view, const Tensor*> by_name;
};

class Assembly {
 public:
  Assembly(const std::string& path, const formats::ReadOptions& options)
      : path_(path), options_(options) {
    catalog_.format = kFormat;
    catalog_.path = path;
    catalog_.dialect = kFormat;
  }

  Catalog read() {
    const std::vector<std::string> names = locate(path_);
    add_sidecars();
    read_numbers();
    for (const std::string& name : names) read_file(io::join(path_, name));
    catalog_.topology.tp = static_cast<uint32_t>(files_.size());
    check_names();
    for (const Tensor& first : files_[0].tensors) add_tensor(first);
    catalog_.assumptions.push_back(
        fmt::format("{} model-parallel files: {}", names.size(), names[0]));
    return std::move(catalog_);
  }

 private:
  uint32_t ranks() const { return static_cast<uint32_t>(files_.size()); }

  void add_sidecars() {
    formats::add_sidecars(path_, catalog_);
    const std::string checklist = io::join(path_, kChecklist);
    if (const auto size = io::file_size(checklist))
      catalog_.sidecars.push_back({std::string(kChecklist), checklist, *size});
  }

  void read_numbers() {
    if (!options_.shard_dims_file.empty())
      rules_ = families::Rules::from_file(options_.shard_dims_file);
    params_ = params_of(catalog_);
    catalog_.family = options_.family;
    if (params_) {
      if (catalog_.family.empty()) catalog_.family = params_->family;
      return;
    }
    if (catalog_.family.empty()) catalog_.family = "llama";
    catalog_.problems.push_back(warning(
        "no_params", {path_, {}},
        "there is no params.json: how many heads there are is not known, and "
        "no key/value head is taken to be in two files"));
  }

  void read_file(const std::string& path) {
    RankFile& file = files_.emplace_back();
    file.path = path;
    if (path.ends_with(".safetensors"))
      read_safetensors(file);
    else
      read_pickle(file);
    for (const Tensor& tensor : file.tensors)
      file.by_name.emplace(tensor.name, &tensor);
  }

  void read_safetensors(RankFile& out) {
    const io::Handle file = io::Handle::open_read(out.path);
    safetensors::Header header = safetensors::read_header(file);
    catalog_.version = kSafetensors;
    catalog_.files.push_back({.path = out.path, .size = file.size()});
    for (safetensors::Entry& entry : header.entries)
      out.tensors.push_back(safetensors::tensor_of(std::move(entry), 0));
  }

  void read_pickle(RankFile& out) {
    const torch::Container container =
        torch::open_container(out.path, catalog_, options_);
    torch::Tree tree = torch::walk(container, container.document->root());
    catalog_.version = kPickled;
    for (const torch::NamedTensor& named : tree.tensors) {
      if (named.ref.distributed)
        throw input_error({out.path, printable(named.name)},
                          "is a part of a distributed tensor; Meta's files "
                          "hold plain ones")
            .with_hint("open it with --from torch");
      out.tensors.push_back(torch::make_tensor(named.name, named.ref));
    }
    // Non-tensor values are the same in every file.
    tree.tensors.clear();
    if (files_.size() == 1) torch::add_to_catalog(catalog_, container, tree);
  }

  void check_names() const {
    const RankFile& first = files_[0];
    for (const RankFile& file : files_) {
      const auto lacks = [](const RankFile& has, const RankFile& other) {
        for (const Tensor& tensor : has.tensors)
          if (!other.by_name.contains(tensor.name))
            throw input_error({other.path, printable(tensor.name)},
                              "is not in this file, though it is in {}",
                              printable(io::base_name(has.path)))
                .with_hint(
                    "every file has a part of every tensor: do all of "
                    "them belong to one checkpoint?");
      };
      lacks(first, file);
      lacks(file, first);
    }
  }

  // The width of the model, from its norms.
  std::optional<uint64_t> width() const {
    if (const auto norm = files_[0].by_name.find("norm.weight");
        norm != files_[0].by_name.end() && norm->second->shape.size() == 1)
      return norm->second->shape[0];
    return params_ ? params_->dim : std::nullopt;
  }

  void check_like(const Tensor& first, const Tensor& other,
                  const std::string& path) const {
    if (first.dtype == other.dtype && first.shape == other.shape) return;
    throw input_error({path, printable(other.name)}, "is {} {}, in {} {} {}",
                      name(other.dtype), to_string(other.shape),
                      printable(io::base_name(files_[0].path)),
                      name(first.dtype), to_string(first.shape));
  }

  Cut cut_of(const Tensor& first) const {
    const TpRule rule = rules_.tp(first.name);
    if (const auto cut = stored_cut(path_, first.name, first.shape, ranks(),
                                    params_, width()))
      return *cut;
    if (rule.state == TpRule::State::kReplicated) return {};
    if (rule.state == TpRule::State::kUnknown)
      throw families::no_rule_error(path_, first, catalog_.family, ranks());
    const auto size = rule.dim < first.shape.size()
                          ? formats::whole_size(first.shape[rule.dim], ranks())
                          : std::nullopt;
    if (!size)
      throw usage_error({{}, first.name},
                        "--shard-dims: {} in each file has no dimension {}",
                        to_string(first.shape), rule.dim);
    return Cut::even(rule.dim, *size, rule.groups);
  }

  void add_tensor(const Tensor& first) {
    const Cut cut = cut_of(first);
    Tensor tensor = first;
    tensor.pieces.clear();
    if (!formats::join_parts(cut, ranks(), tensor))
      throw input_error({path_, printable(tensor.name)},
                        "{} {} can't be made of {} files' parts",
                        name(tensor.dtype), to_string(tensor.shape), ranks());
    check_vocabulary(tensor);
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      const Tensor& part = *files_[rank].by_name.at(first.name);
      check_like(first, part, files_[rank].path);
      const Piece& stored = part.pieces.front();
      formats::add_pieces(cut, ranks(), rank, stored.extent, stored.transform,
                          tensor);
    }
    settle(tensor, cut);
    catalog_.tensors.push_back(std::move(tensor));
  }

  void check_vocabulary(const Tensor& tensor) const {
    const auto vocab = params_ ? params_->vocab : std::nullopt;
    const bool rows = tensor.name == "output.weight" ||
                      role_of(tensor.name) == Role::kEmbedding;
    if (rows && vocab && tensor.shape[0] != *vocab)
      throw input_error({path_, tensor.name},
                        "has {} rows, vocab_size in params.json is {}",
                        tensor.shape[0], *vocab)
          .with_hint("are all files of the checkpoint here?");
  }

  void settle(Tensor& tensor, const Cut& cut) const {
    if (role_of(tensor.name) == Role::kUnknown && ranks() == 1)
      tensor.tp = rules_.tp(tensor.name);
    else if (cut.whole())
      tensor.tp = TpRule::replicated();
    else
      tensor.tp =
          TpRule::split(cut.dim, static_cast<uint32_t>(cut.segments.size()));
    // Computed from the configuration; Llama 3 has none.
    if (tensor.name == "rope.freqs") tensor.kind = Kind::other;
  }

  const std::string& path_;
  const formats::ReadOptions& options_;
  families::Rules rules_;
  std::optional<Params> params_;
  std::vector<RankFile> files_;
  Catalog catalog_;
};

Catalog read_catalog(const std::string& path,
                     const formats::ReadOptions& options) {
  if (!io::is_directory(path))
    throw usage_error({path, {}}, "is a file; meta's are directories")
        .with_hint("open a single file with --from torch");
  return Assembly(path, options).read();
}

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return formats::reader_of(kFormat, supports, read_catalog);
}

}  // namespace ckpt::meta
