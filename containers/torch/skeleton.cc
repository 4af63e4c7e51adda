// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/skeleton.h"

#include <map>
#include <set>
#include <unordered_set>

#include "ckpt/error.h"
#include "containers/torch/copier.h"
#include "containers/torch/walk.h"
#include "lib/text/format.h"

namespace ckpt::torch {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;

// A visited value and its fate.
struct Place {
  Visit visit;
  size_t parent = SIZE_MAX;  // index of the place that holds it
  size_t entry = SIZE_MAX;   // the nearest place that a dict or list holds
  bool is_tensor = false;
  bool dropped = false;
  bool open = false;       // only some of what it holds may stay
  size_t slot = SIZE_MAX;  // of a tensor that stays
  std::string key;         // its new key, if it changes
  uint32_t children = 0;
  uint32_t left_out = 0;  // of them
};

class Rewriter {
 public:
  Rewriter(const Catalog& source, std::span<const TensorSlot> slots)
      : source_(source),
        skeleton_(*source.skeleton),
        document_(*source.skeleton->document),
        slots_(slots) {
    for (size_t i = 0; i < source.tensors.size(); ++i)
      by_name_.emplace(source.tensors[i].name, i);
    for (const auto& [node, name] : skeleton_.tensors) nodes_.insert(node);
    for (const Object& object : source.objects) {
      if (object.document != skeleton_.document) continue;
      objects_.insert(object.node);
      object_names_.emplace(object.name, object.node);
    }
    leads_ = mark_holders(document_, {nodes_.begin(), nodes_.end()});
    placed_.resize(source.tensors.size(), false);
  }

  std::optional<Rewritten> rewrite() {
    visit();
    // Without any tensor it is a file of objects.
    if (!any_tensor_ && !source_.tensors.empty()) return std::nullopt;
    break_entries();
    prune();
    const bool rest = std::ranges::find(placed_, false) != placed_.end();
    if (places_.empty() || places_[0].dropped) return std::nullopt;
    if (rest && !is_mapping(document_, skeleton_.root)) return std::nullopt;
    return copy();
  }

 private:
  // Names follow the order of the walk, as they did when it was read.
  void visit() {
    std::vector<size_t> open;  // places on the way to the visited one
    visit_tree(document_, skeleton_.root, source_.path,
               [&](const Visit& visit, bool holds) {
                 open.resize(std::min(open.size(), visit.path.size()));
                 const Next next = add(visit, holds, open);
                 open.push_back(places_.size() - 1);
                 return next;
               });
  }
  Next add(const Visit& visit, bool holds, const std::vector<size_t>& open) {
    Place& place = places_.emplace_back();
    place.visit = visit;
    place.parent = open.empty() ? SIZE_MAX : open.back();
    const size_t index = places_.size() - 1;
    const bool in_object = visit.site == Site::kInside || visit.attribute;
    place.entry = in_object && place.parent != SIZE_MAX
                      ? places_[place.parent].entry
                      : index;
    if (place.parent != SIZE_MAX) ++places_[place.parent].children;
    if (nodes_.contains(visit.node)) {
      visit.attribute ? add_alias(place) : add_tensor(place);
      return Next::kAttributes;
    }
    if (document_.is(visit.node, Type::kPersistent)) return Next::kSkip;
    // An object; the tensors inside are its own business.
    if (holds && objects_.contains(visit.node) && !leads_[visit.node])
      return Next::kSkip;
    if (holds && (leads_[visit.node] || in_object)) return Next::kDescend;
    // The root dict is looked into even if it holds no tensor.
    if (visit.site == Site::kRoot && is_mapping(document_, visit.node))
      return Next::kDescend;
    if (in_object) return Next::kSkip;
    const std::string name = join_path({}, visit.path);
    const bool below_open =
        place.parent != SIZE_MAX && places_[place.parent].open;
    const auto object = object_names_.find(name);
    const bool kept = below_open ? object != object_names_.end() &&
                                       object->second == visit.node
                                 : objects_.contains(visit.node);
    place.open = !kept && has_objects_below(name);
    place.dropped = !kept && !place.open;
    return place.open ? Next::kOpen : Next::kSkip;
  }

  // True for a dict or list whose objects are listed separately.
  bool has_objects_below(const std::string& name) const {
    const auto next = object_names_.lower_bound(name + '.');
    return next != object_names_.end() && next->first.starts_with(name + '.');
  }

  void add_tensor(Place& place) {
    place.is_tensor = true;
    const std::string* name = next_name(place.visit.node);
    const auto found = name ? by_name_.find(*name) : by_name_.end();
    place.dropped = true;
    if (found == by_name_.end()) return;
    if (!fits(place, *name)) return;
    place.dropped = false;
    place.slot = found->second;
    placed_[place.slot] = true;
    any_tensor_ = true;
  }
  // A module's attribute that is one of its parameters, too.
  void add_alias(Place& place) {
    if (aliases_.empty())
      for (const auto& [node, name] : skeleton_.tensors)
        aliases_.emplace(node, &name);
    place.is_tensor = true;
    const auto found = by_name_.find(*aliases_.at(place.visit.node));
    place.dropped = found == by_name_.end();
    if (!place.dropped) place.slot = found->second;
  }
  const std::string* next_name(Id node) {
    const auto& tensors = skeleton_.tensors;
    const size_t at = next_++;
    if (at < tensors.size() && tensors[at].first == node)
      return &tensors[at].second;
    for (const auto& [other, name] : tensors)
      if (other == node) return &name;
    return nullptr;
  }
  // True if another key gives the tensor this name where it is.
  bool fits(Place& place, const std::string& name) const {
    const auto& path = place.visit.path;
    if (path.empty()) return name == "tensor";
    const std::string old = join_path({}, path);
    // "x#2" stands for a second "x".
    if (name == old || (name.starts_with(old) && name[old.size()] == '#'))
      return true;
    if (place.visit.site != Site::kPair) return false;
    std::vector<std::string> above(path.begin(), path.end() - 1);
    const std::string prefix = above.empty() ? "" : join_path({}, above) + '.';
    if (!name.starts_with(prefix) || name.size() == prefix.size()) return false;
    place.key = name.substr(prefix.size());
    return true;
  }

  // Removes objects that lost a part; their other tensors move to the top.
  void break_entries() {
    std::set<size_t> broken;
    for (const Place& place : places_)
      if (place.is_tensor && place.dropped && place.entry < places_.size() &&
          places_[place.entry].visit.node != place.visit.node)
        broken.insert(place.entry);
    if (broken.empty()) return;
    for (Place& place : places_) {
      if (!place.is_tensor || place.dropped || !broken.contains(place.entry))
        continue;
      place.dropped = true;
      placed_[place.slot] = false;
      notes_.push_back(fmt::format(
          "{} is written as a plain tensor: the object that it was a part of "
          "lost another part",
          text::printable(source_.tensors[place.slot].name)));
    }
    for (const size_t entry : broken) places_[entry].dropped = true;
  }

  // Removes dicts and lists that lost everything. Goes backwards, because
  // children come after their holders.
  void prune() {
    for (size_t i = places_.size(); i-- > 0;) {
      Place& place = places_[i];
      const bool emptied = place.children > 0 && !place.is_tensor &&
                           place.left_out == place.children;
      if (emptied && i > 0) place.dropped = true;
      if (place.dropped && place.parent != SIZE_MAX)
        ++places_[place.parent].left_out;
    }
  }

  std::optional<Rewritten> copy() {
    Copier copier(document_, slots_);
    for (const auto& [node, content] : skeleton_.storages)
      copier.set_storage(node, content);
    for (const Place& place : places_) {
      const Visit& visit = place.visit;
      if (place.dropped && visit.site == Site::kPair)
        copier.drop(visit.holder, visit.index);
      else if (place.dropped && visit.site == Site::kElement)
        copier.blank(visit.holder, visit.index);
      else if (place.is_tensor && !place.dropped)
        copier.set_tensor(visit.node, place.slot);
      if (!place.dropped && !place.key.empty())
        copier.rename(visit.holder, visit.index, place.key);
    }
    Rewritten result;
    result.root = copier.copy(skeleton_.root);
    for (size_t i = 0; i < placed_.size(); ++i)
      if (!placed_[i]) copier.add(result.root, source_.tensors[i].name, i);
    result.document = std::move(copier.document());
    result.notes = std::move(notes_);
    return result;
  }

  const Catalog& source_;
  const Skeleton& skeleton_;
  const Document& document_;
  std::span<const TensorSlot> slots_;
  std::unordered_map<std::string_view, size_t> by_name_;
  std::unordered_set<Id> nodes_;                        // of tensors
  std::unordered_map<Id, const std::string*> aliases_;  // if any is asked for
  std::unordered_set<Id> objects_;  // that the catalog still has
  std::map<std::string, Id> object_names_;
  std::vector<bool> leads_;  // by node: to a tensor
  std::vector<Place> places_;
  std::vector<bool> placed_;  // tensors of the source
  size_t next_ = 0;
  bool any_tensor_ = false;
  std::vector<std::string> notes_;
};

}  // namespace

std::optional<Rewritten> rewrite_skeleton(const Catalog& source,
                                          std::span<const TensorSlot> slots) {
  if (!source.skeleton || !source.skeleton->document) return std::nullopt;
  return Rewriter(source, slots).rewrite();
}

}  // namespace ckpt::torch
