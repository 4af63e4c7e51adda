// SPDX-License-Identifier: Apache-2.0
#include "convert/rules/translation.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "convert/rules/trained_experts.h"
#include "lib/text/format.h"
#include "models/buffers.h"
#include "models/order.h"

namespace ckpt::families {
namespace {

// The number of pieces into which a conversion to Megatron's names may cut one.
// Its layers are stacked, which only boxes of the tensor's own shape can be.
constexpr uint64_t kAnyNumber = UINT64_MAX;
constexpr uint64_t kSome = 64;

// True if all that the rule makes was made, of a tensor of an older name.
bool is_made(const Instance& one, const NamedTensors& hf) {
  return std::ranges::all_of(
      one.hf, [&](const std::string& name) { return hf.find(name); });
}

}  // namespace

Translation::Translation(Catalog& source, const TranslateOptions& options,
                         Of of, std::string what)
    : source_(source),
      of_(of),
      what_(std::move(what)),
      lenient_(options.lenient),
      findings_(options.findings),
      drop_(options.drop),
      allow_(options.allow_missing),
      vocabulary_given_(options.set.contains("V")) {}

NamedTensors Translation::to_hf(NamedTensors model, const Numbers& numbers) {
  NamedTensors hf({});
  Mismatches mismatches;
  std::vector<std::pair<Instance, Tensor>> aliases;
  std::map<std::string, Slices> stacks;
  const std::vector<Instance> all =
      instances(numbers.dialect(), numbers, {{}, names_of(model)});
  std::unordered_map<std::string_view, uint32_t> readers;
  for (const Instance& one : all) ++readers[one.to];
  for (const Instance& one : all) {
    const Tensor* tensor = model.find(one.to);
    if (!tensor) {
      // A second copy can be made; who asks what is there has its reader in
      // mind, whose module has both.
      const bool spared =
          (one.rule->alias && !findings_) ||
          is_older(numbers.dialect(), *one.rule) ||
          (numbers.dialect().section.contains("older") && is_made(one, hf));
      if (weights() && !one.rule->optional && !spared && !allow_.match(one.to))
        mismatches.missing(one.to, one.to);
      continue;
    }
    model.use(one.to);
    if (drop_.match(one.to)) continue;
    if (!weights() && (one.rule->alias || constant_of(*one.rule))) {
      if (of_ == Of::kMoments) refuse_constant(one);
    } else if (one.rule->alias) {
      aliases.emplace_back(one, *tensor);
    } else if (const auto value = constant_of(*one.rule)) {
      source_.redundant.push_back(
          {*tensor,
           value,
           {},
           fmt::format("family {} doesn't have these weights in transformers",
                       numbers.family().name())});
    } else {
      try {
        undo(one, *tensor, numbers, hf, stacks, mismatches);
        // Of thousands of ranks, pieces are most of what a plan holds.
        if (readers.at(one.to) == 1) model.spend(one.to);
      } catch (const Error& error) {
        if (error.where().path == numbers.source()) throw;  // a number
        mismatches.misshapen(one.to, error);
        if (lenient_) hf.add(*tensor);
      }
    }
  }
  for (const auto& [name, slices] : stacks)
    stack(name, slices, numbers, hf, mismatches);
  if (weights()) tell_unread_rows();
  leftovers(model, numbers.dialect().ignore, mismatches, hf);
  settle(mismatches, numbers, numbers.dialect().name + " to hf" + what_);
  for (const auto& [one, tensor] : aliases) same(one, tensor, numbers, hf);
  if (weights())
    for (const HfSide::Repeat& repeat : numbers.family().hf().repeats)
      add_repeats(repeat, hf);
  return hf;
}

NamedTensors Translation::from_hf(NamedTensors hf, const Numbers& numbers) {
  NamedTensors model({});
  Mismatches mismatches;
  const uint64_t spare = numbers.dialect().name == "mcore" ? kAnyNumber : kSome;
  says_cuts_ =
      std::ranges::any_of(numbers.dialect().rules,
                          [](const Rule& rule) { return rule.tp.has_value(); });
  const std::vector<Instance> all =
      instances(numbers.dialect(), numbers, {names_of(hf), {}});
  if (std::ranges::any_of(hf.tensors(), is_trained_experts)) {
    std::unordered_set<std::string> wanted;
    for (const Instance& one : all) wanted.insert(one.hf.begin(), one.hf.end());
    hf = NamedTensors(split_trained(
        std::move(hf.tensors()),
        [&](const std::string& name) { return wanted.contains(name); }));
  }
  for (const Instance& one : all) {
    std::vector<const Tensor*> from;
    if (!sources_of(one, hf, from, mismatches)) continue;
    if (!weights() && from.empty()) continue;
    parents_[one.to] = one.hf;
    try {
      Tensor tensor = made_of(one, from, numbers, spare);
      const std::string name = tensor.name;
      if (!model.add(std::move(tensor))) mismatches.doubled(name);
    } catch (const Error& error) {
      if (error.where().path == numbers.source()) throw;  // a number
      mismatches.misshapen(one.to, error);
    }
  }
  if (weights()) repeats(hf);
  leave_unread(hf, numbers);
  leftovers(hf, numbers.family().hf().ignore, mismatches, model);
  for (Tensor& tensor : kept_) model.add(std::move(tensor));
  settle(mismatches, numbers, "hf to " + numbers.dialect().name + what_);
  return model;
}

void Translation::settle(const Mismatches& mismatches, const Numbers& numbers,
                         const std::string& direction) const {
  if (findings_)
    std::ranges::move(mismatches.findings(), std::back_inserter(*findings_));
  else if (!lenient_)
    mismatches.check(source_.path, numbers, direction);
}

NamedTensors Translation::normal(std::vector<Tensor> tensors,
                                 const Family& family) const {
  std::unordered_set<std::string> seen;
  for (Tensor& tensor : tensors) {
    if (tensor.kind == Kind::model)
      tensor.name = family.normal_name(tensor.name);
    if (!seen.insert(tensor.name).second)
      throw unfaithful_error({source_.path, tensor.name},
                             "two tensors have this name, once their "
                             "prefixes are replaced")
          .with_hint("--exclude leaves one of them out");
  }
  return NamedTensors(std::move(tensors));
}

void Translation::refuse_constant(const Instance& one) const {
  throw unfaithful_error({source_.path, one.to},
                         "is trained, and the target's model does not have "
                         "it: its moments have no place")
      .with_hint("--model-only converts the model alone");
}

void Translation::settle(Tensor& made, const Rule& rule) const {
  if (weights() && rule.dtype) made.pinned = rule.dtype;
  if (of_ != Of::kMoments) return;
  for (Piece& piece : made.pieces) {
    // A sum has the moments of what one is added to; no other function has.
    if (piece.transform & (kNegatedExp | kLogOfNegated))
      throw unfaithful_error({source_.path, made.name},
                             "is stored as another function of what is "
                             "trained: its moments have no place there")
          .with_hint("--model-only converts the model alone");
    piece.transform &= static_cast<uint8_t>(~(kAddOne | kSubtractOne));
  }
}

std::vector<std::string> Translation::names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const Tensor& tensor : tensors.tensors()) names.push_back(tensor.name);
  return names;
}

void Translation::add_repeats(const HfSide::Repeat& repeat, NamedTensors& hf) {
  const Tensor* first = hf.find(repeat.of);
  if (!first) return;
  const std::string ending = "." + repeat.beside;
  std::vector<Tensor> copies;
  for (const Tensor& tensor : hf.tensors()) {
    if (!tensor.name.ends_with(ending)) continue;
    Tensor& copy = copies.emplace_back(*first);
    copy.name =
        tensor.name.substr(0, tensor.name.size() - repeat.beside.size()) +
        repeat.name;
  }
  for (Tensor& copy : copies) hf.add(std::move(copy));
}

bool Translation::pads(const Rule& rule) {
  return std::ranges::any_of(rule.ops,
                             [](const Op& op) { return op.name == "vocab"; });
}

void Translation::check_padding(const Instance& one, const Tensor& tensor,
                                const Numbers& numbers) {
  if (vocabulary_given_ || tensor.shape.empty() || !pads(*one.rule)) return;
  const uint64_t rows = numbers.whole("$V", {}, "rows of the vocabulary");
  if (rows >= tensor.shape[0]) return;
  Tensor padding{.name = tensor.name};
  View::of(tensor).slice(0, rows, tensor.shape[0] - rows).into(padding);
  Redundant proof{.tensor = std::move(padding), .value = 0.0};
  proof.why = fmt::format(
      "its rows past {} are cut as padding: --vocab-size {} cuts them "
      "whatever they are, --vocab-size {} keeps them",
      rows, rows, tensor.shape[0]);
  source_.redundant.push_back(std::move(proof));
}

void Translation::undo(const Instance& one, const Tensor& tensor,
                       const Numbers& numbers, NamedTensors& hf,
                       std::map<std::string, Slices>& stacks,
                       Mismatches& mismatches) {
  if (is_copy(*one.rule)) {
    Tensor copy = tensor;
    copy.name = one.hf[0];
    settle(copy, *one.rule);
    copy.tp = {};
    parents_[one.hf[0]] = {one.to};
    if (!hf.add(std::move(copy))) mismatches.doubled(one.hf[0]);
    return;
  }
  check_padding(one, tensor, numbers);
  const std::vector<View> views = backward(one, View::of(tensor), numbers);
  if (drops_rows(*one.rule)) ++unread_rows_;
  for (const std::string& name : one.hf) parents_[name].push_back(one.to);
  if (const auto at = slice_of(one, numbers)) {
    Slices& slices = stacks[one.hf[0]];
    slices.one = &one;
    if (!slices.views.emplace(*at, views[0]).second)
      mismatches.doubled(one.hf[0]);
    return;
  }
  for (size_t i = 0; i < views.size(); ++i) {
    Tensor made{.name = one.hf[i], .requires_grad = tensor.requires_grad};
    views[i].into(made, kSome);
    settle(made, *one.rule);
    if (!hf.add(std::move(made))) mismatches.doubled(one.hf[i]);
  }
}

void Translation::stack(const std::string& name, const Slices& slices,
                        const Numbers& numbers, NamedTensors& hf,
                        Mismatches& mismatches) {
  const uint64_t count = slices.views.rbegin()->first + 1;
  if (count != slices.views.size()) {
    mismatches.missing(fmt::format("one of the first {} slices", count), name);
    return;
  }
  std::vector<View> views;
  views.reserve(count);
  for (const auto& [at, view] : slices.views) views.push_back(view);
  Tensor made{.name = name};
  try {
    joined(*slices.one, views, numbers).into(made, kSome);
    if (!hf.add(std::move(made))) mismatches.doubled(name);
  } catch (const Error& error) {
    mismatches.misshapen(name, error);
  }
}

bool Translation::sources_of(const Instance& one, NamedTensors& hf,
                             std::vector<const Tensor*>& from,
                             Mismatches& mismatches) {
  std::vector<std::string> missing, dropped;
  for (const std::string& name : one.hf) {
    const Tensor* tensor = hf.find(name);
    if (!tensor)
      missing.push_back(name);
    else if (drop_.match(name))
      dropped.push_back(name);
    else
      from.push_back(tensor);
  }
  for (const std::string& name : one.hf)
    if (hf.find(name)) hf.use(name);
  if (missing.empty() && dropped.empty()) return true;
  // If only some are there, they would be lost.
  const bool part = !from.empty();
  const bool allowed = !part && one.rule->optional;
  for (const std::string& name : missing)
    if (part ||
        (weights() && !(allowed || allow_.match(name) || allow_.match(one.to))))
      mismatches.missing(name, one.to);
  if (part)
    for (const std::string& name : dropped)
      mismatches.missing(name + ", which is dropped", one.to);
  if (part && lenient_)
    for (const Tensor* tensor : from) kept_.push_back(*tensor);
  return false;
}

void Translation::same(const Instance& one, const Tensor& tensor,
                       const Numbers& numbers, const NamedTensors& hf) {
  std::vector<View> views;
  for (const std::string& name : one.hf) {
    const Tensor* first = hf.find(name);
    if (!first) return;
    views.push_back(View::of(*first));
  }
  Tensor wanted{.name = one.hf[0]};
  forward(one, std::move(views), numbers, source_, tensor.dtype)
      .into(wanted, kSome);
  Tensor copy = tensor;
  check_padding(one, tensor, numbers);
  if (pads(*one.rule) && !tensor.shape.empty() && !wanted.shape.empty() &&
      tensor.shape[0] > wanted.shape[0])
    View::of(tensor).slice(0, 0, wanted.shape[0]).into(copy);
  source_.redundant.push_back({std::move(copy),
                               {},
                               std::move(wanted),
                               "the target's model shares them"});
}

void Translation::check_rows(const Instance& one,
                             const std::vector<const Tensor*>& from,
                             const Numbers& numbers) {
  if (lenient_ || vocabulary_given_ || from.empty() || from[0]->shape.empty() ||
      !pads(*one.rule))
    return;
  const uint64_t rows = numbers.whole("$V", {}, "rows of the vocabulary");
  const uint64_t have = from[0]->shape[0];
  if (have < rows)
    throw unfaithful_error({source_.path, text::printable(from[0]->name)},
                           "has {} rows, the vocabulary has {} ({})", have,
                           rows, numbers.source())
        .with_hint(
            fmt::format("--vocab-size {} says that these are all; else the "
                        "configuration is another model's",
                        have));
  if (have == rows) return;
  // Padding from another framework is zero.
  Tensor padding{.name = from[0]->name};
  View::of(*from[0]).slice(0, rows, have - rows).into(padding);
  Redundant proof{.tensor = std::move(padding), .value = 0.0};
  proof.why = fmt::format(
      "the vocabulary has {} rows ({}), and those past it count as padding: "
      "--vocab-size {} says that they are tokens",
      rows, numbers.source(), have);
  source_.redundant.push_back(std::move(proof));
}

Tensor Translation::made_of(const Instance& one,
                            const std::vector<const Tensor*>& from,
                            const Numbers& numbers, uint64_t spare) {
  check_rows(one, from, numbers);
  Tensor made{.name = one.to};
  if (is_copy(*one.rule) && (from[0]->grid.empty() || spare != kAnyNumber)) {
    made = *from[0];
    made.name = one.to;
    made.tie = 0;
  } else {
    std::vector<View> views;
    views.reserve(from.size());
    for (const Tensor* tensor : from) views.push_back(View::of(*tensor));
    const DType dtype =
        from.empty() ? model_dtype(source_.tensors) : from[0]->dtype;
    forward(one, std::move(views), numbers, source_, dtype).into(made, spare);
    if (!from.empty()) made.requires_grad = from[0]->requires_grad;
  }
  made.kind = Kind::model;
  settle(made, *one.rule);
  // If no rule says how to cut, the format's writer decides.
  made.tp = says_cuts_ ? TpRule::replicated() : TpRule();
  if (one.rule->tp) {
    const uint64_t dim = numbers.whole(one.rule->tp->dim, one.index, "tp");
    // A TpRule has equal parts. Megatron's writers know others by name.
    made.tp =
        one.rule->tp->sizes.empty()
            ? TpRule::split(static_cast<uint32_t>(dim), one.rule->tp->parts)
            : TpRule();
  }
  return made;
}

void Translation::repeats(NamedTensors& hf) {
  const Tensor* embedding = nullptr;
  const Tensor* head = nullptr;
  const Tensor* bias = nullptr;
  const auto ends = [](const Tensor& tensor, auto... endings) {
    return (tensor.name.ends_with(endings) || ...);
  };
  for (size_t i = 0; i < hf.tensors().size(); ++i) {
    const Tensor& tensor = hf.tensors()[i];
    if (!hf.used(i)) continue;
    if (ends(tensor, "lm_head.weight", "embed_out.weight")) head = &tensor;
    if (ends(tensor, "embed_tokens.weight", "wte.weight", "embed_in.weight",
             "word_embeddings.weight") ||
        tensor.name == "shared.weight")
      embedding = &tensor;
    if (tensor.name == "cls.predictions.bias") bias = &tensor;
  }
  if (!head) head = embedding;
  for (size_t i = 0; i < hf.tensors().size(); ++i) {
    const Tensor& tensor = hf.tensors()[i];
    if (hf.used(i)) continue;
    const Tensor* first = nullptr;
    if (ends(tensor, "lm_head.weight", "embed_out.weight",
             "shared_head.head.weight", "cls.predictions.decoder.weight"))
      first = head;
    else if (ends(tensor, "cls.predictions.decoder.bias"))
      first = bias;
    else if (ends(tensor, ".embed_tokens.weight"))
      first = embedding;
    if (!first) continue;
    source_.redundant.push_back(
        {tensor, {}, *first, "the target's model shares them"});
    hf.use(tensor.name);
    note(fmt::format("{}: duplicate of {}; not written", tensor.name,
                     first->name));
  }
}

void Translation::leftovers(NamedTensors& model,
                            const std::vector<std::string>& ignored,
                            Mismatches& mismatches, NamedTensors& result) {
  size_t dropped = 0;
  for (size_t i = 0; i < model.tensors().size(); ++i) {
    Tensor& tensor = model.tensors()[i];
    if (model.used(i)) continue;
    if (drop_.match(tensor.name))
      ++dropped;
    else if (Family::ignored(tensor.name, ignored) && leave_buffer(tensor))
      note(tensor.name + " is not a parameter of the model; not written");
    else if (lenient_)
      result.add(std::move(tensor));
    else
      mismatches.unknown(tensor.name);
  }
  if (dropped)
    source_.assumptions.push_back(
        fmt::format("--drop: {} tensors are left out", dropped));
}

void Translation::leave_unread(NamedTensors& hf, const Numbers& numbers) {
  size_t count = 0;
  for (const std::string& name : unread_names(numbers)) {
    if (!hf.find(name)) continue;
    hf.use(name);
    ++count;
  }
  if (count != 0)
    source_.problems.push_back(
        warning("left_out", {source_.path, {}},
                "{} tensors that transformers' model does not read (keys and "
                "values of layers that share others') are not written",
                count));
}

void Translation::tell_unread_rows() {
  if (unread_rows_ != 0)
    note(
        fmt::format("{} tensors have rows of keys or values that the model "
                    "does not read: they are not written",
                    unread_rows_));
}

bool Translation::leave_buffer(const Tensor& tensor) {
  if (!buffer_proof(tensor, 1)) return false;
  source_.redundant.push_back(
      {tensor, {}, {}, "the target makes it from the model's numbers"});
  return true;
}

void Translation::note(std::string text) {
  source_.problems.push_back(
      remark("left_out", {source_.path, {}}, "{}", std::move(text)));
}

}  // namespace ckpt::families
