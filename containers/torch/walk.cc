// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/walk.h"

#include <unordered_set>

#include "ckpt/error.h"
#include "containers/torch/rebuild.h"
#include "lib/pickle/parts.h"
#include "lib/tree_memory.h"

namespace ckpt::torch {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

constexpr size_t kMaxDepth = 512;
constexpr size_t kMaxName = 4096;
constexpr uint64_t kFreeVisits = 1'000'000;

std::vector<Id> storages_of(const Document& document) {
  std::vector<Id> storages;
  for (Id node = 0; node < document.size(); ++node)
    if (document.type(node) == Type::kPersistent) storages.push_back(node);
  return storages;
}

struct Child {
  std::string key;
  Id node = kNoId;
  Id holder = kNoId;
  uint32_t index = 0;
  Site site = Site::kInside;
  bool attribute = false;
};
using Children = std::vector<Child>;

// Lists the children of a node.
class Expander {
 public:
  explicit Expander(const Document& document) : document_(document) {}

  Children expand(Id node, Next next) {
    children_.clear();
    if (next == Next::kAttributes) {
      add_attributes(document_.call(node));
    } else if (is_mapping(document_, node)) {
      add_pairs(node, Site::kPair);
      const Id state =
          document_.is(node, Type::kCall) ? document_.call(node).state : kNoId;
      if (state != kNoId) add_state(state);
    } else if (document_.is(node, Type::kCall)) {
      add_call(node);
    } else {
      add_elements(node, Site::kElement);
    }
    return std::move(children_);
  }

 private:
  // Growing must not double a container of millions.
  void expect(size_t count) {
    if (count < 1024) return;
    tree_memory::Charge().add(count * sizeof(Child));
    children_.reserve(children_.size() + count);
  }
  void add(std::string key, Id node, Id holder, size_t index, Site site) {
    children_.push_back(
        {std::move(key), node, holder, static_cast<uint32_t>(index), site});
  }
  void add_pairs(Id mapping, Site site) {
    const auto pairs = document_.as_pairs(mapping);
    if (!pairs) return;
    expect(pairs->size() / 2);
    for (size_t i = 0; i + 1 < pairs->size(); i += 2)
      add(key_text(document_, (*pairs)[i], i / 2), (*pairs)[i + 1], mapping,
          i / 2, site);
  }
  void add_elements(Id node, Site site, const std::string& prefix = {}) {
    if (!document_.is(node, Type::kList) && !document_.is(node, Type::kTuple) &&
        !document_.is(node, Type::kSet) &&
        !document_.is(node, Type::kFrozenSet))
      return;
    const auto items = document_.items(node);
    expect(items.size());
    for (size_t i = 0; i < items.size(); ++i)
      add(prefix + std::to_string(i), items[i], node, i, site);
  }

  // An nn.Module keeps its tensors in three dicts; state_dict() leaves out the
  // dicts' names, the buffers that are not persistent, and other attributes.
  bool add_module(Id state) {
    const auto parts = module_parts(document_, state);
    if (!parts) return false;
    add_pairs((*parts)[0], Site::kPair);
    const size_t first = children_.size();
    add_pairs((*parts)[1], Site::kPair);
    const Id passing = document_.find(state, "_non_persistent_buffers_set");
    if (passing != kNoId && document_.is(passing, Type::kSet))
      for (const Id name : document_.items(passing))
        for (size_t i = first; i < children_.size(); ++i)
          if (document_.is(name, Type::kString) &&
              children_[i].key == document_.text(name))
            children_[i].attribute = true;
    add_pairs((*parts)[2], Site::kPair);
    const auto pairs = document_.as_pairs(state);
    for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
      const Id value = (*pairs)[i + 1];
      if (std::ranges::find(*parts, value) != parts->end()) continue;
      add(key_text(document_, (*pairs)[i], i / 2), value, state, i / 2,
          Site::kInside);
      children_.back().attribute = true;
    }
    return true;
  }

  // Attributes: a dict, or (dict or None, dict of slots).
  void add_state(Id state) {
    if (is_mapping(document_, state)) {
      add_pairs(state, Site::kInside);
    } else if (document_.is(state, Type::kTuple) &&
               document_.items(state).size() == 2 &&
               is_mapping(document_, document_.items(state)[1])) {
      const Id plain = document_.items(state)[0];
      if (is_mapping(document_, plain)) add_pairs(plain, Site::kInside);
      add_pairs(document_.items(state)[1], Site::kInside);
    } else {
      add("state", state, state, 0, Site::kInside);
    }
  }

  void add_call(Id node) {
    const pickle::Call call = document_.call(node);
    const Rebuild rebuild = rebuild_of(document_, node);
    if (rebuild == Rebuild::kSparse)
      add_sparse(call.args);
    else if (rebuild == Rebuild::kNested)
      add_parts(call.args, {"buffer"});
    else
      add_object(call);
    if (call.state != kNoId && !add_module(call.state)) add_state(call.state);
  }

  void add_object(const pickle::Call& call) {
    add("callable", call.callable, call.callable, 0, Site::kInside);
    if (call.args != kNoId) add_elements(call.args, Site::kInside, "args.");
    if (call.kwargs != kNoId) add_pairs(call.kwargs, Site::kInside);
    for (size_t i = 0; i < call.items.size(); ++i)
      add(std::to_string(i), call.items[i], kNoId, i, Site::kInside);
    for (size_t i = 0; i + 1 < call.pairs.size(); i += 2)
      add(key_text(document_, call.pairs[i], i / 2), call.pairs[i + 1], kNoId,
          i / 2, Site::kInside);
  }

  // The state of _rebuild_parameter_with_state and _rebuild_from_type_v2,
  // and BUILD's.
  void add_attributes(const pickle::Call& call) {
    if (call.state != kNoId) add_state(call.state);
    if (!document_.is(call.args, Type::kTuple)) return;
    const auto items = document_.items(call.args);
    if (items.size() > 3 && is_mapping(document_, items[3]))
      add_pairs(items[3], Site::kInside);
  }

  // (layout, (indices, values, …)), by layout
  void add_sparse(Id args) {
    if (!document_.is(args, Type::kTuple) || document_.items(args).size() < 2)
      return;
    const Id layout = document_.items(args)[0];
    const Id data = document_.items(args)[1];
    std::string_view kind;
    if (document_.is_call(layout, "torch.serialization", "_get_layout")) {
      const Id names = document_.call(layout).args;
      if (document_.is(names, Type::kTuple) &&
          !document_.items(names).empty() &&
          document_.is(document_.items(names)[0], Type::kString))
        kind = document_.text(document_.items(names)[0]);
    }
    if (kind == "torch.sparse_coo")
      add_parts(data, {"indices", "values"});
    else if (kind == "torch.sparse_csr" || kind == "torch.sparse_bsr")
      add_parts(data, {"crow_indices", "col_indices", "values"});
    else if (kind == "torch.sparse_csc" || kind == "torch.sparse_bsc")
      add_parts(data, {"ccol_indices", "row_indices", "values"});
    else
      add_elements(data, Site::kInside, "data.");
  }

  void add_parts(Id tuple, std::initializer_list<const char*> names) {
    if (!document_.is(tuple, Type::kTuple)) return;
    const auto items = document_.items(tuple);
    size_t i = 0;
    for (const char* name : names) {
      if (i >= items.size()) return;
      add(name, items[i], tuple, i, Site::kInside);
      ++i;
    }
  }

  const Document& document_;
  Children children_;
};

// A depth-first walk with its own stack.
class Walker {
 public:
  Walker(const Document& document, const std::string& file,
         const std::function<Next(const Visit&, bool)>& visitor)
      : document_(document),
        file_(file),
        visitor_(visitor),
        holds_(mark_holders(document, storages_of(document))),
        budget_(std::max<uint64_t>(kFreeVisits, 2 * document.size())) {}

  void walk(Id root) {
    visit_.node = root;
    enter();
    while (!stack_.empty()) {
      Frame& top = stack_.back();
      if (top.next == top.children.size()) {
        leave();
        continue;
      }
      const Child& child = top.children[top.next++];
      visit_.node = child.node;
      visit_.holder = child.holder;
      visit_.index = child.index;
      visit_.site = child.site;
      visit_.attribute = top.attribute || child.attribute;
      name_size_ += child.key.size() + 1;
      if (name_size_ > kMaxName)
        throw input_error({file_, {}},
                          "the pickle: a name of more than {} bytes", kMaxName);
      visit_.path.push_back(child.key);
      if (!enter()) pop_key();
    }
  }

 private:
  struct Frame {
    Id node = kNoId;
    Children children;
    size_t next = 0;
    bool attribute = false;
  };

  void pop_key() {
    if (visit_.path.empty()) return;
    name_size_ -= visit_.path.back().size() + 1;
    visit_.path.pop_back();
  }
  void leave() {
    open_.erase(stack_.back().node);
    stack_.pop_back();
    pop_key();
  }
  // True if the walk continues below the node.
  bool enter() {
    if (budget_-- == 0)
      throw input_error({file_, {}},
                        "the pickle: shared values that hold tensors give too "
                        "many names");
    const Id node = visit_.node;
    const bool holds = holds_[node];
    if (open_.contains(node)) return false;  // a cycle
    const Next next = visitor_(visit_, holds);
    if (next == Next::kSkip) return false;
    if (!holds && next != Next::kOpen && !stack_.empty()) return false;
    if (stack_.size() == kMaxDepth)
      throw input_error({file_, {}},
                        "the pickle: tensors nested deeper than {} levels",
                        kMaxDepth);
    open_.insert(node);
    stack_.push_back({node, expander_.expand(node, next), 0, visit_.attribute});
    return true;
  }

  const Document& document_;
  const std::string& file_;
  const std::function<Next(const Visit&, bool)>& visitor_;
  std::vector<bool> holds_;
  uint64_t budget_;
  Expander expander_{document_};
  Visit visit_;
  size_t name_size_ = 0;
  std::vector<Frame> stack_;
  std::unordered_set<Id> open_;  // nodes on the stack
};

}  // namespace

void visit_tree(const Document& document, Id root, const std::string& file,
                const std::function<Next(const Visit&, bool)>& visitor) {
  Walker(document, file, visitor).walk(root);
}

// Works backwards from the targets: cycles rule out a simple descent.
std::vector<bool> mark_holders(const Document& document,
                               std::vector<Id> targets) {
  const size_t size = document.size();
  if (targets.empty()) return std::vector<bool>(size, false);
  tree_memory::Charge room;
  room.add((2 * size + 1) * sizeof(uint32_t));
  std::vector<uint32_t> first(size + 1, 0);
  for (Id node = 0; node < size; ++node)
    pickle::each_part(document, node, [&](Id child) { ++first[child + 1]; });
  for (size_t i = 0; i < size; ++i) first[i + 1] += first[i];
  std::vector<uint32_t> at(first.begin(), first.end() - 1);
  room.add(first[size] * sizeof(Id));
  std::vector<Id> holders(first[size]);
  for (Id node = 0; node < size; ++node)
    pickle::each_part(document, node,
                      [&](Id child) { holders[at[child]++] = node; });

  std::vector<bool> marked(size, false);
  for (const Id node : targets) marked[node] = true;
  std::vector<Id> queue = std::move(targets);
  while (!queue.empty()) {
    const Id node = queue.back();
    queue.pop_back();
    for (uint32_t i = first[node]; i < first[node + 1]; ++i) {
      if (marked[holders[i]]) continue;
      marked[holders[i]] = true;
      queue.push_back(holders[i]);
    }
  }
  return marked;
}

std::optional<std::array<Id, 3>> module_parts(const Document& document,
                                              Id state) {
  constexpr const char* kParts[] = {"_parameters", "_buffers", "_modules"};
  std::array<Id, 3> parts;
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = document.find(state, kParts[i]);
    if (parts[i] == kNoId || !is_mapping(document, parts[i])) return {};
  }
  return parts;
}

bool is_mapping(const Document& document, Id node) {
  if (document.is(node, Type::kDict)) return true;
  for (const char* name : {"OrderedDict", "Counter", "defaultdict"})
    if (document.is_call(node, "collections", name)) return true;
  return false;
}

namespace {

std::string tuple_text(const Document& document, Id key, size_t position,
                       int depth);

std::string spelled(const Document& document, Id key, size_t position,
                    int depth) {
  switch (document.type(key)) {
    case Type::kString:
    case Type::kBytes:
    case Type::kBigInt:
      return std::string(document.text(key));
    case Type::kInt:
      return std::to_string(document.integer(key));
    case Type::kNone:
      return "None";
    case Type::kBool:
      return document.boolean(key) ? "True" : "False";
    case Type::kFloat:
      return fmt::format("{}", document.real(key));
    case Type::kTuple:
      return tuple_text(document, key, position, depth);
    default:
      return fmt::format("key#{}", position);
  }
}

// "('a', 1)", as torch's DCP flattens such keys. A file may nest them without
// end, and name one of them many times.
std::string tuple_text(const Document& document, Id key, size_t position,
                       int depth) {
  constexpr int kDeepest = 4;
  constexpr size_t kLongest = 1000;
  const std::string other = fmt::format("key#{}", position);
  if (depth == kDeepest) return other;
  std::string text;
  const auto parts = document.items(key);
  for (const Id part : parts) {
    if (!text.empty()) text += ", ";
    const std::string one = spelled(document, part, position, depth + 1);
    const bool quoted = document.type(part) == Type::kString;
    if (one == other || text.size() + one.size() > kLongest ||
        (quoted && one.find_first_of("'\\\n") != one.npos))
      return other;
    text += quoted ? fmt::format("'{}'", one) : one;
  }
  return fmt::format("({}{})", text, parts.size() == 1 ? "," : "");
}

}  // namespace

std::string key_text(const Document& document, Id key, size_t position) {
  return spelled(document, key, position, 0);
}

std::string join_path(const std::string& prefix,
                      const std::vector<std::string>& path) {
  std::string name = prefix;
  for (size_t i = 0; i < path.size(); ++i) {
    const bool glued = name.empty() || (i == 0 && name.back() == '.');
    if (i > 0 || !glued) name += '.';
    name += path[i];
  }
  return name;
}

}  // namespace ckpt::torch
