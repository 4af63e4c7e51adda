// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <span>

#include "ckpt/error.h"
#include "containers/hf/index.h"
#include "containers/hf/weight_names.h"
#include "containers/safetensors/file_plan.h"
#include "formats/peft/settings.h"
#include "formats/run_state.h"
#include "formats/safetensors/safetensors.h"
#include "formats/target.h"
#include "lib/pickle/json.h"
#include "lib/pickle/value.h"
#include "lib/text/utf8.h"

namespace ckpt::safetensors {
namespace {

// transformers and huggingface_hub cut at this size.
constexpr uint64_t kDefaultShard = 5'000'000'000;

// The tensors of each file, by number in the catalog and in its order, with a
// new file when the next one does not fit. A tensor that never fits gets its
// own file, and the file before continues to be filled (as in huggingface_hub).
std::vector<std::vector<uint32_t>> split(std::span<const Described> tensors,
                                         uint64_t most) {
  std::vector<std::vector<uint32_t>> files;
  std::vector<uint32_t> current;
  uint64_t filled = 0;
  for (uint32_t i = 0; const Described& tensor : tensors) {
    const uint32_t id = i++;
    if (tensor.bytes > most) {
      files.push_back({id});
      continue;
    }
    if (filled + tensor.bytes > most) {
      files.push_back(std::move(current));
      current.clear();
      filled = 0;
    }
    current.push_back(id);
    filled += tensor.bytes;
  }
  if (!current.empty() || files.empty()) files.push_back(std::move(current));
  return files;
}

class Builder {
 public:
  Builder(const Catalog& source, const Layout& layout)
      : source_(source),
        layout_(layout),
        stem_(layout.single_file ? formats::Stem()
                                 : formats::stem_like(source, ".safetensors")) {
  }

  Target build() {
    target_.catalog = formats::catalog_like(source_, kFormat);
    take_objects();
    for (const Tensor& tensor : source_.tensors)
      described_.push_back(describe(tensor));
    note_tensors();
    const uint64_t most = layout_.single_file      ? UINT64_MAX
                          : layout_.max_shard_size ? layout_.max_shard_size
                                                   : kDefaultShard;
    const auto files = split(described_, most);
    for (uint32_t f = 0; f < files.size(); ++f)
      add_file(target_, file_name(f, files.size()), files[f], metadata_,
               &source_);
    if (files.size() > 1) add_index(files);
    // PEFT looks for its configuration beside the weights.
    const bool ours = source_.dialect == "hf" || peft::config_of(source_);
    const bool keep = ours && !layout_.single_file;
    formats::copy_sidecars(source_, keep, {}, target_);
    return std::move(target_);
  }

 private:
  Catalog& catalog() { return target_.catalog; }

  void warn(Problem::Severity severity, std::string kind, std::string tensor,
            std::string message) {
    target_.problems.push_back(
        {severity, std::move(kind), {}, std::move(tensor), std::move(message)});
  }

  void take_objects() {
    for (const Object& object : source_.objects) {
      if (object.name == kMetadata && take_metadata(object)) {
        catalog().objects.push_back(object);
      } else if (object.name == kIndexMetadata) {
        index_metadata_ = pickle::to_json(*object.document, object.node);
      } else {
        warn(Problem::Severity::kWarning, "object_left_out", object.name,
             "safetensors cannot store this value; skipped");
      }
    }
    if (!metadata_) {
      // transformers refuses files whose metadata has no known format.
      metadata_.emplace().emplace_back("format", "pt");
      target_.assumptions.push_back(
          "__metadata__ {\"format\": \"pt\"}: the source has none");
    }
  }

  bool take_metadata(const Object& object) {
    const auto pairs = object.document->as_pairs(object.node);
    if (!pairs) return false;
    Metadata metadata;
    const auto is_text = [&](pickle::Id id) {
      return object.document->is(id, pickle::Type::kString) &&
             text::is_utf8(object.document->text(id));
    };
    for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
      const pickle::Id key = (*pairs)[i], value = (*pairs)[i + 1];
      if (!is_text(key) || !is_text(value)) return false;
      // Of the source's bytes, which may not be the target's.
      if (is_checksum_key(object.document->text(key))) {
        warn(Problem::Severity::kNote, "checksum_left_out", object.name,
             fmt::format("{}: a checksum of the source's file is left out",
                         object.document->text(key)));
        continue;
      }
      metadata.emplace_back(object.document->text(key),
                            object.document->text(value));
    }
    metadata_ = std::move(metadata);
    return true;
  }

  void note_tensors() {
    std::map<uint32_t, uint32_t> ties;
    for (const Tensor& tensor : source_.tensors)
      if (tensor.tie) ++ties[tensor.tie];
    const auto shared = std::ranges::count_if(
        ties, [](const auto& tie) { return tie.second > 1; });
    if (shared > 0)
      target_.assumptions.push_back(fmt::format(
          "{} storages are shared by several tensors: each tensor is written "
          "as a copy of its own",
          shared));
  }

  std::string file_name(size_t f, size_t count) const {
    if (layout_.single_file) return {};
    const auto adapter = peft::config_of(source_);
    if (adapter && adapter->dialect == "peft") {  // peft goes by the name
      if (count == 1) return std::string(peft::kWeightsFile);
      throw unfaithful_error({source_.path, {}},
                             "an adapter is one file, these would be {}", count)
          .with_hint("leave out --max-shard-size");
    }
    return stem_.file(f + 1, count);
  }

  void add_index(std::span<const std::vector<uint32_t>> files) {
    std::vector<formats::IndexEntry> weight_map;
    uint64_t total = 0, elements = 0;
    for (size_t f = 0; f < files.size(); ++f) {
      for (const uint32_t id : files[f]) {
        weight_map.push_back({described_[id].name, target_.files[f].path});
        total += described_[id].bytes;
        elements += element_count(source_.tensors[id].shape).value_or(0);
      }
    }
    if (index_metadata_.contains("total_parameters"))
      index_metadata_["total_parameters"] = elements;
    target_.files.push_back(formats::literal_file(
        stem_.index(),
        formats::write_index(weight_map, total, index_metadata_)));
  }

  const Catalog& source_;
  const Layout& layout_;
  const formats::Stem stem_;
  Target target_;
  std::vector<Described> described_;  // one per tensor of the source
  std::optional<Metadata> metadata_;
  nlohmann::json index_metadata_ = nlohmann::json::object();
};

// A run's directory is what transformers and vLLM load: they take every
// tensor in it for a weight.
Catalog review(Catalog source, const Layout& layout) {
  if (layout.single_file) return source;
  return runs::model_only(std::move(source));
}

}  // namespace

std::unique_ptr<formats::Writer> make_writer() {
  return formats::writer_of(kFormat, review, formats::build_with<Builder>);
}

}  // namespace ckpt::safetensors
