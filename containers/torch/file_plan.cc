// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/file_plan.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "ckpt/error.h"
#include "containers/torch/inline.h"
#include "containers/torch/same_lists.h"
#include "lib/io/file.h"
#include "lib/pickle/encode.h"
#include "lib/pickle/parts.h"
#include "lib/text/format.h"
#include "lib/zip/archive.h"

namespace ckpt::torch {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

// Persistent ids of placeholders. Those of real files are tuples that begin
// with "storage".
constexpr std::string_view kStorageSlot = "storage slot";
constexpr std::string_view kInline = "inline storage";
// Of a known content: what, dtype, bytes. Of damage: path, tensor, problem and
// hint, too.
constexpr size_t kKnown = 3;
constexpr size_t kDamage = 7;

// A storage of the file: one record data/<key>.
struct Record {
  DType dtype = DType::f32;
  uint64_t bytes = 0;
  std::optional<std::string> content;
};

// Builds the value, with rebuild calls in place of placeholders.
class Composer {
 public:
  Composer(const Document& tree, std::span<const TensorSlot> slots)
      : tree_(tree), slots_(slots) {
    std::unordered_map<uint32_t, uint32_t> tied;
    for (const TensorSlot& slot : slots) add_slot(slot, tied);
  }

  std::string encode(Id root) {
    std::unordered_map<Id, Id> substitutes;
    std::vector<Id> damaged;
    for (Id node = 0; node < tree_.size(); ++node) {
      if (tree_.type(node) != Type::kPersistent) continue;
      if (is_damaged(node))
        damaged.push_back(node);
      else
        substitutes[node] = replace(tree_.items(node)[0]);
    }
    if (!damaged.empty()) check_damaged(root, damaged);
    out_.set_root(out_.import(tree_, root, substitutes));
    return pickle::encode(out_);
  }
  const std::vector<Record>& records() const { return records_; }
  // The record of a slot.
  uint32_t record_of(size_t slot) const { return slot_records_[slot]; }

 private:
  void add_slot(const TensorSlot& slot,
                std::unordered_map<uint32_t, uint32_t>& tied) {
    const auto bytes = byte_size(slot.dtype, slot.shape);
    if (!bytes || element_size(slot.dtype) == 0)
      throw bug_error({}, "a slot of {} {}", name(slot.dtype),
                      to_string(slot.shape));
    if (info(slot.dtype).torch.empty())
      throw unfaithful_error({}, "torch has no dtype {}", name(slot.dtype));
    uint32_t record = static_cast<uint32_t>(records_.size());
    if (slot.tie != kOwnStorage)
      record = tied.try_emplace(slot.tie, record).first->second;
    if (record == records_.size())
      records_.push_back({slot.dtype, *bytes, std::nullopt});
    else if (records_[record].bytes != *bytes)
      throw bug_error({}, "tied slots of {} and {} bytes",
                      records_[record].bytes, *bytes);
    slot_records_.push_back(record);
  }

  bool is_damaged(Id node) const {
    return is_inline_storage(tree_, node) &&
           tree_.items(tree_.items(node)[0]).size() == kDamage;
  }
  // Values that are not written may hold anything.
  void check_damaged(Id root, const std::vector<Id>& damaged) const {
    for (const Id node : pickle::storages_below(tree_, root)) {
      if (std::ranges::find(damaged, node) != damaged.end())
        throw *inline_content(tree_, node)->damage();
    }
  }

  // What replaces a placeholder's persistent id.
  Id replace(Id id) {
    if (tree_.is(id, Type::kInt)) return tensor(slot_at(id));
    if (tree_.is(id, Type::kTuple) && tree_.items(id).size() >= 2) {
      const auto items = tree_.items(id);
      const std::string_view what = tree_.text(items[0]);
      if (what == kStorageSlot) {
        const size_t slot = slot_at(items[1]);
        return storage(slot_records_[slot], slots_[slot].dtype);
      }
      if (what == kInline && items.size() == kKnown)
        return inline_storage(items);
    }
    throw bug_error({}, "a persistent id that is not a placeholder");
  }
  size_t slot_at(Id id) const {
    const int64_t slot = tree_.integer(id);
    if (slot < 0 || static_cast<uint64_t>(slot) >= slots_.size())
      throw bug_error({}, "placeholder {} of {} slots", slot, slots_.size());
    return static_cast<size_t>(slot);
  }
  Id inline_storage(std::span<const Id> items) {
    const auto dtype = dtype_from_name(tree_.text(items[1]));
    const std::string content(tree_.text(items[2]));
    records_.push_back({dtype.value_or(DType::u8), content.size(), content});
    return storage(static_cast<uint32_t>(records_.size() - 1),
                   records_.back().dtype);
  }

  // ("storage", class, key, "cpu", elements)
  Id storage(uint32_t record, DType dtype) {
    const std::string_view type = info(dtype).storage;
    const uint64_t item = type.empty() ? 1 : element_size(dtype);
    const Id id = out_.add_container(
        Type::kTuple,
        {text("storage"),
         type.empty() ? global("torch.storage", "UntypedStorage")
                      : global("torch", type),
         out_.add_string(std::to_string(record)), text("cpu"),
         out_.add_int(static_cast<int64_t>(records_[record].bytes / item))});
    return out_.add_persistent(id);
  }
  Id ordered_dict() {
    return out_.add_call(global("collections", "OrderedDict"), empty_tuple());
  }
  Id tensor(size_t index) {
    const TensorSlot& slot = slots_[index];
    const DType dtype = plain_type(slot.dtype);
    const bool typed = !info(dtype).storage.empty();
    std::vector<Id> args = {
        storage(slot_records_[index], dtype),
        out_.add_int(0),
        add_int_tuple(out_, slot.shape),
        add_int_tuple(out_, row_major_strides(slot.shape)),
        out_.add_bool(slot.requires_grad && !slot.parameter),
        ordered_dict()};
    if (!typed) args.push_back(global("torch", info(dtype).torch));
    const Id call =
        out_.add_call(global("torch._utils", typed ? "_rebuild_tensor_v2"
                                                   : "_rebuild_tensor_v3"),
                      out_.add_container(Type::kTuple, args));
    if (!slot.parameter) return call;
    return out_.add_call(
        global("torch._utils", "_rebuild_parameter"),
        out_.add_container(
            Type::kTuple,
            {call, out_.add_bool(slot.requires_grad), ordered_dict()}));
  }

  // Makes each name and text only once: the encoder then refers back to it.
  Id global(std::string_view module, std::string_view name) {
    const std::string key = fmt::format("{} {}", module, name);
    const auto it = shared_.find(key);
    if (it != shared_.end()) return it->second;
    return shared_[key] = out_.add_global(module, name);
  }
  Id text(std::string_view value) {
    const std::string key(value);
    const auto it = shared_.find(key);
    if (it != shared_.end()) return it->second;
    return shared_[key] = out_.add_string(value);
  }
  Id empty_tuple() { return out_.add_container(Type::kTuple); }

  const Document& tree_;
  std::span<const TensorSlot> slots_;
  Document out_;
  std::vector<Record> records_;
  std::vector<uint32_t> slot_records_;
  std::unordered_map<std::string, Id> shared_;
};

// 40 digits that differ between files. torch logs them but checks nothing.
std::string serialization_id(const std::vector<zip::Record>& records) {
  uint64_t names = 0xcbf29ce484222325;
  uint64_t content = names;
  const auto mix = [](uint64_t& hash, std::string_view bytes) {
    for (const char c : bytes)
      hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  };
  for (const zip::Record& record : records) {
    mix(names, record.name);
    mix(content, std::to_string(record.size));
    if (record.content) mix(content, *record.content);
  }
  return fmt::format("{:020}{:020}", names, content);
}

zip::Record small_record(std::string name, std::string content) {
  return {.name = std::move(name),
          .size = content.size(),
          .content = std::move(content)};
}

bool is_plain_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

Id add_placeholder(Document& document, uint64_t slot) {
  return document.add_persistent(document.add_int(static_cast<int64_t>(slot)));
}

Id add_storage_placeholder(Document& document, uint64_t slot) {
  return document.add_persistent(document.add_container(
      Type::kTuple, {document.add_string(kStorageSlot),
                     document.add_int(static_cast<int64_t>(slot))}));
}

Id add_inline_storage(Document& document, DType dtype, const Content& content) {
  std::vector<Id> items{document.add_string(kInline),
                        document.add_string(name(dtype))};
  if (const auto& damage = content.damage()) {
    items.push_back(document.add_none());
    for (const std::string* text :
         {&damage->where().path, &damage->where().tensor, &damage->problem(),
          &damage->hint()})
      items.push_back(document.add_string(*text));
  } else {
    items.push_back(document.add_text(Type::kBytes, content.bytes()));
  }
  return document.add_persistent(document.add_container(Type::kTuple, items));
}

bool is_inline_storage(const Document& document, Id node) {
  if (!document.is(node, Type::kPersistent)) return false;
  const Id id = document.items(node)[0];
  if (!document.is(id, Type::kTuple)) return false;
  const auto items = document.items(id);
  return (items.size() == kKnown || items.size() == kDamage) &&
         document.is(items[0], Type::kString) &&
         document.text(items[0]) == kInline;
}

std::optional<Content> inline_content(const Document& document, Id node) {
  if (!is_inline_storage(document, node)) return std::nullopt;
  const auto items = document.items(document.items(node)[0]);
  const auto text = [&](size_t i) {
    return std::string(document.text(items[i]));
  };
  if (items.size() == kKnown) return Content(text(2));
  return Content(std::make_shared<const Error>(
      ExitCode::kDamaged, Where{text(3), text(4)}, text(5), text(6)));
}

FilePlan plan_file(const Document& tree, Id root,
                   std::span<const TensorSlot> slots,
                   const std::string& archive_root) {
  Composer composer(tree, slots);
  std::vector<zip::Record> records;
  records.push_back(small_record("data.pkl", composer.encode(root)));
  records.push_back(small_record(".format_version", "1"));
  records.push_back(small_record(".storage_alignment", "64"));
  records.push_back(small_record("byteorder", "little"));
  const size_t first = records.size();
  for (size_t i = 0; i < composer.records().size(); ++i) {
    const Record& record = composer.records()[i];
    zip::Record entry{.name = fmt::format("data/{}", i),
                      .size = record.bytes,
                      .content = record.content};
    if (record.bytes == 0) entry.content = "";
    records.push_back(std::move(entry));
  }
  records.push_back(small_record("version", "3\n"));
  records.push_back(
      small_record(".data/serialization_id", serialization_id(records)));

  zip::PlannedArchive archive = zip::plan_archive(archive_root, records);
  FilePlan plan;
  plan.file.size = archive.size;
  plan.file.literals = std::move(archive.literals);
  plan.file.crcs = std::move(archive.crcs);
  share_lists(plan.file);
  for (size_t i = 0; i < slots.size(); ++i)
    plan.data_offsets.push_back(
        archive.data_offsets[first + composer.record_of(i)]);
  return plan;
}

std::string archive_root_of(std::string_view path) {
  std::string name = io::base_name(path);
  if (!is_plain_ascii(name)) return "archive";
  name = name.substr(0, name.rfind('.'));
  return name.empty() || name == "." ? "archive" : name;
}

DType plain_type(DType dtype) {
  switch (dtype) {
    case DType::qi8:
      return DType::i8;
    case DType::qi32:
      return DType::i32;
    case DType::qu8:
    case DType::qu4x2:
    case DType::qu2x4:
      return DType::u8;
    default:
      return dtype;
  }
}

TorchType torch_type(const std::string& name, DType dtype, const Shape& shape) {
  // Our own reader refuses 4,096, including what surrounds a state dict.
  constexpr size_t kLongestName = 4000;
  if (name.size() > kLongestName)
    throw unfaithful_error({{}, text::printable(name)},
                           "a name of {} bytes, torch files take {} here",
                           name.size(), kLongestName)
        .with_hint("give it another one with --rename");
  if (!info(dtype).torch.empty()) return {dtype, shape};
  if (dtype == DType::f4 && !shape.empty() && shape.back() % 2 == 0) {
    Shape halved = shape;
    halved.back() /= 2;
    return {DType::f4x2, halved};
  }
  if (dtype == DType::f4)
    throw unfaithful_error(
        {{}, text::printable(name)},
        "f4 of shape {}: torch packs pairs of the last dimension, and it is "
        "odd",
        to_string(shape));
  throw unfaithful_error({{}, text::printable(name)}, "torch has no dtype {}",
                         ckpt::name(dtype))
      .with_hint("write it to safetensors, or leave it out with --exclude");
}

Id add_dtype(Document& document, DType dtype) {
  return document.add_global("torch", info(dtype).torch);
}

int64_t size_for_torch(uint64_t n) {
  if (n > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    throw unfaithful_error({}, "torch has no sizes like {}", n);
  return static_cast<int64_t>(n);
}

Id add_int_tuple(Document& document, const Dims& dims) {
  std::vector<Id> items;
  for (const uint64_t value : dims)
    items.push_back(document.add_int(size_for_torch(value)));
  return document.add_container(Type::kTuple, items);
}

Id add_ordered_dict(Document& document, std::span<const Id> pairs) {
  const Id dict =
      document.add_call(document.add_global("collections", "OrderedDict"),
                        document.add_container(Type::kTuple));
  for (size_t i = 0; i + 1 < pairs.size(); i += 2)
    document.set(dict, pairs[i], pairs[i + 1]);
  return dict;
}

}  // namespace ckpt::torch
