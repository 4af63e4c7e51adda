// SPDX-License-Identifier: Apache-2.0
#include "formats/deepspeed/rules.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <regex>
#include <utility>

#include "ckpt/error.h"
#include "containers/torch/tensors.h"
#include "lib/text/format.h"

namespace ckpt::deepspeed {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using text::printable;

// Patterns come from the file, so their cost is bounded.
constexpr size_t kMaxPattern = 1024;
constexpr size_t kMaxPatterns = 4096;
constexpr size_t kMaxName = 1024;

// The backtracking matcher needs exponential time for some patterns.
std::regex compile(std::string_view pattern, const std::string& path) {
  auto flags = std::regex::ECMAScript | std::regex::optimize;
#ifdef __GLIBCXX__
  flags |= std::regex_constants::__polynomial;
#endif
  if (pattern.size() > kMaxPattern)
    throw input_error({path, {}},
                      "universal_checkpoint_info: a pattern of {} bytes",
                      pattern.size());
  try {
    return std::regex(pattern.begin(), pattern.end(), flags);
  } catch (const std::regex_error&) {
    throw input_error({path, {}},
                      "universal_checkpoint_info: the pattern {} is not "
                      "understood",
                      printable(pattern));
  }
}

// Python's re.match: anchored at the name's start, not at its end.
bool matches(const std::regex& pattern, const std::string& name) {
  return name.size() <= kMaxName &&
         std::regex_search(name, pattern,
                           std::regex_constants::match_continuous);
}

struct Pattern {
  std::string text;
  std::regex regex;
};

const Pattern* first_match(const std::vector<Pattern>& patterns,
                           const std::string& name) {
  for (const Pattern& pattern : patterns)
    if (matches(pattern.regex, name)) return &pattern;
  return nullptr;
}

struct SubParams {
  std::vector<Pattern> patterns;
  uint32_t dim = 0;
  std::vector<uint64_t> sizes;  // of the whole's parts; or:
  uint64_t count = 0;           // this many equal ones
};

// The parts of a dimension on all ranks: widths[part][rank].
using Widths = std::vector<std::vector<uint64_t>>;

// A key of a dict, or a member of a dataclass.
Id member(const Document& document, Id node, std::string_view key) {
  if (document.is(node, Type::kCall)) {
    const Id state = document.call(node).state;
    if (state != pickle::kNoId) return document.find(state, key);
  }
  return document.find(node, key);
}

uint64_t checked(std::optional<int64_t> value, const char* what,
                 const std::string& path) {
  constexpr int64_t kMost = int64_t{1} << 40;
  if (!value || *value < 0 || *value > kMost)
    throw input_error({path, {}},
                      "universal_checkpoint_info: {} is not a sensible number",
                      what);
  return static_cast<uint64_t>(*value);
}

std::vector<Pattern> read_patterns(const Document& document, Id list,
                                   const std::string& path) {
  std::vector<Pattern> out;
  if (list == pickle::kNoId || document.is(list, Type::kNone)) return out;
  if (!document.is(list, Type::kList) && !document.is(list, Type::kTuple))
    throw input_error(
        {path, {}}, "universal_checkpoint_info: patterns that are not a list");
  const auto items = document.items(list);
  if (items.size() > kMaxPatterns)
    throw input_error({path, {}}, "universal_checkpoint_info: {} patterns",
                      items.size());
  for (const Id item : items) {
    if (!document.is(item, Type::kString))
      throw input_error({path, {}},
                        "universal_checkpoint_info: a pattern is not text");
    const std::string_view text = document.text(item);
    out.push_back({std::string(text), compile(text, path)});
  }
  return out;
}

SubParams read_sub_params(const Document& document, Id node,
                          const std::string& path) {
  SubParams out;
  out.patterns =
      read_patterns(document, member(document, node, "patterns"), path);
  const Id shape = member(document, node, "shape");
  const uint64_t dim =
      checked(document.as_int(member(document, node, "partition_dim")),
              "partition_dim", path);
  const bool list =
      document.is(shape, Type::kTuple) || document.is(shape, Type::kList);
  if (!list || dim >= document.items(shape).size())
    throw input_error({path, {}},
                      "universal_checkpoint_info: parameter_with_sub_params "
                      "has no shape with a dimension {}",
                      dim);
  out.dim = static_cast<uint32_t>(dim);
  const Id parts = document.items(shape)[dim];
  if (const auto count = document.as_int(parts)) {
    out.count = checked(count, "a number of sub-parameters", path);
    if (out.count > kMaxPatterns)
      throw input_error({path, {}},
                        "universal_checkpoint_info: {} sub-parameters",
                        out.count);
    return out;
  }
  const auto sizes = torch::as_ints(document, parts);
  if (!sizes || sizes->empty() || sizes->size() > kMaxPatterns)
    throw input_error({path, {}},
                      "universal_checkpoint_info: sizes of sub-parameters "
                      "are missing");
  for (const int64_t size : *sizes)
    out.sizes.push_back(checked(size, "the size of a sub-parameter", path));
  return out;
}

std::map<std::string, Widths> read_widths(const Document& document, Id dict,
                                          const std::string& path) {
  std::map<std::string, Widths> out;
  const auto pairs = document.as_pairs(dict);
  if (!pairs) return out;
  for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
    const Id value = (*pairs)[i + 1];
    if (!document.is((*pairs)[i], Type::kString) ||
        !(document.is(value, Type::kList) || document.is(value, Type::kTuple)))
      throw input_error({path, {}},
                        "universal_checkpoint_info: sub_param_shard_widths "
                        "is malformed");
    Widths& widths = out[std::string(document.text((*pairs)[i]))];
    for (const Id row : document.items(value)) {
      const auto ints = torch::as_ints(document, row);
      auto& list = widths.emplace_back();
      if (!ints)
        throw input_error({path, {}},
                          "universal_checkpoint_info: "
                          "sub_param_shard_widths is malformed");
      for (const int64_t n : *ints)
        list.push_back(checked(n, "a shard's width", path));
    }
  }
  return out;
}

std::vector<std::vector<Segment>> segments_of(const Widths& widths,
                                              size_t ranks) {
  std::vector<std::vector<Segment>> out(ranks);
  std::vector<uint64_t> local(ranks, 0);
  uint64_t global = 0;
  for (const auto& part : widths)
    for (size_t rank = 0; rank < ranks; ++rank) {
      const uint64_t length = part[rank];
      if (length > 0) out[rank].push_back({local[rank], global, length});
      local[rank] += length;
      global += length;
    }
  return out;
}

// Rows from `rows` on pad the vocabulary.
void clip(std::vector<std::vector<Segment>>& ranks, uint64_t rows) {
  for (auto& segments : ranks) {
    for (Segment& s : segments)
      s.length = std::min(s.length, rows - std::min(rows, s.global));
    std::erase_if(segments, [](const Segment& s) { return s.length == 0; });
  }
}

}  // namespace

struct Rules::Data {
  std::string path;
  bool any = false;
  double version = 0;
  std::vector<Pattern> replicated, average, row, two, vocabulary;
  std::vector<SubParams> subs;
  std::map<std::string, Widths> widths;
  std::optional<uint64_t> rows;
  families::Rules user;
  OfModule of_module;

  // As --shard-dims or, where the file has no patterns, the module says.
  Said said_rule(const std::string& name, const Shape& local) const {
    const TpRule rule = user.tp(name);
    if (rule.state != TpRule::State::kUnknown || any || !of_module)
      return {.rule = rule};
    return of_module(name, local);
  }
  bool is_said(const std::string& name) const {
    return user.tp(name).state != TpRule::State::kUnknown;
  }
  const SubParams* find_sub(const std::string& name,
                            const Pattern** which) const {
    for (const SubParams& sub : subs)
      if ((*which = first_match(sub.patterns, name))) return &sub;
    return nullptr;
  }
  Widths sub_widths(const std::string& name, const SubParams& sub,
                    const Pattern& pattern,
                    const std::vector<Shape>& locals) const;

  Widths widths_of(const std::string& name, const std::vector<Shape>& locals,
                   Joined& out) const;
  void check_same(const std::string& name,
                  const std::vector<Shape>& locals) const;
  Widths rank_parts(const std::string& name, const std::vector<Shape>& locals,
                    const std::vector<uint64_t>& parts, Joined& out) const;
  Widths halves(const std::string& name,
                const std::vector<Shape>& locals) const;
  Widths said(const std::string& name, const std::vector<Shape>& locals,
              Joined& out) const;
  Widths whole_slices(const std::string& name, const std::vector<Shape>& locals,
                      uint32_t dim) const;
  // Throws unless the slices differ on no other dimension.
  void check_others(const std::string& name, const std::vector<Shape>& locals,
                    uint32_t dim) const;
  void cut_padding(const std::string& name, size_t ranks, Joined& out) const;
};

Rules::Rules() : data_(std::make_unique<Data>()) {}
Rules::~Rules() = default;
Rules::Rules(Rules&&) noexcept = default;
Rules& Rules::operator=(Rules&&) noexcept = default;

bool Rules::names(const std::string& name) const {
  if (data_->is_said(name)) return true;
  const Pattern* which = nullptr;
  for (const auto* list : {&data_->replicated, &data_->average, &data_->row,
                           &data_->two, &data_->vocabulary})
    if (first_match(*list, name)) return true;
  return data_->find_sub(name, &which) != nullptr;
}

bool Rules::is_vocabulary(const std::string& name) const {
  return first_match(data_->vocabulary, name) != nullptr;
}

bool Rules::any() const { return data_->any; }

bool Rules::is_of_module(const std::string& name, const Shape& local) const {
  return data_->said_rule(name, local).rule.state != TpRule::State::kUnknown;
}

void Rules::set_modules(OfModule rule) { data_->of_module = std::move(rule); }

void Rules::set_user(families::Rules rules) { data_->user = std::move(rules); }

Rules Rules::read(const Document& document, Id info, const std::string& path) {
  Rules rules;
  Data& data = *rules.data_;
  data.path = path;
  if (!document.as_pairs(info)) return rules;
  data.any = true;
  const auto list = [&](std::string_view key) {
    return read_patterns(document, document.find(info, key), path);
  };
  data.replicated = list("tp_replicated_parameter_patterns");
  data.average = list("parameter_to_average_patterns");
  data.row = list("parameter_with_row_parallelism_patterns");
  data.two = list("parameter_with_2_sub_params_cat_dim_0");
  data.vocabulary = list("vocabulary_parameter_patterns");
  const Id version = document.find(info, "universal_checkpoint_version");
  if (document.is(version, Type::kFloat)) data.version = document.real(version);
  const Id subs = document.find(info, "parameter_with_sub_params");
  if (document.is(subs, Type::kList) || document.is(subs, Type::kTuple))
    for (const Id node : document.items(subs))
      data.subs.push_back(read_sub_params(document, node, path));
  data.widths = read_widths(
      document, document.find(info, "sub_param_shard_widths"), path);
  // affine_map restates the same geometry in another language; by itself it is
  // not understood.
  const Id affine = document.find(document.find(info, "affine_map"), "params");
  const auto maps = document.as_pairs(affine);
  if (maps && !maps->empty())
    throw unfaithful_error({path, {}},
                           "universal_checkpoint_info has an affine_map, "
                           "which ckpt does not read")
        .with_hint(
            "convert the checkpoint with DeepSpeed's ds_to_universal first, "
            "and open the result");
  if (const Id rows = document.find(info, "original_vocab_size");
      rows != pickle::kNoId && !document.is(rows, Type::kNone))
    data.rows = checked(document.as_int(rows), "original_vocab_size", path);
  return rules;
}

Widths Rules::Data::sub_widths(const std::string& name, const SubParams& sub,
                               const Pattern& pattern,
                               const std::vector<Shape>& locals) const {
  const size_t ranks = locals.size();
  std::vector<uint64_t> sizes = sub.sizes;
  uint64_t whole = 0;
  for (const Shape& shape : locals) {
    if (sub.dim >= shape.size())
      throw input_error({path, printable(name)},
                        "has no dimension {} to join its parts on", sub.dim);
    whole += shape[sub.dim];
  }
  if (sizes.empty() && (sub.count == 0 || whole % sub.count != 0))
    throw input_error({path, printable(name)},
                      "{} rows are not {} equal sub-parameters", whole,
                      sub.count);
  if (sizes.empty()) sizes.assign(sub.count, whole / sub.count);
  Widths out;
  if (const auto it = widths.find(pattern.text); it != widths.end()) {
    out = it->second;
  } else {
    for (const uint64_t size : sizes) {
      if (size % ranks != 0)
        throw unfaithful_error({path, printable(name)},
                               "a sub-parameter of {} is not divisible by {} "
                               "tensor-parallel ranks, and no "
                               "sub_param_shard_widths say how it is cut",
                               size, ranks);
      out.emplace_back(ranks, size / ranks);
    }
  }
  std::vector<uint64_t> sums(ranks, 0);
  for (const auto& part : out) {
    if (part.size() != ranks)
      throw input_error({path, printable(name)},
                        "shard widths of {} ranks, there are {}", part.size(),
                        ranks);
    for (size_t r = 0; r < ranks; ++r) sums[r] += part[r];
  }
  for (size_t r = 0; r < ranks; ++r)
    if (sums[r] != locals[r][sub.dim])
      throw input_error({path, printable(name)},
                        "rank {} holds {} on dimension {}, its sub-parameters "
                        "are {}",
                        r, locals[r][sub.dim], sub.dim, sums[r]);
  return out;
}

// How wide the parts of a tensor are on each rank, by the first rule that it
// matches; empty if every rank holds the whole. Sets the rule and the dimension
// of `out`.
Widths Rules::Data::widths_of(const std::string& name,
                              const std::vector<Shape>& locals,
                              Joined& out) const {
  if (locals.size() > 1 &&
      said_rule(name, locals[0]).rule.state != TpRule::State::kUnknown)
    return said(name, locals, out);
  const Pattern* pattern = nullptr;
  const bool is_average = first_match(average, name) != nullptr;
  if (is_average || first_match(replicated, name)) {
    if (is_average && locals.size() > 1) out.merge = Merge::kMean;
    out.tp = TpRule::replicated();
    check_same(name, locals);
    return {};
  }
  if (first_match(two, name)) {
    out.tp = TpRule::split(0, 2);
    return halves(name, locals);
  }
  if (const SubParams* sub = find_sub(name, &pattern)) {
    const Widths parts = sub_widths(name, *sub, *pattern, locals);
    out.dim = sub->dim;
    const bool equal = std::ranges::all_of(
        parts, [&](const auto& part) { return part == parts[0]; });
    if (equal)
      out.tp = TpRule::split(out.dim, static_cast<uint32_t>(parts.size()));
    return parts;
  }
  out.dim = first_match(row, name) ? 1 : 0;
  if (any) out.tp = TpRule::split(out.dim);
  return whole_slices(name, locals, out.dim);
}

void Rules::Data::check_same(const std::string& name,
                             const std::vector<Shape>& locals) const {
  for (const Shape& shape : locals)
    if (shape != locals[0])
      throw input_error({path, printable(name)},
                        "is of one shape on all tensor-parallel ranks by its "
                        "rule, but {} and {} are its shapes",
                        to_string(locals[0]), to_string(shape));
}

// As --shard-dims says.
Widths Rules::Data::said(const std::string& name,
                         const std::vector<Shape>& locals, Joined& out) const {
  const Said how = said_rule(name, locals[0]);
  out.tp = how.rule;
  out.merge = how.merge;
  // Modules cut equal slices; a user's may be of any size.
  if (!is_said(name)) check_same(name, locals);
  if (out.tp.state == TpRule::State::kReplicated) {
    check_same(name, locals);
    return {};
  }
  out.dim = out.tp.dim;
  if (!how.parts.empty()) return rank_parts(name, locals, how.parts, out);
  std::vector<uint64_t> group;
  for (const Shape& shape : locals) {
    if (out.dim >= shape.size() || shape[out.dim] % out.tp.groups != 0)
      throw usage_error({path, printable(name)},
                        "{}: {} on each rank can't be joined on dimension {} "
                        "in {} groups",
                        user.source(), to_string(shape), out.dim,
                        out.tp.groups);
    group.push_back(shape[out.dim] / out.tp.groups);
  }
  return Widths(out.tp.groups, group);
}

// Parts of unequal sizes, which no rule of a catalog can say.
Widths Rules::Data::rank_parts(const std::string& name,
                               const std::vector<Shape>& locals,
                               const std::vector<uint64_t>& parts,
                               Joined& out) const {
  out.tp = {};
  const uint64_t sum = std::accumulate(parts.begin(), parts.end(), uint64_t{0});
  if (locals[0].empty() || locals[0][0] != sum)
    throw input_error({path, printable(name)},
                      "has {} rows on each rank, its parts have {}",
                      locals[0].empty() ? 0 : locals[0][0], sum);
  Widths each;
  for (const uint64_t part : parts) each.emplace_back(locals.size(), part);
  return each;
}

Widths Rules::Data::halves(const std::string& name,
                           const std::vector<Shape>& locals) const {
  std::vector<uint64_t> half;
  for (const Shape& shape : locals) {
    if (shape.empty() || shape[0] % 2 != 0)
      throw input_error({path, printable(name)},
                        "{} is not two halves on dimension 0",
                        to_string(shape));
    half.push_back(shape[0] / 2);
  }
  return {half, half};
}

// Empty for a scalar from the only rank.
Widths Rules::Data::whole_slices(const std::string& name,
                                 const std::vector<Shape>& locals,
                                 uint32_t dim) const {
  std::vector<uint64_t> list;
  for (const Shape& shape : locals) {
    if (dim < shape.size()) {
      list.push_back(shape[dim]);
      continue;
    }
    if (locals.size() == 1) return {};
    throw input_error({path, printable(name)},
                      "{} can't be joined on dimension {}", to_string(shape),
                      dim)
        .with_hint(
            "no pattern of universal_checkpoint_info says that it "
            "is replicated");
  }
  return {list};
}

void Rules::Data::check_others(const std::string& name,
                               const std::vector<Shape>& locals,
                               uint32_t dim) const {
  const Shape& first = locals[0];
  for (const Shape& shape : locals)
    for (size_t d = 0; d < first.size(); ++d)
      if (shape.size() != first.size() || (d != dim && shape[d] != first[d]))
        throw input_error({path, printable(name)},
                          "{} and {} can't be joined on dimension {}",
                          to_string(first), to_string(shape), dim);
}

// Cuts the rows that pad the vocabulary off.
void Rules::Data::cut_padding(const std::string& name, size_t ranks,
                              Joined& out) const {
  if (!first_match(vocabulary, name) || !rows || out.shape.empty() ||
      out.shape[0] == *rows)
    return;
  if (out.shape[0] < *rows)
    throw input_error({path, printable(name)},
                      "has {} rows, original_vocab_size is {}", out.shape[0],
                      *rows);
  if (out.dim != 0 && !out.replicated)
    throw unfaithful_error({path, printable(name)},
                           "a vocabulary that is split on dimension {}",
                           out.dim);
  if (out.replicated) {
    out.ranks.assign(ranks, {{0, 0, out.shape[0]}});
    out.dim = 0;
  }
  clip(out.ranks, *rows);
  out.shape[0] = *rows;
}

Joined Rules::join(const std::string& name,
                   const std::vector<Shape>& locals) const {
  const Data& data = *data_;
  const size_t ranks = locals.size();
  if (ranks > 1 && !data.any &&
      data.said_rule(name, locals[0]).rule.state == TpRule::State::kUnknown)
    throw unfaithful_error({data.path, printable(name)},
                           "{} tensor-parallel ranks, and no "
                           "universal_checkpoint_info says how their slices "
                           "are joined",
                           ranks)
        .with_hint(
            "--shard-dims RULES.json says it for each tensor: {\"" + name +
            "\": 0} if dimension 0 is cut, null instead of 0 if each rank "
            "holds the whole");
  Joined out;
  out.shape = locals[0];
  const Widths widths = data.widths_of(name, locals, out);
  out.replicated = widths.empty();
  if (!out.replicated) {
    data.check_others(name, locals, out.dim);
    uint64_t whole = 0;
    for (const auto& part : widths)
      whole += std::accumulate(part.begin(), part.end(), uint64_t{0});
    out.shape[out.dim] = whole;
    out.ranks = segments_of(widths, ranks);
  }
  data.cut_padding(name, ranks, out);
  if (out.replicated && out.ranks.empty()) out.ranks.assign(ranks, {});
  return out;
}

}  // namespace ckpt::deepspeed
