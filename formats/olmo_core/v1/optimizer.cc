// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/v1/optimizer.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/container.h"
#include "formats/olmo_core/v1/v1.h"
#include "lib/io/file.h"
#include "lib/pickle/decode.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::olmo_core::v1 {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using text::printable;
using Severity = Problem::Severity;

constexpr uint64_t kMostPickle = uint64_t{64} << 20;
constexpr std::string_view kMark = ".__";

bool is_helper(std::string_view name) {
  return name == kGroupCount || name == kStateKeys || group_of(name);
}

const Tensor* find(const Part& part, std::string_view name) {
  for (const Tensor& tensor : part.tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

class ObjectTaker {
 public:
  ObjectTaker(Part& part, Catalog& catalog, const formats::ReadOptions& options)
      : part_(part), catalog_(catalog), options_(options) {}

  void take() {
    for (const Tensor& tensor : part_.tensors)
      if (is_helper(tensor.name)) add_object(tensor);
    check_count();
    drop_helpers();
    for (Tensor& tensor : part_.tensors) set_state(tensor);
  }

 private:
  void add_object(const Tensor& tensor) {
    const bool number = tensor.name == kGroupCount;
    const DType wanted = number ? DType::i64 : DType::u8;
    if (tensor.dtype != wanted || tensor.shape.size() != (number ? 0u : 1u))
      throw input_error({part_.index.path, printable(tensor.name)},
                        "is {} {}, expected {}", name(tensor.dtype),
                        to_string(tensor.shape),
                        number ? "one i64" : "a row of u8");
    const std::string bytes = read(tensor);
    auto document = std::make_shared<Document>();
    document->set_root(document->add_text(Type::kBytes, bytes));
    const Id value = number ? add_number(*document, bytes)
                            : decode(*document, tensor, bytes);
    catalog_.objects.push_back(
        {.name = tensor.name, .document = std::move(document), .node = value});
  }

  // The bytes of a tensor, from the first replica.
  std::string read(const Tensor& tensor) const {
    const uint64_t size = byte_size(tensor);
    if (size > kMostPickle)
      throw resource_error({part_.index.path, printable(tensor.name)},
                           "a pickle of {} bytes, at most {} are read", size,
                           kMostPickle);
    std::string bytes(size, '\0');
    for (auto piece = tensor.pieces.rbegin(); piece != tensor.pieces.rend();
         ++piece) {
      // A box of one dimension, or of none, is a range, too.
      const uint64_t unit = element_size(tensor.dtype);
      uint64_t begin = 0, end = size;
      if (piece->flat) {
        begin = piece->flat->begin * unit;
        end = piece->flat->end * unit;
      } else if (!piece->box.offset.empty()) {
        begin = piece->box.offset[0] * unit;
        end = begin + piece->box.shape[0] * unit;
      }
      const io::Handle file =
          io::Handle::open_read(catalog_.files[piece->extent.file].path);
      file.read(
          piece->extent.offset,
          std::as_writable_bytes(std::span(bytes).subspan(begin, end - begin)));
    }
    return bytes;
  }

  Id add_number(Document& document, const std::string& bytes) {
    std::memcpy(&count_, bytes.data(), sizeof count_);
    return document.add_int(count_);
  }

  Id decode(Document& document, const Tensor& tensor,
            const std::string& bytes) {
    const std::string path = io::join(part_.directory, tensor.name);
    const pickle::Decoded decoded =
        pickle::decode(std::as_bytes(std::span(bytes)), path);
    if (decoded.end != bytes.size())
      throw input_error({part_.index.path, printable(tensor.name)},
                        "its pickle ends at byte {} of {}", decoded.end,
                        bytes.size());
    if (options_.restrict_globals) torch::check_globals(decoded.globals, path);
    catalog_.globals.insert(catalog_.globals.end(), decoded.globals.begin(),
                            decoded.globals.end());
    const Document& source = *decoded.document;
    if (tensor.name == kStateKeys) {
      if (source.is(source.root(), Type::kList))
        for (const Id key : source.items(source.root()))
          if (source.is(key, Type::kString)) states_.emplace(source.text(key));
    } else {
      ++groups_;
    }
    return document.import(source, source.root());
  }

  void check_count() {
    if (count_ == groups_) return;
    catalog_.problems.push_back(
        damage("param_groups", {part_.index.path, std::string(kGroupCount)},
               "says {} groups of parameters, {} are there", count_, groups_));
  }

  void drop_helpers() {
    std::vector<Tensor> tensors;
    std::vector<bool> sharded;
    for (size_t i = 0; i < part_.tensors.size(); ++i) {
      if (is_helper(part_.tensors[i].name)) continue;
      tensors.push_back(std::move(part_.tensors[i]));
      sharded.push_back(part_.sharded[i]);
    }
    part_.tensors = std::move(tensors);
    part_.sharded = std::move(sharded);
  }

  // state.<param>.__<name>; in the first week, state.<name>.<param>.
  void set_state(Tensor& tensor) const {
    tensor.kind = Kind::optim;
    std::string_view name = tensor.name;
    if (!name.starts_with(kState)) return;
    name.remove_prefix(kState.size());
    const size_t mark = name.rfind(kMark);
    if (mark != name.npos) {
      tensor.param = name.substr(0, mark);
      tensor.state = name.substr(mark + kMark.size());
      return;
    }
    const size_t dot = name.find('.');
    if (dot == name.npos || !states_.contains(std::string(name.substr(0, dot))))
      return;
    tensor.state = name.substr(0, dot);
    tensor.param = name.substr(dot + 1);
  }

  Part& part_;
  Catalog& catalog_;
  const formats::ReadOptions& options_;
  std::unordered_set<std::string> states_;
  int64_t count_ = 0;
  int64_t groups_ = 0;
};

}  // namespace

std::optional<uint32_t> group_of(std::string_view name) {
  if (!name.starts_with(kGroup)) return std::nullopt;
  name.remove_prefix(kGroup.size());
  return text::number<uint32_t>(name);
}

bool is_optimizer(const Part& part) {
  return find(part, kGroupCount) != nullptr &&
         find(part, kStateKeys) != nullptr;
}

void take_objects(Part& part, Catalog& catalog,
                  const formats::ReadOptions& options) {
  ObjectTaker(part, catalog, options).take();
  std::ranges::sort(catalog.globals);
  const auto rest = std::unique(catalog.globals.begin(), catalog.globals.end());
  catalog.globals.erase(rest, catalog.globals.end());
}

std::vector<std::string> parameter_names(const Object& group) {
  const Document& document = *group.document;
  std::vector<std::string> names;
  for (const char* key : {"_param_names", "param_names"}) {
    const Id list = document.find(group.node, key);
    if (!document.is(list, Type::kList)) continue;
    for (const Id name : document.items(list))
      names.emplace_back(document.is(name, Type::kString) ? document.text(name)
                                                          : "");
    break;
  }
  return names;
}

void check_moments(Catalog& catalog) {
  std::unordered_map<std::string_view, const Tensor*> params;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model) params.emplace(tensor.name, &tensor);
  for (const Tensor& tensor : catalog.tensors) {
    const bool moment = tensor.state.starts_with("exp_avg") ||
                        tensor.state.starts_with("max_exp_avg");
    const auto param = params.find(tensor.param);
    if (!moment || tensor.shape.empty() || param == params.end() ||
        param->second->shape == tensor.shape ||
        param->second->shape.size() != tensor.shape.size())
      continue;
    catalog.problems.push_back(
        damage("moment_shape", {catalog.path, printable(tensor.name)},
               "is {}, its parameter {}: a trainer that had resumed "
               "with tensor parallelism saved one rank's part as the "
               "whole; the other ranks' parts are lost",
               to_string(tensor.shape), to_string(param->second->shape)));
  }
}

}  // namespace ckpt::olmo_core::v1
