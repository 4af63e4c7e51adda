// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint of OLMo-core 0.1.0 (v1.h).
#include <algorithm>
#include <tuple>

#include "ckpt/error.h"
#include "containers/safetensors/header.h"
#include "containers/torch/tree.h"
#include "formats/olmo_core/v1/cut.h"
#include "formats/olmo_core/v1/index.h"
#include "formats/olmo_core/v1/locate.h"
#include "formats/olmo_core/v1/optimizer.h"
#include "formats/olmo_core/v1/review.h"
#include "formats/olmo_core/v1/v1.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "lib/pickle/encode.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"
#include "lib/text/utf8.h"

namespace ckpt::olmo_core::v1 {
namespace {

using pickle::Type;
using text::printable;
using Severity = Problem::Severity;

// True for dtypes that OLMo-core 0.1.0 has names for.
bool has_name(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::u8:
    case DType::bool_:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return true;
    default:
      return false;
  }
}

// One entry of one rank's file.
struct Stored {
  const std::string* name = nullptr;
  DType dtype = DType::u8;
  uint64_t elements = 0;
  uint32_t tensor = UINT32_MAX;        // of the catalog; max: bytes
  const Shard* shard = nullptr;        // of a tensor
  const std::string* bytes = nullptr;  // of a helper
};

// A folder of the target.
struct PartPlan {
  std::string folder;
  std::vector<Entry> entries;
  std::vector<uint32_t> tensors;   // of each entry; max: a helper
  std::vector<std::string> bytes;  // of each entry, if it is a helper
};

class Builder {
 public:
  Builder(const Catalog& source, const Layout& layout)
      : source_(source), cutter_(source, layout.topology) {
    if (layout.max_shard_size != 0)
      throw usage_error({}, "--max-shard-size does not go with {}", kFormat)
          .with_hint("--dp N sets how many files there are");
    target_.catalog = formats::catalog_like(source, kFormat);
    target_.catalog.topology = layout.topology;
  }

  Target build() {
    start();
    plan_parts();
    for (PartPlan& part : parts_) add_files(part);
    for (const PartPlan& part : parts_) add_index(part);
    add_sidecars();
    note_cuts();
    return std::move(target_);
  }

 private:
  void start() {
    for (const Tensor& tensor : source_.tensors) {
      torch::check_materialisable(tensor, source_);
      check(tensor);
    }
    // The folder of the step, if a training run was given.
    const std::string above = source_.root + "/";
    if (source_.format == kFormat && !source_.root.empty() &&
        source_.path.starts_with(above))
      step_ = source_.path.substr(above.size());
  }

  static void check(const Tensor& tensor) {
    const std::string shown = printable(tensor.name);
    if (!has_name(tensor.dtype))
      throw unfaithful_error({{}, shown}, "{} has no dtype for {}", kFormat,
                             name(tensor.dtype))
          .with_hint(fmt::format("cast it with --dtype, or leave it out with "
                                 "--exclude '{}'",
                                 shown));
    if (tensor.name == safetensors::kMetadata || !text::is_utf8(tensor.name))
      throw unfaithful_error({{}, shown}, "{} can't hold a tensor of this name",
                             kFormat)
          .with_hint("give it another one with --rename");
  }

  // A source that is only one part stays one.
  bool is_bare() const {
    if (source_.format != kFormat) return false;
    return std::ranges::all_of(source_.files, [&](const File& file) {
      return io::parent(file.path) == source_.path;
    });
  }

  void plan_parts() {
    const bool bare = is_bare();
    PartPlan& model = parts_.emplace_back();
    if (!bare) {
      model.folder = kModelFolder;
      parts_.emplace_back().folder = kOptimFolder;
    }
    const bool any_optim = std::ranges::any_of(
        source_.tensors,
        [](const Tensor& tensor) { return tensor.kind == Kind::optim; });
    if (any_optim) {
      helpers_ =
          source_.format == kFormat ? source_.objects : make_groups(source_);
      add_groups(parts_.back());
    }
    for (uint32_t t = 0; t < source_.tensors.size(); ++t) {
      const bool optim = source_.tensors[t].kind == Kind::optim;
      if (optim)
        add_state(t);
      else
        add_tensor(parts_.front(), t);
    }
    if (any_optim && !keys_added_) add_state_keys();
    take_objects(any_optim);
    // A part without tensors is not written, but a checkpoint has at least one
    // part.
    if (parts_.size() > 1 && !any_optim) parts_.pop_back();
    if (parts_.size() > 1 && parts_[0].entries.empty())
      parts_.erase(parts_.begin());
  }

  // OLMo-core's order: the count, the groups, the states, their names.
  void add_groups(PartPlan& part) {
    add_helpers(part,
                [](const std::string& name) { return name == kGroupCount; });
    add_helpers(part, [](const std::string& name) {
      return group_of(name).has_value();
    });
  }

  template <class Wanted>
  void add_helpers(PartPlan& part, Wanted wanted) {
    for (const Object& object : helpers_) {
      if (!wanted(object.name)) continue;
      std::string bytes = bytes_of(object);
      const bool number = object.name == kGroupCount;
      Entry& entry = part.entries.emplace_back();
      entry.name = object.name;
      if (!number) entry.shape.push_back(bytes.size());
      entry.dtype = number ? DType::i64 : DType::u8;
      entry.sharded = false;
      const uint64_t count = number ? 1 : bytes.size();
      entry.shards.push_back(
          {.rank = 0, .ranges = {{0, count}}, .box = {}, .elements = count});
      part.tensors.push_back(UINT32_MAX);
      part.bytes.push_back(std::move(bytes));
      target_.catalog.objects.push_back(object);
    }
  }

  // The original pickle, else a new one.
  static std::string bytes_of(const Object& object) {
    const pickle::Document& document = *object.document;
    if (object.name == kGroupCount) {
      const auto count = document.as_int(object.node);
      if (!count) throw unfaithful_error({{}, object.name}, "is not a number");
      std::string bytes(8, '\0');
      for (size_t i = 0; i < 8; ++i)
        bytes[i] = static_cast<char>(static_cast<uint64_t>(*count) >> (8 * i));
      return bytes;
    }
    if (document.is(document.root(), Type::kBytes) &&
        document.root() != object.node)
      return std::string(document.text(document.root()));
    return pickle::encode(document, object.node);
  }

  static bool is_helper(const std::string& name) {
    return name == kGroupCount || name == kStateKeys || group_of(name);
  }

  void take_objects(bool any_optim) {
    for (const Object& object : source_.objects) {
      const bool helper =
          source_.format == kFormat
              ? is_helper(object.name)
              : object.name.find("param_groups") != std::string::npos;
      if (helper && any_optim) continue;
      target_.problems.push_back(
          {helper ? Severity::kNote : Severity::kWarning,
           "object_left_out",
           {},
           printable(object.name),
           helper ? "belongs to the optimizer, which is left out"
                  : "this format cannot store it; skipped"});
    }
  }

  // state_keys ends what rank 0 has; then comes what it has nothing of.
  void add_state(uint32_t t) {
    PartPlan& part = parts_.back();
    add_tensor(part, t);
    const auto held = [](const Shard& shard) {
      return shard.rank == 0 && shard.elements > 0;
    };
    if (keys_added_ || std::ranges::any_of(part.entries.back().shards, held))
      return;
    Entry last = std::move(part.entries.back());
    part.entries.pop_back();
    part.tensors.pop_back();
    part.bytes.pop_back();
    add_state_keys();
    part.entries.push_back(std::move(last));
    part.tensors.push_back(t);
    part.bytes.emplace_back();
  }

  void add_state_keys() {
    keys_added_ = true;
    add_helpers(parts_.back(),
                [](const std::string& name) { return name == kStateKeys; });
  }

  void add_tensor(PartPlan& part, uint32_t t) {
    const Tensor& tensor = source_.tensors[t];
    Cut cut = cutter_.cut(tensor);
    Entry& entry = part.entries.emplace_back();
    entry.name = tensor.name;
    entry.shape = tensor.shape;
    entry.dtype = tensor.dtype;
    entry.sharded = cut.sharded;
    entry.shards = std::move(cut.shards);
    part.tensors.push_back(t);
    part.bytes.emplace_back();
  }

  // Every rank has a file, even if it has no tensors.
  void add_files(const PartPlan& part) {
    std::vector<std::vector<Stored>> files(cutter_.ranks());
    for (size_t e = 0; e < part.entries.size(); ++e) {
      const Entry& entry = part.entries[e];
      const uint32_t t = part.tensors[e];
      const bool optim =
          t != UINT32_MAX && source_.tensors[t].kind == Kind::optim;
      for (const Shard& shard : entry.shards) {
        // A rank without elements of a parameter has no state for it.
        if (optim && shard.elements == 0 && !shard.box &&
            entry.sharded.value_or(false))
          continue;
        if (shard.rank >= files.size()) files.resize(shard.rank + 1);
        files[shard.rank].push_back({.name = &entry.name,
                                     .dtype = *entry.dtype,
                                     .elements = shard.elements,
                                     .tensor = t,
                                     .shard = &shard,
                                     .bytes = &part.bytes[e]});
      }
    }
    for (uint32_t rank = 0; rank < files.size(); ++rank)
      add_file(part, rank, files[rank]);
  }

  void add_file(const PartPlan& part, uint32_t rank,
                std::vector<Stored>& entries) {
    std::ranges::sort(entries, {}, [](const Stored& entry) {
      return std::tuple(safetensors::dtype_rank(info(entry.dtype).safetensors),
                        std::string_view(*entry.name));
    });
    std::vector<safetensors::Described> described;
    for (const Stored& entry : entries)
      described.push_back({.name = *entry.name,
                           .dtype = info(entry.dtype).safetensors,
                           .shape = {entry.elements},
                           .bytes = *byte_size(entry.dtype, {entry.elements})});
    TargetFile file;
    file.path = path_of(part, rank_file(rank));
    std::string header = safetensors::encode_header(described, std::nullopt);
    if (header.size() - 8 > safetensors::kMaxHeader)
      throw unfaithful_error({file.path, {}},
                             "a header of {} bytes for {} tensors, "
                             "safetensors allows {}",
                             header.size() - 8, entries.size(),
                             safetensors::kMaxHeader);
    uint64_t at = header.size();
    file.literals.push_back({0, std::move(header)});
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].tensor == UINT32_MAX)
        file.literals.push_back({at, *entries[i].bytes});
      else
        add_pieces(entries[i], at);
      const auto end = checked_add(at, described[i].bytes);
      if (!end)
        throw unfaithful_error({file.path, *entries[i].name},
                               "file size overflows 64 bits");
      at = *end;
    }
    file.size = at;
    target_.catalog.files.push_back({.path = file.path, .size = at});
    target_.files.push_back(std::move(file));
  }

  void add_pieces(const Stored& entry, uint64_t at) {
    if (entry.elements == 0) return;
    Tensor& tensor = target_.catalog.tensors[entry.tensor];
    const auto file = static_cast<uint32_t>(target_.catalog.files.size());
    const auto add = [&](const Box& box, std::optional<FlatRange> flat) {
      tensor.pieces.push_back(
          {.box = box,
           .flat = flat,
           .extent = {.offset = at, .strides = {}, .file = file}});
    };
    if (entry.shard->box) return add(*entry.shard->box, std::nullopt);
    const Box whole = Box::whole(tensor.shape);
    for (const FlatRange& range : entry.shard->ranges) {
      if (range.begin == range.end) continue;
      const uint64_t count = range.end - range.begin;
      const bool all = count == volume(whole);
      add(whole, all ? std::nullopt : std::optional(range));
      at += count * element_size(tensor.dtype);
    }
  }

  std::string path_of(const PartPlan& part, const std::string& name) const {
    const std::string below =
        part.folder.empty() ? name : io::join(part.folder, name);
    return step_.empty() ? below : io::join(step_, below);
  }

  // Last, as in OLMo-core.
  void add_index(const PartPlan& part) {
    target_.files.push_back(formats::literal_file(
        path_of(part, std::string(kIndexName)), encode_index(part.entries)));
  }

  void add_sidecars() {
    formats::copy_sidecars(source_, source_.format == kFormat, step_, target_);
  }

  void note_cuts() {
    if (cutter_.keeps() || cutter_.ranks() == 1) return;
    target_.assumptions.push_back(
        "every tensor is cut for itself; a trainer with FSDP cuts units of "
        "several tensors, whose boundaries no checkpoint tells: OLMo-core "
        "loads either");
  }

  const Catalog& source_;
  const TensorCutter cutter_;
  std::string step_;
  std::vector<PartPlan> parts_;
  std::vector<Object> helpers_;  // of the optimizer
  bool keys_added_ = false;
  Target target_;
};

class V1Writer final : public formats::Writer {
 public:
  std::string_view name() const override { return kFormat; }
  Catalog review(Catalog source, const Layout&) const override {
    return review_v1(std::move(source));
  }
  Target lay_out(const Catalog& source, const Layout& layout) const override {
    return Builder(source, layout).build();
  }
};

}  // namespace

std::unique_ptr<formats::Writer> make_writer() {
  return std::make_unique<V1Writer>();
}

}  // namespace ckpt::olmo_core::v1
