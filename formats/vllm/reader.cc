// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "containers/safetensors/header.h"
#include "formats/vllm/config.h"
#include "formats/vllm/layout.h"
#include "formats/vllm/locate.h"
#include "formats/vllm/models.h"
#include "formats/vllm/vllm.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "models/rules.h"

namespace ckpt::vllm {
namespace {

using formats::Cut;
using text::printable;
using Severity = Problem::Severity;

// A tensor of one rank, and where its data is.
struct Stored {
  safetensors::Entry entry;
  uint32_t file = 0;  // in the catalog
  uint32_t stage = 0;
};

struct Rank {
  std::vector<Stored> tensors;  // in the order of the parts
  std::unordered_map<std::string_view, const Stored*> by_name;
  // What a stage shares with an earlier one: embeddings that are the last
  // stage's head.
  std::unordered_multimap<std::string_view, const Stored*> again;
};

class Assembly {
 public:
  Assembly(const std::string& path, const formats::ReadOptions& options)
      : path_(path), options_(options) {
    catalog_.format = kFormat;
    catalog_.path = path;
    catalog_.dialect = kFormat;
    catalog_.family = options.family;
  }

  Catalog read() {
    const auto names = locate(path_);
    formats::add_sidecars(path_, catalog_);
    if (!options_.shard_dims_file.empty())
      rules_ = families::Rules::from_file(options_.shard_dims_file);
    read_ranks(names);
    catalog_.topology.tp = ranks();
    read_numbers();
    check_names();
    for (const Stored& first : ranks_[0].tensors)
      if (ranks_[0].by_name.at(first.entry.name) == &first) add_tensor(first);
    unite_tied();
    note_vocabulary();
    return std::move(catalog_);
  }

 private:
  uint32_t ranks() const { return static_cast<uint32_t>(ranks_.size()); }
  const std::string& path_of(const Stored& stored) const {
    return catalog_.files[stored.file].path;
  }

  void read_ranks(const std::vector<std::vector<Part>>& names) {
    std::vector<std::string> paths;
    std::vector<size_t> rank_of;
    std::vector<uint32_t> stage_of;
    for (size_t r = 0; r < names.size(); ++r)
      for (const Part& part : names[r]) {
        paths.push_back(io::join(path_, part.name));
        rank_of.push_back(r);
        stage_of.push_back(part.stage);
      }
    catalog_.topology.pp = stage_of.back() + 1;
    ranks_.resize(names.size());
    safetensors::read_headers(paths, [&](size_t i, auto one) {
      const auto number = static_cast<uint32_t>(catalog_.files.size());
      for (safetensors::Entry& entry : one.header.entries)
        ranks_[rank_of[i]].tensors.push_back(
            {std::move(entry), number, stage_of[i]});
      catalog_.files.push_back(std::move(one.file));
    });
    for (Rank& rank : ranks_) index(rank);
  }

  void index(Rank& rank) const {
    for (const Stored& stored : rank.tensors) {
      const auto [known, first] =
          rank.by_name.emplace(stored.entry.name, &stored);
      if (first) continue;
      if (known->second->stage != stored.stage)
        rank.again.emplace(stored.entry.name, &stored);
      else
        throw input_error({path_of(stored), printable(stored.entry.name)},
                          "is in {}, too",
                          printable(io::base_name(path_of(*known->second))));
    }
  }

  void read_numbers() {
    facts_.path = path_;
    facts_.ranks = ranks();
    facts_.config = config_of(catalog_);
    if (facts_.config && catalog_.family.empty())
      catalog_.family = facts_.config->model_type;
    if (facts_.config) return;
    const char* told =
        ranks() > 1
            ? "there is no config.json: the parts of qkv_proj are told by the "
              "width of o_proj, and no key/value head is taken to be on two "
              "ranks; whether a last rank's files are missing can't be told"
            : "there is no config.json: whether files of other ranks are "
              "missing can't be told";
    catalog_.problems.push_back(warning("no_config", {path_, {}}, "{}", told));
  }

  void check_names() const {
    const auto lacks = [&](const Rank& has, const Rank& other, uint32_t rank) {
      for (const Stored& stored : has.tensors)
        if (!other.by_name.contains(stored.entry.name))
          throw input_error({path_, printable(stored.entry.name)},
                            "is not among the tensors of rank {}, though it is "
                            "in {}",
                            rank, printable(io::base_name(path_of(stored))))
              .with_hint("is the last part of that rank here?");
    };
    for (uint32_t r = 1; r < ranks(); ++r) {
      lacks(ranks_[0], ranks_[r], r);
      lacks(ranks_[r], ranks_[0], 0);
    }
  }

  Cut cut_of(const safetensors::Entry& first) {
    facts_.queries.reset();
    const auto output = ranks_[0].by_name.find(output_of(first.name));
    if (output != ranks_[0].by_name.end() &&
        output->second->entry.shape.size() == 2)
      facts_.queries = output->second->entry.shape[1];
    const TpRule rule = rules_.tp(first.name);
    if (rule.state == TpRule::State::kReplicated) return {};
    const auto size = rule.dim < first.shape.size()
                          ? formats::whole_size(first.shape[rule.dim], ranks())
                          : std::nullopt;
    if (rule.state == TpRule::State::kSplit && size)
      return Cut::even(rule.dim, *size, rule.groups);
    if (const auto cut =
            stored_cut(first.name, first.dtype, first.shape, facts_))
      return *cut;
    throw unfaithful_error({path_, printable(first.name)},
                           "{} {} on each of {} ranks may be a part or a copy: "
                           "no rule for it is known",
                           name(first.dtype), to_string(first.shape), ranks())
        .with_hint("say which dimension is split with --shard-dims RULES.json");
  }

  void add_tensor(const Stored& first) {
    const Cut cut = cut_of(first.entry);
    Tensor tensor;
    tensor.name = first.entry.name;
    tensor.dtype = first.entry.dtype;
    tensor.shape = first.entry.shape;
    if (!formats::join_parts(cut, ranks(), tensor))
      throw input_error({path_, printable(tensor.name)},
                        "{} {} can't be made of {} ranks' parts",
                        name(tensor.dtype), to_string(tensor.shape), ranks());
    const bool alone =
        is_first_only(tensor.name, tensor.dtype, first.entry.shape, facts_);
    for (uint32_t rank = 0; rank < ranks(); ++rank)
      if (rank == 0 || !alone)
        add_rank(cut, rank, first.entry, tensor);
      else
        add_zeros(rank, first.entry);
    if (cut.dim == 0 && !cut.whole() && tensor.shape.size() == 3)
      catalog_.topology.ep = ranks();
    settle(cut, tensor);
    catalog_.tensors.push_back(std::move(tensor));
  }

  void add_part(const Cut& cut, uint32_t rank, const Stored& stored,
                const safetensors::Entry& first, Tensor& tensor) {
    const safetensors::Entry& entry = stored.entry;
    if (entry.dtype != first.dtype || entry.shape != first.shape)
      throw input_error({path_of(stored), printable(entry.name)},
                        "is {} {}, on rank 0 {} {}", name(entry.dtype),
                        to_string(entry.shape), name(first.dtype),
                        to_string(first.shape));
    formats::add_pieces(
        cut, ranks(), rank,
        {.offset = entry.begin, .strides = {}, .file = stored.file},
        kNoTransform, tensor);
  }

  void add_rank(const Cut& cut, uint32_t rank, const safetensors::Entry& first,
                Tensor& tensor) {
    add_part(cut, rank, *ranks_[rank].by_name.at(first.name), first, tensor);
    const auto [from, to] = ranks_[rank].again.equal_range(first.name);
    for (auto other = from; other != to; ++other)
      add_part(cut, rank, *other->second, first, tensor);
  }

  // Only the first rank has a bias of what the ranks add up.
  void add_zeros(uint32_t rank, const safetensors::Entry& first) {
    Tensor zeros{
        .name = first.name, .dtype = first.dtype, .shape = first.shape};
    add_rank({}, rank, first, zeros);
    catalog_.redundant.push_back(
        {std::move(zeros),
         0.0,
         {},
         fmt::format("rank 0 adds it, the same on rank {} is zero", rank)});
  }

  // A TpRule has only equal groups; what it can't express stays unset.
  void settle(const Cut& cut, Tensor& tensor) const {
    const Role role = role_of(tensor.name, tensor.dtype, tensor.shape,
                              facts_.config && facts_.config->blocks);
    if (role == Role::kUnknown && ranks() == 1)
      tensor.tp = rules_.tp(tensor.name);
    else if (cut.whole())
      tensor.tp = TpRule::replicated();
    else if (role != Role::kQkv || cut.segments.size() != 3 || is_ruled(tensor))
      tensor.tp =
          TpRule::split(cut.dim, static_cast<uint32_t>(cut.segments.size()));
    // Scales of attention's quantization are buffers, not parameters.
    const size_t dot = tensor.name.rfind('.');
    if (dot != std::string::npos && tensor.name.compare(dot, 2, "._") == 0)
      tensor.kind = Kind::other;
  }

  bool is_ruled(const Tensor& tensor) const {
    return rules_.tp(tensor.name).state == TpRule::State::kSplit;
  }

  // The first stage has tied embeddings under their own name, the last one as
  // its head; without stages vLLM has them once, as the head.
  void unite_tied() {
    if (catalog_.topology.pp < 2 || !facts_.config) return;
    const Model model = model_of(catalog_, facts_.config);
    if (!model.head || !facts_.config->tied.value_or(model.tied)) return;
    const auto embedding =
        std::ranges::find(catalog_.tensors, kEmbedding, &Tensor::name);
    const auto head = std::ranges::find(catalog_.tensors, kHead, &Tensor::name);
    if (embedding == catalog_.tensors.end() || head == catalog_.tensors.end() ||
        embedding->dtype != head->dtype || embedding->shape != head->shape)
      return;
    head->pieces.insert(head->pieces.end(), embedding->pieces.begin(),
                        embedding->pieces.end());
    catalog_.assumptions.push_back(fmt::format(
        "the embeddings are tied (tie_word_embeddings): {} of the first stage "
        "and {} of the last are one tensor",
        kEmbedding, kHead));
    catalog_.tensors.erase(embedding);
  }

  void note_vocabulary() {
    if (!facts_.config || !facts_.config->vocab) return;
    for (const Tensor& tensor : catalog_.tensors) {
      if (role_of(tensor.name, tensor.dtype, tensor.shape) != Role::kVocab)
        continue;
      const uint64_t rows = tensor.shape[0], used = *facts_.config->vocab;
      if (rows < used)
        throw input_error({path_, tensor.name},
                          "has {} rows, vocab_size in config.json is {}", rows,
                          used)
            .with_hint("are all ranks' files here?");
      if (rows > used)
        catalog_.assumptions.push_back(
            fmt::format("{}: {} rows, of which vocab_size {} are in use",
                        tensor.name, rows, used));
    }
  }

  const std::string& path_;
  const formats::ReadOptions& options_;
  families::Rules rules_;
  Facts facts_;
  std::vector<Rank> ranks_;
  Catalog catalog_;
};

Catalog read_catalog(const std::string& path,
                     const formats::ReadOptions& options) {
  if (!io::is_directory(path))
    throw usage_error({path, {}}, "is a file; vllm's are directories")
        .with_hint("open a single file with --from safetensors");
  return Assembly(path, options).read();
}

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return formats::reader_of(kFormat, supports, read_catalog);
}

}  // namespace ckpt::vllm
