// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "ckpt/layout.h"
#include "ckpt/note.h"
#include "containers/hf/numbered.h"
#include "containers/safetensors/file_plan.h"
#include "formats/modelopt/config.h"
#include "formats/modelopt/modelopt.h"
#include "formats/modelopt/names.h"
#include "formats/modelopt/options.h"
#include "formats/modelopt/owners.h"
#include "formats/target.h"
#include "lib/pickle/json.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::modelopt {
namespace {

using Severity = Problem::Severity;

// A source as ModelOpt would hold it: who owns what, the order of the model's
// modules, the head of a tied model.

// What a layout and a source amount to.
struct Decision {
  const Naming* naming = nullptr;
  std::optional<Config> config;
  bool tied = false;
  bool blocks = false;  // block files, not rank shards
  Owners owners;

  // The ranks that keep a tensor; for block files there is one.
  std::vector<uint32_t> keepers(const Tensor& tensor) const {
    return owners.of(naming->place(tensor.name), tied);
  }
};

// A source's file names may state any number of ranks.
constexpr uint32_t kMostRanks = 10'000;

bool wants_blocks(const Catalog& source, const Layout& layout) {
  const std::string form = form_of(layout);
  if (!form.empty()) return form == kBlocks;
  const bool was =
      source.format == kFormat &&
      (source.version == kBlocks || source.version == kPickledBlocks);
  return was && layout.topology.pp == 1 && layout.option("blocks").empty();
}

void refuse_optimizer(const Catalog& source) {
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::optim)
      throw unfaithful_error({{}, tensor.name},
                             "modelopt holds weights, no optimizer state")
          .with_hint("leave it out with --model-only");
}

void refuse_dialect(const Catalog& source) {
  if (source.dialect == "hf" || source.dialect.empty()) return;
  throw unfaithful_error(
      {source.path, {}},
      "modelopt has Hugging Face's names, the source has those of {}",
      source.dialect)
      .with_hint("convert it to Hugging Face's names first");
}

// Rank shards are in the order of the module tree; block files keep it only
// within a group, and other formats' files are mostly sorted by name.
void sort_like_model(Catalog& source, const Naming& naming) {
  const bool own =
      source.format == kFormat &&
      (source.version == kShards || source.version == kPickledShards);
  std::vector<std::pair<std::tuple<int, uint32_t, size_t, size_t>, size_t>>
      order;
  for (size_t i = 0; i < source.tensors.size(); ++i) {
    const Place place = naming.place(source.tensors[i].name);
    const bool block = place.part == Part::kBlock;
    const size_t rank = block && !own ? naming.rank(place.rest) : 0;
    order.push_back({{static_cast<int>(place.part), place.block, rank, i}, i});
  }
  std::ranges::sort(order);
  std::vector<Tensor> sorted;
  sorted.reserve(order.size());
  for (const auto& item : order)
    sorted.push_back(std::move(source.tensors[item.second]));
  source.tensors = std::move(sorted);
}

Tensor* find_part(Catalog& source, const Naming& naming, Part part) {
  const auto found =
      std::ranges::find_if(source.tensors, [&](const Tensor& tensor) {
        return naming.place(tensor.name).part == part;
      });
  return found == source.tensors.end() ? nullptr : &*found;
}

// Rank shards hold the head of a tied model by its own name; Hugging Face and
// block files leave it out. If it is left out, its elements must be the
// embedding's: it is compared as a replica.
void settle_head(Catalog& source, const Decision& decision) {
  if (!decision.tied) return;
  Tensor* embedding = find_part(source, *decision.naming, Part::kEmbedding);
  Tensor* head = find_part(source, *decision.naming, Part::kHead);
  if (!embedding) return;
  if (!head && !decision.blocks) {
    Tensor copy = *embedding;
    copy.name = decision.naming->head.front();
    source.assumptions.push_back(copy.name + " is " + embedding->name +
                                 ": config.json says that they are tied");
    source.tensors.push_back(std::move(copy));
  } else if (head && decision.blocks) {
    if (head->dtype != embedding->dtype || head->shape != embedding->shape)
      throw unfaithful_error(
          {{}, head->name},
          "is {} {}, {} is {} {}; config.json says that they "
          "are one tensor",
          name(head->dtype), to_string(head->shape), embedding->name,
          name(embedding->dtype), to_string(embedding->shape));
    embedding->pieces.insert(embedding->pieces.end(), head->pieces.begin(),
                             head->pieces.end());
    source.assumptions.push_back(head->name + " is left out: it is " +
                                 embedding->name + " (tie_word_embeddings)");
    source.tensors.erase(source.tensors.begin() +
                         (head - source.tensors.data()));
  }
}

// `asked`: for some of the blocks. Else a tensor in no file would be lost.
void drop_unowned(Catalog& source, const Decision& decision, bool asked) {
  const auto is_lost = [&](const Tensor& tensor) {
    return decision.keepers(tensor).empty();
  };
  if (!asked)
    for (const Tensor& tensor : source.tensors)
      if (is_lost(tensor))
        throw unfaithful_error({source.path, tensor.name},
                               "belongs to no rank's blocks")
            .with_hint("leave it out with --exclude");
  const size_t dropped = std::erase_if(source.tensors, is_lost);
  if (dropped)
    source.assumptions.push_back(fmt::format(
        "{} tensors of blocks that no rank owns are left out", dropped));
}

void warn_of_blocks(Catalog& source, const Decision& decision) {
  const uint64_t ranks = decision.owners.ranks();
  if (decision.blocks || ranks == 1 || decision.owners.of_block(0)) return;
  source.problems.push_back(
      warning("unknown_blocks", {},
              "no rule says which tensors are a block's: of {} files the first "
              "has the whole model",
              ranks));
}

void note_packed(Catalog& source) {
  const auto packed =
      std::ranges::count_if(source.tensors, [](const Tensor& tensor) {
        return tensor.dtype == DType::u8 &&
               (tensor.name.ends_with("_proj_blocks") ||
                tensor.name.ends_with("_proj_scales"));
      });
  if (packed)
    source.problems.push_back(
        warning("mxfp4", {source.path, {}},
                "{} tensors of MXFP4 experts are carried as they are; "
                "ModelOpt's own converter expands them to bf16, ckpt "
                "does no arithmetic on weights",
                packed));
}

// Throws usage_error or unfaithful_error if the source can't be written that
// way.
Decision decide(const Catalog& source, const Layout& layout) {
  if (layout.topology.pp > kMostRanks)
    throw usage_error({}, "{} ranks, modelopt is written for at most {}",
                      layout.topology.pp, kMostRanks)
        .with_hint("give the number of ranks with --pp");
  Decision decision;
  decision.naming = &naming_of(source);
  decision.config = config_of(source);
  decision.tied = decision.config && decision.config->tied;
  decision.blocks = wants_blocks(source, layout);
  const uint64_t count = block_count(source, *decision.naming, decision.config);
  const std::string blocks = layout.option("blocks");
  if (blocks.empty()) {
    decision.owners =
        Owners::even(count, decision.blocks ? 1 : layout.topology.pp);
    return decision;
  }
  decision.owners = Owners::given(blocks, count);
  if (decision.blocks && decision.owners.ranks() > 1)
    throw usage_error({}, "--blocks {}: block files have no ranks", blocks)
        .with_hint("give one list of blocks");
  return decision;
}

Catalog review(Catalog source, const Layout& layout) {
  refuse_optimizer(source);
  refuse_dialect(source);
  if (layout.max_shard_size)
    throw usage_error({}, "--max-shard-size: modelopt's files follow blocks")
        .with_hint("more ranks make smaller files: --pp N");
  const Decision decision = decide(source, layout);
  settle_head(source, decision);
  drop_unowned(source, decision, !layout.option("blocks").empty());
  if (source.tensors.empty())
    throw unfaithful_error({source.path, {}},
                           "no tensor belongs to --blocks {}",
                           layout.option("blocks"));
  sort_like_model(source, *decision.naming);
  warn_of_blocks(source, decision);
  note_packed(source);
  return source;
}

const safetensors::Metadata kMetadata = {{"format", "pt"}};

std::string quoted(const std::string& text) {
  constexpr bool kAscii = true;  // as Python's json module
  return nlohmann::json(text).dump(-1, ' ', kAscii);
}

// A file of tensors, by number in the catalog.
struct Group {
  std::string path;
  std::vector<uint32_t> tensors;
};

class Builder {
 public:
  Builder(const Catalog& source, const Layout& layout)
      : source_(source), decision_(decide(source, layout)) {}

  Target build() {
    start_catalog();
    take_objects();
    const auto groups = decision_.blocks ? block_files() : rank_files();
    for (const Group& group : groups)
      safetensors::add_file(target_, group.path, group.tensors, kMetadata);
    add_sidecars(false);
    add_small_file(
        std::string(kIndexName),
        index(groups, decision_.blocks ? "\"format\": \"pt\""
                                       : fmt::format("\"total_size\": {}",
                                                     total_size(groups))));
    add_sidecars(true);
    return std::move(target_);
  }

 private:
  Catalog& catalog() { return target_.catalog; }

  void start_catalog() {
    catalog() = formats::catalog_like(source_, kFormat);
    catalog().version = decision_.blocks ? kBlocks : kShards;
    catalog().dialect = "hf";
    if (!decision_.blocks)
      catalog().topology.pp = static_cast<uint32_t>(decision_.owners.ranks());
  }

  // Only metadata that every file has can be stored.
  void take_objects() {
    for (const Object& object : source_.objects) {
      if (object.name == safetensors::kIndexMetadata ||
          (object.name == safetensors::kMetadata && is_usual(object)))
        continue;
      target_.problems.push_back(
          warning("object_left_out", {{}, object.name},
                  "modelopt cannot store this value; skipped"));
    }
  }

  static bool is_usual(const Object& object) {
    return pickle::to_json(*object.document, object.node) ==
           nlohmann::ordered_json{{"format", "pt"}};
  }

  // model-00001-of-0000W.safetensors; idle ranks' have no tensors.
  std::vector<Group> rank_files() const {
    const uint64_t world = decision_.owners.ranks();
    std::vector<Group> groups(world);
    for (uint64_t rank = 0; rank < world; ++rank)
      groups[rank].path =
          formats::numbered_name("model", rank + 1, world, ".safetensors");
    for (uint32_t i = 0; const Tensor& tensor : source_.tensors) {
      for (const uint32_t rank : decision_.keepers(tensor))
        groups[rank].tensors.push_back(i);
      ++i;
    }
    return groups;
  }

  // In the order of their first tensors.
  std::vector<Group> block_files() const {
    std::vector<Group> groups;
    std::map<std::string, size_t> by_name;
    const std::set<std::string> empty = without_own_tensors();
    for (uint32_t i = 0; const Tensor& tensor : source_.tensors) {
      bool placed = false;
      for (const std::string& name : groups_of(tensor)) {
        if (empty.contains(name)) continue;
        placed = true;
        const auto [at, first] = by_name.emplace(name, groups.size());
        if (first)
          groups.push_back(
              {fmt::format("{}/{}.safetensors", kBlockFolder, name), {}});
        groups[at->second].tensors.push_back(i);
      }
      if (!placed) refuse_group(tensor);
      ++i;
    }
    return groups;
  }

  // The norm of a hybrid's block belongs to both halves; a half with nothing
  // else is not written.
  std::set<std::string> without_own_tensors() const {
    std::set<std::string> shared, own;
    if (decision_.naming->shared.empty()) return {};
    for (const Tensor& tensor : source_.tensors) {
      const auto names = groups_of(tensor);
      (names.size() > 1 ? shared : own).insert(names.begin(), names.end());
    }
    std::set<std::string> empty;
    std::ranges::set_difference(shared, own,
                                std::inserter(empty, empty.begin()));
    return empty;
  }

  std::vector<std::string> groups_of(const Tensor& tensor) const {
    const Naming& naming = *decision_.naming;
    const Place place = naming.place(tensor.name);
    switch (place.part) {
      case Part::kEmbedding:
        return {"embeddings"};
      case Part::kNorm:
      case Part::kHead:
        return {"lm_head"};
      case Part::kBlock:
        return halves_of(place);
      case Part::kOther:
        break;
    }
    for (const auto& [group, globs] : naming.groups)
      for (const text::Glob& glob : globs)
        if (glob.matches(tensor.name)) return {group};
    return {};
  }

  std::vector<std::string> halves_of(const Place& place) const {
    const std::string block = fmt::format("block_{}_", place.block);
    switch (decision_.naming->half(place.rest)) {
      case Half::kAttention:
        return {block + "attention"};
      case Half::kFfn:
        return {block + "ffn"};
      case Half::kBoth:
        return {block + "attention", block + "ffn"};
      case Half::kNone:
        break;
    }
    return {};
  }

  [[noreturn]] void refuse_group(const Tensor& tensor) const {
    throw unfaithful_error({{}, tensor.name},
                           "belongs to no block file by the rules of family {}",
                           decision_.naming->family)
        .with_hint(
            "write rank shards (--pp N), which take any name, or leave the "
            "tensor out with --exclude");
  }

  // As json.dumps(…, indent=2) writes it, without a newline at the end. A
  // tensor in several files is where the first file has it, with the last
  // file's name.
  std::string index(const std::vector<Group>& groups,
                    const std::string& metadata) const {
    std::vector<std::pair<uint32_t, size_t>> entries;  // tensor, last file
    std::map<uint32_t, size_t> places;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const uint32_t id : groups[g].tensors) {
        const auto [at, first] = places.emplace(id, entries.size());
        if (first) entries.emplace_back(id, g);
        entries[at->second].second = g;
      }
    }
    std::string text =
        "{\n  \"metadata\": {\n    " + metadata + "\n  },\n  \"weight_map\": {";
    const char* comma = "\n";
    for (const auto& [id, g] : entries) {
      text += comma;
      text += "    " + quoted(source_.tensors[id].name) + ": " +
              quoted(groups[g].path);
      comma = ",\n";
    }
    return text + (entries.empty() ? "}\n}" : "\n  }\n}");
  }

  // Copies count.
  uint64_t total_size(const std::vector<Group>& groups) const {
    uint64_t total = 0;
    for (const Group& group : groups)
      for (const uint32_t id : group.tensors)
        total += byte_size(source_.tensors[id]);
    return total;
  }

  void add_small_file(std::string path, std::string content) {
    target_.files.push_back(
        formats::literal_file(std::move(path), std::move(content)));
  }

  // config.json comes last: it completes the checkpoint.
  void add_sidecars(bool config) {
    for (const Sidecar& sidecar : source_.sidecars) {
      if ((sidecar.name == "config.json") != config) continue;
      target_.files.push_back(formats::copied_file(sidecar.name, sidecar));
    }
  }

  const Catalog& source_;
  const Decision decision_;
  Target target_;
};

}  // namespace

std::unique_ptr<formats::Writer> make_writer() {
  return formats::writer_of(kFormat, review, formats::build_with<Builder>);
}

}  // namespace ckpt::modelopt
