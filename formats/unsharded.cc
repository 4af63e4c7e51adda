// SPDX-License-Identifier: Apache-2.0
#include "formats/unsharded.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "containers/hf/index.h"
#include "containers/torch/tree.h"
#include "formats/olmo_core/v1/state_dict.h"
#include "formats/safetensors/safetensors.h"
#include "formats/target.h"
#include "formats/torch/torch.h"
#include "lib/text/format.h"

namespace ckpt::formats {
namespace {

using text::printable;
using Severity = Problem::Severity;

constexpr std::string_view kTorch = "torch";
constexpr std::string_view kObjects = "objects.pt";
// Values of a safetensors header.
constexpr std::string_view kHeader = "__metadata__";

// A file of the target.
struct Part {
  std::string path;
  std::vector<uint32_t> tensors;  // of the source
  bool objects = false;           // holds the values that are not tensors
};

class Builder {
 public:
  Builder(const Catalog& source, const Layout& layout)
      : source_(source),
        layout_(layout),
        form_(layout.option(kForm)),
        extension_(layout.format == kTorch ? ".pt" : ".safetensors"),
        safetensors_(safetensors::make_writer()),
        torch_(torch::make_writer()) {}

  Target build() {
    for (const Tensor& tensor : source_.tensors)
      torch::check_materialisable(tensor, source_);
    start();
    if (form_ == kTensors)
      split_tensors();
    else if (form_ == kChunks)
      split_chunks();
    else
      split_kinds();
    give_objects();
    for (const Part& part : parts_) add(part);
    if (form_ == kChunks) add_indexes();
    copy_sidecars(source_, false, {}, target_);
    return std::move(target_);
  }

 private:
  void start() {
    target_.catalog.format = layout_.format;
    target_.catalog.family = source_.family;
    target_.catalog.dialect = source_.dialect;
    target_.catalog.tensors.resize(source_.tensors.size());
  }

  // model.safetensors, optim.pt; other tensors are in the model's file.
  void split_kinds() {
    Part model{.path = "model" + extension_, .tensors = {}};
    Part state{.path = "optim" + extension_, .tensors = {}};
    for (uint32_t i = 0; i < source_.tensors.size(); ++i)
      (source_.tensors[i].kind == Kind::optim ? state : model)
          .tensors.push_back(i);
    for (Part& part : {std::ref(model), std::ref(state)})
      if (!part.tensors.empty()) parts_.push_back(std::move(part));
  }

  // The peer uses the whole key, with '-' for each '.'.
  std::string file_of(const Tensor& tensor) const {
    const std::string folder(name(tensor.kind));
    std::string key = tensor.name;
    if (source_.format.starts_with("olmo_core")) key = folder + "." + key;
    for (char& c : key)
      if (c == '.' || c == '/') c = '-';
    return folder + "/" + key + extension_;
  }

  void split_tensors() {
    std::unordered_map<std::string, uint32_t> known;
    for (uint32_t i = 0; i < source_.tensors.size(); ++i) {
      const Tensor& tensor = source_.tensors[i];
      std::string path = file_of(tensor);
      const auto [other, fresh] = known.emplace(path, i);
      if (!fresh)
        throw unfaithful_error({path, printable(tensor.name)},
                               "{} has the same file name",
                               printable(source_.tensors[other->second].name))
            .with_hint("--rename gives one of them another name");
      parts_.push_back({.path = std::move(path), .tensors = {i}});
    }
  }

  // In the catalog's order; a new chunk when the next tensor does not fit.
  void split_chunks() {
    for (const Kind kind : {Kind::model, Kind::optim, Kind::other}) {
      uint64_t filled = 0;
      uint32_t number = 0;
      for (uint32_t i = 0; i < source_.tensors.size(); ++i) {
        if (source_.tensors[i].kind != kind) continue;
        const uint64_t bytes = byte_size(source_.tensors[i]);
        const uint64_t most = layout_.max_shard_size;
        if (number == 0 || filled > most || bytes > most - filled) {
          parts_.push_back({.path = fmt::format("{}/chunk-{:05}{}", name(kind),
                                                number++, extension_),
                            .tensors = {}});
          filled = 0;
        }
        parts_.back().tensors.push_back(i);
        filled += bytes;
      }
    }
  }

  // Non-tensor values go into optim.pt, into a file of their own, or to the
  // last file, whose writer reports that it has no place for them.
  void give_objects() {
    const bool any = std::ranges::any_of(source_.objects, [](const Object& o) {
      return !o.name.starts_with(kHeader);
    });
    if (!any || parts_.empty()) return;
    const bool pickled = form_ == kFiles && layout_.format == kTorch;
    const bool nested = source_.skeleton.has_value();
    if (!pickled && nested)
      parts_.push_back({.path = std::string(kObjects), .tensors = {}});
    parts_.back().objects = true;
  }

  void add(const Part& part) {
    const bool pickled = part.path.ends_with(".pt");
    Layout layout = layout_;
    layout.single_file = true;
    layout.options.clear();
    layout.max_shard_size = 0;
    layout.format = pickled ? kTorch : "safetensors";
    layout.name = part.path.substr(part.path.rfind('/') + 1);
    const Writer& writer = pickled ? *torch_ : *safetensors_;
    merge(part, writer.lay_out(catalog_of(part, pickled), layout));
  }

  Catalog catalog_of(const Part& part, bool pickled) const {
    Catalog catalog;
    catalog.format = source_.format;
    catalog.path = source_.path;
    catalog.family = source_.family;
    catalog.dialect = source_.dialect;
    for (const uint32_t i : part.tensors)
      catalog.tensors.push_back(source_.tensors[i]);
    for (const Object& object : source_.objects)
      if (object.name.starts_with(kHeader) ? !pickled && !part.objects
                                           : part.objects)
        catalog.objects.push_back(object);
    // A file of one tensor is flat: {name: tensor}.
    const bool nested =
        part.objects || part.path.find('/') == std::string::npos;
    if (pickled && nested) {
      catalog.skeleton = source_.skeleton;
      catalog.problems = source_.problems;
    }
    return catalog;
  }

  void merge(const Part& part, Target made) {
    for (File& one : made.catalog.files) one.path = part.path;
    for (TargetFile& one : made.files) one.path = part.path;
    add_part(std::move(made), part.tensors, target_);
  }

  // Makes a folder of chunks open as one checkpoint.
  void add_indexes() {
    for (const Kind kind : {Kind::model, Kind::optim, Kind::other}) {
      const std::string folder = std::string(name(kind)) + "/";
      std::vector<IndexEntry> weight_map;
      uint64_t total = 0;
      for (const Part& part : parts_) {
        if (!part.path.starts_with(folder)) continue;
        for (const uint32_t i : part.tensors) {
          weight_map.push_back(
              {target_.catalog.tensors[i].name,
               std::string_view(part.path).substr(folder.size())});
          total += byte_size(source_.tensors[i]);
        }
      }
      if (weight_map.empty()) continue;
      const std::string name = layout_.format == kTorch
                                   ? "pytorch_model.bin.index.json"
                                   : "model.safetensors.index.json";
      target_.files.push_back(
          literal_file(folder + name, write_index(weight_map, total)));
    }
  }

  const Catalog& source_;
  const Layout& layout_;
  const std::string form_;
  std::string extension_;
  std::unique_ptr<Writer> safetensors_;
  std::unique_ptr<Writer> torch_;
  std::vector<Part> parts_;
  Target target_;
};

class WithForms : public Writer {
 public:
  explicit WithForms(std::unique_ptr<Writer> container)
      : container_(std::move(container)) {}

  std::string_view name() const override { return container_->name(); }
  bool wants_objects() const override { return container_->wants_objects(); }

  // A directory of weights holds only a model; these forms hold everything.
  Catalog review(Catalog source, const Layout& layout) const override {
    const bool pickled = name() == kTorch;
    if (!pickled && is_unsharded(layout)) return source;
    source = container_->review(std::move(source), layout);
    if (!pickled || (!layout.single_file && layout.option(kForm) != kFiles))
      return source;
    return olmo_core::v1::as_state_dict(std::move(source));
  }

  Target lay_out(const Catalog& source, const Layout& layout) const override {
    if (is_unsharded(layout)) return Builder(source, layout).build();
    return container_->lay_out(source, layout);
  }

 private:
  std::unique_ptr<Writer> container_;
};

}  // namespace

bool is_unsharded(const Layout& layout) {
  return !layout.single_file && !layout.option(kForm).empty();
}

bool is_one_checkpoint(const Layout& layout) {
  return !is_unsharded(layout) ||
         (layout.option(kForm) == kFiles && layout.format != kTorch);
}

FormatOption form_option() {
  return {.name = std::string(kForm),
          .type = "FORM",
          .help = "",
          .check = [](const FormatOption& option, const std::string& text) {
            if (text != kFiles && text != kTensors && text != kChunks)
              throw usage_error({}, "--{} '{}': expected {}, {} or {}",
                                option.name, text::printable(text), kFiles,
                                kTensors, kChunks);
          }};
}

std::unique_ptr<Writer> with_forms(std::unique_ptr<Writer> container) {
  return std::make_unique<WithForms>(std::move(container));
}

}  // namespace ckpt::formats
