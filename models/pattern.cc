// SPDX-License-Identifier: Apache-2.0
#include "models/pattern.h"

#include <algorithm>
#include <bitset>
#include <map>

#include "ckpt/error.h"

namespace ckpt::families {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kMaxStates = 65'000;
constexpr int kMaxDepth = 32;

using Bytes = std::bitset<256>;

// A Thompson automaton: a state takes one byte of `on` to `to`, or splits
// without taking one.
struct Node {
  Bytes on;
  uint32_t to = kNone;
  uint32_t split = kNone;  // a second way; both are then free
  bool free = false;
};

struct Part {
  uint32_t first;
  uint32_t last;  // a free node whose `to` is open
};

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  uint32_t parse() {
    const Part whole = alternatives(0);
    if (at_ != text_.size()) fail("unexpected )");
    accept_ = whole.last;
    return whole.first;
  }

  std::vector<Node> nodes;
  uint32_t accept() const { return accept_; }

 private:
  [[noreturn]] void fail(const char* why) const {
    throw usage_error({}, "pattern '{}': {} at character {}", text_, why, at_);
  }
  bool more() const { return at_ < text_.size(); }

  uint32_t add_free(uint32_t to = kNone, uint32_t split = kNone) {
    nodes.push_back({.on = {}, .to = to, .split = split, .free = true});
    return static_cast<uint32_t>(nodes.size() - 1);
  }

  Part alternatives(int depth) {
    if (depth > kMaxDepth) fail("nested too deep");
    Part all = sequence(depth);
    while (more() && text_[at_] == '|') {
      ++at_;
      const Part other = sequence(depth);
      const uint32_t join = add_free();
      nodes[all.last].to = join;
      nodes[other.last].to = join;
      all = {add_free(all.first, other.first), join};
    }
    return all;
  }

  Part sequence(int depth) {
    Part all{add_free(), 0};
    all.last = all.first;
    while (more() && text_[at_] != '|' && text_[at_] != ')') {
      const Part next = repeated(depth);
      nodes[all.last].to = next.first;
      all.last = next.last;
    }
    return all;
  }

  Part repeated(int depth) {
    const Part one = atom(depth);
    if (!more()) return one;
    const char sign = text_[at_];
    if (sign != '?' && sign != '*' && sign != '+') return one;
    ++at_;
    const uint32_t end = add_free();
    const uint32_t choice = add_free(one.first, end);
    nodes[one.last].to = sign == '?' ? end : choice;
    return {sign == '+' ? one.first : choice, end};
  }

  Part atom(int depth) {
    const char c = text_[at_];
    if (c == '(') {
      ++at_;
      const Part inner = alternatives(depth + 1);
      if (!more() || text_[at_] != ')') fail("unclosed (");
      ++at_;
      return inner;
    }
    return take(bytes());
  }

  Part take(const Bytes& on) {
    const uint32_t end = add_free();
    nodes.push_back({.on = on, .to = end, .split = kNone, .free = false});
    return {static_cast<uint32_t>(nodes.size() - 1), end};
  }

  Bytes bytes() {
    const char c = text_[at_++];
    if (c == '.') return Bytes().set();
    if (c == '[') return set_of_bytes();
    if (c == '\\') {
      if (!more() || std::isalnum(static_cast<unsigned char>(text_[at_])))
        fail("unknown escape");
      return Bytes().set(static_cast<unsigned char>(text_[at_++]));
    }
    if (std::string_view("?*+^$]{}").find(c) != std::string_view::npos) {
      --at_;
      fail("unsupported syntax");
    }
    return Bytes().set(static_cast<unsigned char>(c));
  }

  Bytes set_of_bytes() {
    Bytes on;
    while (more() && text_[at_] != ']') {
      const auto low = static_cast<unsigned char>(text_[at_++]);
      auto high = low;
      if (at_ + 1 < text_.size() && text_[at_] == '-' &&
          text_[at_ + 1] != ']') {
        high = static_cast<unsigned char>(text_[at_ + 1]);
        at_ += 2;
      }
      if (low == '^' || low == '\\' || high < low) fail("unsupported set");
      for (unsigned b = low; b <= high; ++b) on.set(b);
    }
    if (!more()) fail("unclosed [");
    ++at_;
    return on;
  }

  const std::string& text_;
  size_t at_ = 0;
  uint32_t accept_ = kNone;
};

using States = std::vector<uint32_t>;  // sorted

// Adds the states reachable without taking a byte.
States closure(const std::vector<Node>& nodes, States from) {
  std::vector<bool> seen(nodes.size());
  States all;
  while (!from.empty()) {
    const uint32_t at = from.back();
    from.pop_back();
    if (at == kNone || seen[at]) continue;
    seen[at] = true;
    all.push_back(at);
    if (!nodes[at].free) continue;
    from.push_back(nodes[at].to);
    from.push_back(nodes[at].split);
  }
  std::ranges::sort(all);
  return all;
}

// Bytes that no node distinguishes share a column of the table.
std::vector<unsigned char> columns(const std::vector<Node>& nodes,
                                   std::array<uint8_t, 256>& letter) {
  std::map<std::vector<bool>, uint8_t> known;
  std::vector<unsigned char> sample;
  for (unsigned b = 0; b < 256; ++b) {
    std::vector<bool> row;
    for (const Node& node : nodes) {
      if (!node.free) row.push_back(node.on[b]);
    }
    const auto [at, is_new] =
        known.emplace(std::move(row), static_cast<uint8_t>(sample.size()));
    if (is_new) sample.push_back(static_cast<unsigned char>(b));
    letter[b] = at->second;
  }
  return sample;
}

}  // namespace

Pattern::Pattern(const std::string& text) {
  Parser parser(text);
  const uint32_t start = parser.parse();
  const std::vector<Node>& nodes = parser.nodes;
  const std::vector<unsigned char> sample = columns(nodes, letter_);
  letters_ = sample.size();

  // State 0 is the dead one.
  std::map<States, uint16_t> known{{States{}, 0}};
  std::vector<States> todo{States{}, closure(nodes, {start})};
  known.emplace(todo[1], 1);
  for (size_t at = 0; at < todo.size(); ++at) {
    accepts_.push_back(std::ranges::binary_search(todo[at], parser.accept()));
    for (const unsigned char byte : sample) {
      States moved;
      for (const uint32_t s : todo[at]) {
        if (!nodes[s].free && nodes[s].on[byte]) moved.push_back(nodes[s].to);
      }
      moved = closure(nodes, std::move(moved));
      const auto [entry, is_new] =
          known.emplace(moved, static_cast<uint16_t>(todo.size()));
      if (is_new) todo.push_back(std::move(moved));
      if (todo.size() > kMaxStates)
        throw usage_error({}, "pattern '{}' needs over {} states", text,
                          kMaxStates);
      next_.push_back(entry->second);
    }
  }
}

bool Pattern::matches(std::string_view key) const {
  size_t state = 1;
  for (const char c : key) {
    state = next_[state * letters_ + letter_[static_cast<unsigned char>(c)]];
    if (state == 0) return false;
  }
  return accepts_[state];
}

}  // namespace ckpt::families
