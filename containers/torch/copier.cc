// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/copier.h"

#include "ckpt/error.h"
#include "containers/torch/rebuild.h"
#include "containers/torch/walk.h"

namespace ckpt::torch {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

bool is_sequence(Type type) {
  return type == Type::kTuple || type == Type::kFrozenSet ||
         type == Type::kList || type == Type::kSet;
}

// All entries of such a mapping are BUILD-like additions: OrderedDict() with
// pairs. Others (Counter({…})) keep theirs in their arguments.
bool is_ordered_dict(const Document& document, Id node) {
  return document.is_call(node, "collections", "OrderedDict");
}

// A subclass of Tensor, or a Tensor with attributes; not the wrapper of a
// DTensor, which becomes a plain tensor.
bool keeps_type(const Document& document, Id node) {
  if (rebuild_of(document, node) != Rebuild::kFromType) return false;
  const auto args = document.items(document.call(node).args);
  return args.size() > 3 &&
         rebuild_of_global(document, args[0]) != Rebuild::kWrapper;
}

}  // namespace

const Copier::Edit* Copier::edit(Id holder, size_t index) const {
  const auto it = edits_.find({holder, index});
  return it == edits_.end() ? nullptr : &it->second;
}

Id Copier::copied(Id node) const {
  return node == kNoId ? kNoId : copies_[node];
}

Id Copier::copy(Id root) {
  copies_.assign(source_.size(), kNoId);
  make(root);
  // Containers that can hold themselves are created empty and filled later.
  while (!unfilled_.empty()) {
    const Id node = unfilled_.back();
    unfilled_.pop_back();
    fill(node);
  }
  out_.set_root(copies_[root]);
  return copies_[root];
}

void Copier::add(Id mapping, const std::string& key, size_t slot) {
  out_.set(mapping, out_.add_string(key), add_placeholder(out_, slot));
}

// Creates a node, but first those that it can't exist without.
void Copier::make(Id root) {
  std::vector<std::pair<Id, bool>> stack{{root, false}};
  while (!stack.empty()) {
    const auto [node, ready] = stack.back();
    if (copies_[node] != kNoId) {
      stack.pop_back();
    } else if (ready) {
      stack.pop_back();
      copies_[node] = create(node);
    } else {
      // Only lists, sets, dicts and the state of objects can close a cycle.
      if (!begun_.insert(node).second)
        throw bug_error({}, "a cycle of values that can't hold themselves");
      stack.back().second = true;
      for (const Id other : needed(node))
        if (copies_[other] == kNoId) stack.emplace_back(other, false);
    }
  }
  begun_.clear();
}

std::vector<Id> Copier::needed(Id node) const {
  std::vector<Id> ids;
  const auto add = [&](Id id) {
    if (id != kNoId) ids.push_back(id);
  };
  if (const auto tensor = tensors_.find(node); tensor != tensors_.end()) {
    const Rebuild rebuild = rebuild_of(source_, node);
    const Id args = source_.call(node).args;
    if (rebuild == Rebuild::kParameterState) {
      add(source_.items(args)[3]);
    } else if (keeps_type(source_, node)) {
      add(source_.items(args)[1]);
      add(source_.items(args)[3]);
    } else if (rebuild == Rebuild::kQuantized) {
      add(source_.items(args)[2]);
      add(source_.items(args)[3]);
      add(source_.items(args)[4]);
    }
    return ids;
  }
  const Type type = source_.type(node);
  if (type == Type::kTuple || type == Type::kFrozenSet) {
    const auto items = source_.items(node);
    for (size_t i = 0; i < items.size(); ++i)
      if (!edit(node, i)) add(items[i]);
  } else if (type == Type::kCall) {
    const pickle::Call call = source_.call(node);
    add(call.callable);
    if (!is_ordered_dict(source_, node)) add(call.args);
    add(call.kwargs);
  }
  return ids;
}

Id Copier::create(Id node) {
  if (const auto tensor = tensors_.find(node); tensor != tensors_.end())
    return create_tensor(node, tensor->second);
  switch (source_.type(node)) {
    case Type::kPersistent:
      return create_storage(node);
    case Type::kCall:
      return create_call(node);
    case Type::kList:
    case Type::kSet:
    case Type::kDict:
      unfilled_.push_back(node);
      return out_.add_container(source_.type(node));
    case Type::kTuple:
    case Type::kFrozenSet: {
      std::vector<Id> items;
      const auto children = source_.items(node);
      for (size_t i = 0; i < children.size(); ++i)
        items.push_back(edit(node, i) ? out_.add_none() : copied(children[i]));
      return out_.add_container(source_.type(node), items);
    }
    default:
      return out_.import(source_, node);  // a scalar or a global
  }
}

Id Copier::create_call(Id node) {
  const pickle::Call call = source_.call(node);
  unfilled_.push_back(node);
  pickle::Call copy;
  copy.how = call.how;
  copy.callable = copied(call.callable);
  copy.args = is_ordered_dict(source_, node) ? out_.add_container(Type::kTuple)
                                             : copied(call.args);
  copy.kwargs = copied(call.kwargs);
  return out_.add_call(copy);
}

// storage, offset, size, stride, requires_grad, hooks[, dtype]
std::vector<Id> Copier::storage_arguments(size_t slot) {
  const TensorSlot& tensor = slots_[slot];
  std::vector<Id> args = {add_storage_placeholder(out_, slot),
                          out_.add_int(0),
                          add_int_tuple(out_, tensor.shape),
                          add_int_tuple(out_, row_major_strides(tensor.shape)),
                          out_.add_bool(tensor.requires_grad),
                          add_ordered_dict(out_)};
  if (info(tensor.dtype).storage.empty())
    args.push_back(add_dtype(out_, tensor.dtype));
  return args;
}

// Wrappers that carry something are kept; DTensors become plain.
Id Copier::create_tensor(Id node, size_t slot) {
  const TensorSlot& tensor = slots_[slot];
  const Rebuild rebuild = rebuild_of(source_, node);
  const Id args = source_.call(node).args;
  const auto call = [&](std::string_view module, std::string_view function,
                        const std::vector<Id>& arguments) {
    return out_.add_call(out_.add_global(module, function),
                         out_.add_container(Type::kTuple, arguments));
  };
  const auto argument = [&](size_t i) {
    return copied(source_.items(args)[i]);
  };
  const std::string_view function = info(tensor.dtype).storage.empty()
                                        ? "_rebuild_tensor_v3"
                                        : "_rebuild_tensor_v2";
  if (rebuild == Rebuild::kParameterState) {
    auto plain = storage_arguments(slot);
    plain[4] = out_.add_bool(false);
    return call("torch._utils", "_rebuild_parameter_with_state",
                {call("torch._utils", function, plain),
                 out_.add_bool(tensor.requires_grad), add_ordered_dict(out_),
                 argument(3)});
  }
  if (keeps_type(source_, node)) {
    std::vector<Id> plain = storage_arguments(slot);
    return call("torch._tensor", "_rebuild_from_type_v2",
                {out_.add_global("torch._utils", function), argument(1),
                 out_.add_container(Type::kTuple, plain), argument(3)});
  }
  const bool quantized =
      tensor.dtype == DType::qi8 || tensor.dtype == DType::qu8 ||
      tensor.dtype == DType::qi32 || tensor.dtype == DType::qu4x2 ||
      tensor.dtype == DType::qu2x4;
  if (rebuild == Rebuild::kQuantized && quantized) {
    const bool packed =
        tensor.dtype == DType::qu4x2 || tensor.dtype == DType::qu2x4;
    const auto plain = storage_arguments(slot);
    // torch counts the values of packed types; the slot counts their bytes.
    return call(
        "torch._utils", "_rebuild_qtensor",
        {plain[0], plain[1], packed ? argument(2) : plain[2],
         packed ? argument(3) : plain[3], argument(4), plain[4], plain[5]});
  }
  return add_placeholder(out_, slot);
}

Id Copier::create_storage(Id node) {
  const auto content = storages_.find(node);
  if (content == storages_.end())
    throw unfaithful_error({},
                           "a storage without a tensor is too large to be "
                           "carried into another torch file")
        .with_hint("write the tensors to safetensors");
  // ("storage", class, …): an untyped storage has no dtype of its own.
  const Id id = source_.items(node)[0];
  const Id type = source_.items(id)[1];
  const auto dtype = dtype_from_storage(source_.text(type));
  return add_inline_storage(out_, dtype.value_or(DType::bits8),
                            *content->second);
}

void Copier::fill_pairs(Id node, const std::vector<Id>& pairs) {
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
    const Edit* change = edit(node, i / 2);
    if (change && change->drop) continue;
    make(pairs[i]);
    make(pairs[i + 1]);
    const Id key = change && !change->key.empty() ? out_.add_string(change->key)
                                                  : copies_[pairs[i]];
    out_.set(copies_[node], key, copies_[pairs[i + 1]]);
  }
}

void Copier::fill(Id node) {
  const auto list = [](std::span<const Id> ids) {
    return std::vector<Id>(ids.begin(), ids.end());
  };
  const Type type = source_.type(node);
  if (type == Type::kDict) return fill_pairs(node, list(source_.items(node)));
  if (is_sequence(type)) {
    const auto items = source_.items(node);
    for (size_t i = 0; i < items.size(); ++i) {
      const bool blank = edit(node, i) != nullptr;
      if (!blank) make(items[i]);
      out_.append(copies_[node], blank ? out_.add_none() : copies_[items[i]]);
    }
    return;
  }
  const pickle::Call call = source_.call(node);
  for (const Id item : call.items) {
    make(item);
    out_.append(copies_[node], copies_[item]);
  }
  if (is_ordered_dict(source_, node))
    fill_pairs(node, source_.as_pairs(node).value_or(std::vector<Id>()));
  else
    fill_pairs(node, list(call.pairs));
  if (call.state != kNoId) {
    make(call.state);
    out_.set_state(copies_[node], copies_[call.state]);
  }
}

}  // namespace ckpt::torch
