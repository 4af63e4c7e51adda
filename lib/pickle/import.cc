// SPDX-License-Identifier: Apache-2.0
// Deep copies between documents, without recursion: first a node for every
// value reached, then their elements.
#include <algorithm>

#include "lib/pickle/value.h"

namespace ckpt::pickle {

class Importer {
 public:
  Importer(Document& to, const Document& from,
           const std::unordered_map<Id, Id>& substitutes)
      : to_(to), from_(from), copies_(substitutes) {}

  Id run(Id root) {
    visit(root);
    while (!pending_.empty()) {
      const Id id = pending_.back();
      pending_.pop_back();
      visit_parts(id);
    }
    for (const Id id : filled_) fill(id);
    for (const Id id : filled_) fill_pairs(id);
    return copies_.at(root);
  }

 private:
  using Node = Document::Node;

  void visit(Id id) {
    if (id == kNoId || copies_.contains(id)) return;
    copies_.emplace(id, copy(id));
  }

  // The copy of a scalar, or a node without its parts.
  Id copy(Id id) {
    const Node& node = from_.at(id);
    switch (node.type) {
      case Type::kNone:
        return to_.add_none();
      case Type::kBool:
        return to_.add_bool(from_.boolean(id));
      case Type::kInt:
        return to_.add_int(from_.integer(id));
      case Type::kFloat:
        return to_.add_float(from_.real(id));
      case Type::kBigInt:
      case Type::kString:
      case Type::kBytes:
      case Type::kByteArray:
        return to_.add_text(node.type, from_.text(id));
      case Type::kGlobal:
        return to_.add_global(from_.module(id), from_.text(id));
      case Type::kTuple:
        if (node.count == 0) return to_.add_container(Type::kTuple);
        break;
      default:
        break;
    }
    pending_.push_back(id);
    filled_.push_back(id);
    const Id made = to_.add_node(node.type, 0, {.integer = 0});
    to_.nodes_[made].room = node.type == Type::kCall ? node.room : 0;
    to_.nodes_[made].known = node.known;
    return made;
  }

  void visit_parts(Id id) {
    if (from_.type(id) != Type::kCall) {
      for (const Id item : from_.items(id)) visit(item);
      return;
    }
    const Call call = from_.call(id);
    for (const Id part : {call.callable, call.args, call.kwargs, call.state})
      visit(part);
    for (const Id item : call.items) visit(item);
    for (const Id item : call.pairs) visit(item);
  }

  Id copied(Id id) const { return id == kNoId ? kNoId : copies_.at(id); }

  std::vector<Id> copied(std::span<const Id> ids) const {
    std::vector<Id> result(ids.size());
    std::ranges::transform(ids, result.begin(),
                           [this](Id id) { return copied(id); });
    return result;
  }

  void fill(Id id) {
    const Id made = copies_.at(id);
    if (from_.type(id) == Type::kCall)
      fill_call(made, from_.call(id));
    else if (from_.type(id) != Type::kDict)
      to_.append_items(made, copied(from_.items(id)));
  }

  void fill_call(Id made, const Call& call) {
    Node& node = to_.nodes_[made];
    node.count = copied(call.callable);
    node.payload.call = {copied(call.args), copied(call.state)};
    if (call.kwargs != kNoId) {
      node.more = true;
      to_.extras_[made].kwargs = copied(call.kwargs);
    }
    if (!call.items.empty())
      to_.append_items(to_.items_of(made), copied(call.items));
  }

  // Called once the keys are complete: half a tuple may look like another.
  void fill_pairs(Id id) {
    const Id made = copies_.at(id);
    if (from_.type(id) == Type::kDict)
      to_.set_pairs(made, copied(from_.items(id)));
    else if (from_.type(id) == Type::kCall && !from_.call(id).pairs.empty())
      to_.set_pairs(to_.pairs_of(made), copied(from_.call(id).pairs));
  }

  Document& to_;
  const Document& from_;
  std::unordered_map<Id, Id> copies_;
  std::vector<Id> pending_;  // parts not yet visited
  std::vector<Id> filled_;   // in the order they were found
};

Id Document::import(const Document& other, Id id,
                    const std::unordered_map<Id, Id>& substitutes) {
  return Importer(*this, other, substitutes).run(id);
}

}  // namespace ckpt::pickle
