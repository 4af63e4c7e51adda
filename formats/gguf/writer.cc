// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/gguf/header.h"
#include "formats/gguf/gguf.h"
#include "formats/run_state.h"
#include "formats/target.h"
#include "lib/decoding.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::gguf {
namespace {

// Where its weights go in a directory.
constexpr std::string_view kFile = "model.gguf";

// What ggml's kernels take in f32 alone, whatever the model's dtype is, beside
// norms and what has one dimension (llama.cpp's converter and its quantizer
// have this list).
constexpr auto kAlwaysF32 = std::to_array<std::string_view>(
    {"_norm.weight", ".ffn_gate_inp.weight", ".ffn_gate_inp_shexp.weight",
     "position_embd.weight", "token_types.weight", ".ssm_conv1d.weight",
     ".shortconv.conv.weight"});

constexpr std::string_view kFileType = "general.file_type";

bool needs_f32(const Tensor& tensor) {
  return tensor.shape.size() < 2 ||
         std::ranges::any_of(kAlwaysF32, [&](std::string_view ending) {
           return tensor.name.ends_with(ending);
         });
}

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
    std::vector<Described> described;
    for (const Tensor& tensor : source_.tensors)
      described.push_back(describe(tensor));
    Encoded encoded = encode_header(*document_, keys_, described);
    place(std::move(encoded), described);
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
    if (blocks_.empty()) say_file_type();
  }

  // What most of the elements are: llama.cpp's enum llama_ftype.
  void say_file_type() {
    std::map<DType, uint64_t> bytes;
    for (const Tensor& tensor : source_.tensors)
      bytes[tensor.dtype] += byte_size(tensor);
    const auto most = std::ranges::max_element(
        bytes, {}, [](const auto& one) { return one.second; });
    if (most == bytes.end()) return;
    const int64_t type = most->first == DType::bf16  ? 32
                         : most->first == DType::f16 ? 1
                                                     : 0;
    const pickle::Id value = document_->add_int(type);
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

  void place(Encoded encoded, const std::vector<Described>& described) {
    TargetFile file;
    file.path = layout_.single_file ? "" : std::string(kFile);
    file.size = encoded.size;
    std::vector<Literal> literals;
    literals.push_back({0, std::move(encoded.head)});
    for (size_t t = 0; t < described.size(); ++t) {
      Tensor& tensor = target_.catalog.tensors[t];
      const uint64_t begin = encoded.begins[t];
      const uint64_t end = begin + described[t].bytes;
      tensor.pieces.push_back(
          {.box = Box::whole(tensor.shape),
           .flat = {},
           .extent = {.offset = begin, .strides = {}, .file = 0}});
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
  if (layout.max_shard_size)
    throw usage_error({}, "GGUF is written as one file")
        .with_hint("llama.cpp's llama-gguf-split makes parts of it");
  source = runs::model_only(std::move(source));
  auto types = std::make_shared<pickle::Document>();
  const pickle::Id dict = types->add_container(pickle::Type::kDict);
  for (Tensor& tensor : source.tensors) {
    const GgmlInfo* type = blocks_of(tensor, source);
    // With --dtype, numbers are wanted.
    if (type && !tensor.pinned) {
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

std::unique_ptr<formats::Writer> make_writer() {
  return formats::writer_of(kFormat, review, formats::build_with<Builder>);
}

}  // namespace ckpt::gguf
