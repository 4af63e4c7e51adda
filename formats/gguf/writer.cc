// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/gguf/header.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf/kinds.h"
#include "formats/run_state.h"
#include "formats/target.h"
#include "lib/decoding.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::gguf {
namespace {

// What its file or its parts are named after in a directory.
constexpr std::string_view kStem = "model";
constexpr size_t kMostParts = 65535;  // split.count is a u16

// What ggml's kernels take in f32 alone, whatever the model's dtype is, beside
// norms and what has one dimension (llama.cpp's converter and its quantizer
// have this list).
constexpr auto kAlwaysF32 = std::to_array<std::string_view>(
    {"_norm.weight", ".ffn_gate_inp.weight", ".ffn_gate_inp_shexp.weight",
     "position_embd.weight", "token_types.weight", ".ssm_conv1d.weight",
     ".shortconv.conv.weight"});

// What has another ending is a number or a table, whatever its shape is.
constexpr auto kWeights =
    std::to_array<std::string_view>({".weight", ".lora_a", ".lora_b"});

constexpr std::string_view kFileType = "general.file_type";

bool is_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 ||
         dtype == DType::bf16;
}

const GgmlInfo* plain_type(DType dtype) {
  for (const GgmlInfo& type : all_ggml_types())
    if (type.dtype == dtype) return &type;
  return nullptr;
}

// The object that says of tensors in blocks which type they have; their dtype
// is u8, and the last dimension counts bytes.
constexpr std::string_view kBlocks = "gguf.blocks";

class Builder {
 public:
  Builder(const Catalog& source, const Layout& layout)
      : source_(source), layout_(layout) {}

  Target build() {
    target_.catalog = formats::catalog_like(source_, kFormat);
    target_.catalog.dialect = kFormat;
    take_metadata();
    const std::vector<size_t> ends = parts();
    for (size_t part = 0, begin = 0; part < ends.size(); begin = ends[part++]) {
      std::vector<Described> described;
      for (size_t t = begin; t < ends[part]; ++t)
        described.push_back(describe(source_.tensors[t]));
      place(encode_header(*document_, keys_of(part, ends.size()), described),
            described, begin, file_name(part, ends.size()));
    }
    const bool tokens = std::ranges::any_of(keys_, [](const Key& key) {
      return key.name == "tokenizer.ggml.tokens";
    });
    for (const SourceFile& file : source_.file_list)
      if (tokens && file.part == "tokenizer")
        target_.fates.push_back({file.path, Fate::kConverted, {}});
    return std::move(target_);
  }

 private:
  void take_metadata() {
    std::map<std::string, std::string> types;
    for (const Object& object : source_.objects) {
      if (object.name == kTypes) read_texts(object, types);
      if (object.name == kBlocks) read_texts(object, blocks_);
    }
    if (types.empty())
      throw unfaithful_error({source_.path, {}},
                             "nothing says the keys of a GGUF file: the "
                             "architecture and its numbers")
          .with_hint(
              "`ckpt convert SRC DST.gguf` makes them of the model's "
              "configuration");
    for (const Object& object : source_.objects) {
      if (object.name == kTypes || object.name == kBlocks) continue;
      const auto type = types.find(object.name);
      if (type == types.end()) {
        target_.problems.push_back(
            warning("object_left_out", {{}, object.name},
                    "GGUF has no key for this value; skipped"));
        continue;
      }
      keys_.push_back({object.name, type->second,
                       document_->import(*object.document, object.node)});
      target_.catalog.objects.push_back(object);
    }
    // What a file of blocks says of itself stays.
    if (std::ranges::none_of(source_.tensors, [&](const Tensor& tensor) {
          return blocks_.contains(tensor.name) &&
                 !made_blocks_of(tensor, source_);
        }))
      say_file_type();
  }

  // The type of the blocks that are made, of which there is one; else what
  // most of the bytes are.
  std::optional<int> file_type() const {
    std::map<DType, uint64_t> bytes;
    for (const Tensor& tensor : source_.tensors) {
      if (const GgmlInfo* made = made_blocks_of(tensor, source_))
        return file_type_of(made->type);
      bytes[tensor.dtype] += byte_size(tensor);
    }
    const auto most = std::ranges::max_element(
        bytes, {}, [](const auto& one) { return one.second; });
    const GgmlInfo* type =
        most == bytes.end() ? nullptr : plain_type(most->first);
    return type ? file_type_of(type->type) : std::nullopt;
  }

  void say_file_type() {
    const std::optional<int> type = file_type();
    if (!type) return;
    const pickle::Id value = document_->add_int(*type);
    const auto there = std::ranges::find(keys_, kFileType, &Key::name);
    if (there != keys_.end())
      *there = {std::string(kFileType), "u32", value};
    else
      keys_.push_back({std::string(kFileType), "u32", value});
  }

  static void read_texts(const Object& object,
                         std::map<std::string, std::string>& texts) {
    const auto pairs = object.document->as_pairs(object.node);
    for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2)
      texts.emplace(object.document->text((*pairs)[i]),
                    object.document->text((*pairs)[i + 1]));
  }

  const GgmlInfo* type_of(const Tensor& tensor) const {
    const auto blocks = blocks_.find(tensor.name);
    return blocks == blocks_.end() ? plain_type(tensor.dtype)
                                   : ggml_from_name(blocks->second);
  }

  Described describe(const Tensor& tensor) const {
    Described described{.name = tensor.name, .shape = tensor.shape};
    const GgmlInfo* type = type_of(tensor);
    if (!type)
      throw unfaithful_error({source_.path, tensor.name},
                             "GGUF has no type for {}", name(tensor.dtype))
          .with_hint("--dtype f32, f16 or bf16 writes floats");
    described.type = type->type;
    described.bytes = byte_size(tensor);
    if (!type->dtype && !described.shape.empty())
      described.shape.back() =
          described.shape.back() / type->bytes * type->elements;
    return described;
  }

  // Where each part ends: before the tensor that would make it larger than
  // asked, as the gguf package cuts.
  std::vector<size_t> parts() const {
    std::vector<size_t> ends;
    uint64_t bytes = 0;
    for (size_t t = 0; t < source_.tensors.size(); ++t) {
      const uint64_t more = byte_size(source_.tensors[t]);
      if (layout_.max_shard_size != 0 && bytes != 0 &&
          more > layout_.max_shard_size -
                     std::min(bytes, layout_.max_shard_size)) {
        ends.push_back(t);
        bytes = 0;
      }
      bytes += more;
    }
    ends.push_back(source_.tensors.size());
    if (ends.size() > kMostParts)
      throw usage_error({},
                        "--max-shard-size {} makes {} parts, of which GGUF "
                        "has at most {}",
                        text::iec_size(layout_.max_shard_size), ends.size(),
                        kMostParts);
    return ends;
  }

  // The first part has the model's keys; each says which one it is.
  std::vector<Key> keys_of(size_t part, size_t count) {
    std::vector<Key> keys;
    if (part == 0) keys = keys_;
    if (count == 1) return keys;
    const auto add = [&](const char* name, const char* type, size_t value) {
      keys.push_back(
          {name, type, document_->add_int(static_cast<int64_t>(value))});
    };
    add("split.no", "u16", part);
    add("split.count", "u16", count);
    add("split.tensors.count", "i32", source_.tensors.size());
    return keys;
  }

  std::string file_name(size_t part, size_t count) const {
    if (layout_.single_file) return "";
    return count == 1 ? fmt::format("{}{}", kStem, kEnding)
                      : fmt::format("{}-{:05}-of-{:05}{}", kStem, part + 1,
                                    count, kEnding);
  }

  // Puts the tensors from number `first` on into a file of their own.
  void place(Encoded encoded, const std::vector<Described>& described,
             size_t first, std::string path) {
    const auto number = static_cast<uint32_t>(target_.files.size());
    TargetFile file;
    file.path = std::move(path);
    file.size = encoded.size;
    std::vector<Literal> literals;
    literals.push_back({0, std::move(encoded.head)});
    for (size_t t = 0; t < described.size(); ++t) {
      Tensor& tensor = target_.catalog.tensors[first + t];
      const uint64_t begin = encoded.begins[t];
      const uint64_t end = begin + described[t].bytes;
      tensor.pieces.push_back(
          {.box = Box::whole(tensor.shape),
           .flat = {},
           .extent = {.offset = begin, .strides = {}, .file = number}});
      const uint64_t next =
          t + 1 < described.size() ? encoded.begins[t + 1] : encoded.size;
      if (next > end) literals.push_back({end, std::string(next - end, '\0')});
    }
    file.literals = std::move(literals);
    target_.catalog.files.push_back({.path = file.path, .size = file.size});
    target_.files.push_back(std::move(file));
  }

  const Catalog& source_;
  const Layout& layout_;
  Target target_;
  std::shared_ptr<pickle::Document> document_ =
      std::make_shared<pickle::Document>();
  std::vector<Key> keys_;
  std::map<std::string, std::string> blocks_;  // tensor -> type
};

Catalog review(Catalog source, const Layout& layout) {
  if (layout.max_shard_size && layout.single_file)
    throw usage_error({}, "--max-shard-size: {} is one file",
                      text::printable(layout.name))
        .with_hint(
            "--to gguf and the name of a directory write parts of a "
            "model, model-00001-of-00003.gguf");
  source = runs::model_only(std::move(source));
  auto types = std::make_shared<pickle::Document>();
  const pickle::Id dict = types->add_container(pickle::Type::kDict);
  for (Tensor& tensor : source.tensors) {
    const GgmlInfo* type = blocks_of(tensor, source);
    if (const GgmlInfo* made = made_blocks_of(tensor, source)) {
      types->set(dict, tensor.name, types->add_string(made->name));
      // With --dtype, numbers are wanted.
    } else if (type && !tensor.pinned) {
      take_stored(source, tensor);
      types->set(dict, tensor.name, types->add_string(type->name));
    } else if (is_float(tensor.dtype) && needs_f32(tensor)) {
      tensor.pinned = DType::f32;
    }
  }
  source.objects.push_back({std::string(kBlocks), types, dict});
  return source;
}

}  // namespace

bool needs_f32(const Tensor& tensor) {
  const auto ends = [&](std::string_view ending) {
    return tensor.name.ends_with(ending);
  };
  return tensor.shape.size() < 2 || std::ranges::any_of(kAlwaysF32, ends) ||
         !std::ranges::any_of(kWeights, ends);
}

const GgmlInfo* made_blocks_of(const Tensor& tensor, const Catalog& catalog) {
  if (tensor.pieces.empty()) return nullptr;
  const uint32_t file = tensor.pieces[0].extent.file;
  if (file >= catalog.files.size() || !is_decoded(catalog.files[file]))
    return nullptr;
  const Decoding& made = decoding_of(catalog.files[file]);
  return made.coding == Coding::kGgmlBlocks ? ggml_info(made.ggml) : nullptr;
}

std::optional<int> file_type_of(GgmlType type) {
  using enum GgmlType;
  switch (type) {
    case f32:
      return 0;
    case f16:
      return 1;
    case q4_0:
      return 2;
    case q4_1:
      return 3;
    case q8_0:
      return 7;
    case q5_0:
      return 8;
    case q5_1:
      return 9;
    case bf16:
      return 32;
    case tq1_0:
      return 36;
    case tq2_0:
      return 37;
    default:
      return std::nullopt;
  }
}

std::unique_ptr<formats::Writer> make_writer() {
  return formats::writer_of(kFormat, review, formats::build_with<Builder>);
}

}  // namespace ckpt::gguf
