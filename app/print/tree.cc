// SPDX-License-Identifier: Apache-2.0
// `inspect --tree`: the patterns of names as a tree.
#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "app/print/console.h"
#include "app/print/pattern.h"
#include "app/print/table.h"
#include "app/print/view.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

// A hostile name may have millions of dots; anything deeper stays one name.
constexpr size_t kDeepest = 32;

struct Node {
  std::string label;
  uint64_t bytes = 0;
  uint64_t count = 0;  // tensors below
  const PatternRow* row = nullptr;
  std::vector<size_t> children;  // in order of first appearance
};

class Tree {
 public:
  Tree() { nodes_.emplace_back(); }
  void add(const PatternRow& row);
  std::string text(size_t width) const;

 private:
  size_t child(size_t parent, std::string_view label);
  // Follows nodes that have just one child, joining their labels.
  size_t collapse(size_t at, std::string& label) const;
  void show(Table& table, const Node& node, const std::string& label,
            size_t depth) const;

  std::vector<Node> nodes_;  // [0] is the root
  std::map<std::pair<size_t, std::string>, size_t> index_;
};

size_t Tree::child(size_t parent, std::string_view label) {
  const auto [at, added] =
      index_.try_emplace({parent, std::string(label)}, nodes_.size());
  if (added) {
    nodes_[parent].children.push_back(nodes_.size());
    nodes_.push_back({.label = std::string(label), .children = {}});
  }
  return at->second;
}

void Tree::add(const PatternRow& row) {
  size_t at = 0;
  std::string_view rest = row.name;
  for (size_t depth = 0;; ++depth) {
    nodes_[at].bytes =
        checked_add(nodes_[at].bytes, row.bytes).value_or(UINT64_MAX);
    nodes_[at].count += row.count;
    if (rest.empty()) break;
    const size_t dot = depth < kDeepest ? rest.find('.') : rest.npos;
    at = child(at, rest.substr(0, dot));
    rest = dot == rest.npos ? std::string_view() : rest.substr(dot + 1);
  }
  // Two rows with one name (with different splits, say) keep a line each.
  if (nodes_[at].row != nullptr) {
    nodes_[at].children.push_back(nodes_.size());
    nodes_.push_back({"", row.bytes, row.count, &row, {}});
  } else {
    nodes_[at].row = &row;
  }
}

size_t Tree::collapse(size_t at, std::string& label) const {
  label = nodes_[at].label;
  while (nodes_[at].row == nullptr && nodes_[at].children.size() == 1) {
    at = nodes_[at].children.front();
    label += "." + nodes_[at].label;
  }
  return at;
}

void Tree::show(Table& table, const Node& node, const std::string& label,
                size_t depth) const {
  const Tensor* tensor = node.row != nullptr ? node.row->first : nullptr;
  table.row(
      {std::string(2 * depth, ' ') + text::printable(label),
       node.count > 1 || tensor == nullptr ? "×" + grouped(node.count) : "",
       tensor != nullptr ? std::string(name(tensor->dtype)) : "",
       tensor != nullptr ? to_string(tensor->shape) : "",
       text::iec_size(node.bytes)});
}

std::string Tree::text(size_t width) const {
  Table table(
      {Align::kLeft, Align::kRight, Align::kLeft, Align::kLeft, Align::kRight},
      2);
  struct Item {
    size_t node, depth;
  };
  std::vector<Item> stack;
  const auto push = [&](const Node& node, size_t depth) {
    for (size_t i = node.children.size(); i-- > 0;)
      stack.push_back({node.children[i], depth});
  };
  push(nodes_[0], 0);
  while (!stack.empty()) {
    const Item item = stack.back();
    stack.pop_back();
    std::string label;
    const Node& node = nodes_[collapse(item.node, label)];
    show(table, node, label, item.depth);
    push(node, item.depth + 1);
  }
  return table.text(width);
}

}  // namespace

std::string tree_text(const Catalog& catalog, size_t width) {
  std::string text;
  for (const Kind kind : {Kind::model, Kind::optim, Kind::other}) {
    const std::vector<PatternRow> rows = pattern_rows(catalog, kind);
    if (rows.empty()) continue;
    Tree tree;
    for (const PatternRow& row : rows) tree.add(row);
    text += fmt::format("\n{}\n{}", styled(name(kind), Style::kBold),
                        tree.text(width));
  }
  return text;
}

}  // namespace ckpt::app
