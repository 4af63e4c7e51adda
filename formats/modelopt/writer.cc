// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/numbered.h"
#include "containers/safetensors/file_plan.h"
#include "formats/modelopt/modelopt.h"
#include "formats/modelopt/review.h"
#include "formats/target.h"
#include "lib/pickle/json.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::modelopt {
namespace {

using Severity = Problem::Severity;

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

class ModeloptWriter final : public formats::Writer {
 public:
  std::string_view name() const override { return kFormat; }
  Catalog review(Catalog source, const Layout& layout) const override {
    return modelopt::review(std::move(source), layout);
  }
  Target lay_out(const Catalog& source, const Layout& layout) const override {
    return Builder(source, layout).build();
  }
};

}  // namespace

std::unique_ptr<formats::Writer> make_writer() {
  return std::make_unique<ModeloptWriter>();
}

}  // namespace ckpt::modelopt
