// SPDX-License-Identifier: Apache-2.0
#include "api/edit/select.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "api/edit/blocks.h"
#include "api/edit/experts.h"
#include "api/edit/layer_order.h"
#include "api/edit/layers.h"
#include "api/edit/parts.h"
#include "api/edit/towers.h"
#include "ckpt/error.h"
#include "convert/whole/whole.h"
#include "formats/traits.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"
#include "lib/text/number.h"
#include "lib/text/suggest.h"
#include "lib/unruled.h"

namespace ckpt::library {
namespace {

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t dot; (dot = text.find('.')) != text.npos;
       text.remove_prefix(dot + 1))
    parts.emplace_back(text.substr(0, dot));
  parts.emplace_back(text);
  return parts;
}

// The pattern with words that occur in no name replaced by the nearest that do:
// "*.q_prj.*" -> "*.q_proj.*". Empty if that matches nothing either.
std::string nearest_pattern(const std::string& pattern,
                            const Catalog& catalog) {
  std::set<std::string> words;
  for (const Tensor& tensor : catalog.tensors)
    for (std::string& word : split(tensor.name))
      if (!text::is_digits(word)) words.insert(std::move(word));
  if (words.size() > 10'000) return {};
  const std::vector<std::string> known(words.begin(), words.end());
  std::vector<std::string> parts = split(pattern);
  for (std::string& part : parts) {
    const bool literal = part.find_first_of("*?[]{}") == part.npos;
    if (!literal || words.contains(part) || text::is_digits(part)) continue;
    if (std::string near = text::nearest(part, known); !near.empty())
      part = std::move(near);
  }
  std::string fixed = fmt::format("{}", fmt::join(parts, "."));
  const text::Glob glob(fixed);
  const bool any = std::ranges::any_of(
      catalog.tensors, [&](const Tensor& t) { return glob.matches(t.name); });
  return any ? fixed : std::string();
}

Error nothing_matches(const std::string& option, const std::string& pattern,
                      const Catalog& catalog) {
  const std::string near = nearest_pattern(pattern, catalog);
  std::string hint = "inspect shows the names; * matches dots too";
  if (!near.empty()) {
    hint = fmt::format("did you mean '{}'?", near);
  } else if (!catalog.tensors.empty()) {
    hint = fmt::format("a name here: {}; * matches dots too",
                       catalog.tensors.front().name);
  }
  std::string what = fmt::format("{} tensors", catalog.tensors.size());
  if (option == "--exclude" && !catalog.objects.empty())
    what += fmt::format(" and {} objects", catalog.objects.size());
  return unfaithful_error({catalog.path, {}}, "{} '{}' matches none of the {}",
                          option, pattern, what)
      .with_hint(std::move(hint));
}

// Decides which tensors are left out, and why (an index into the reasons).
class Chooser {
 public:
  Chooser(const Catalog& catalog, const Selection& options)
      : catalog_(catalog), options_(options) {}

  // Leaves out every remaining tensor that `keep` refuses.
  void filter(const std::string& why,
              const std::function<bool(const Tensor&)>& keep);
  void by_kind();
  void by_names();
  void by_layers();
  void by_blocks();
  bool left_out(size_t i) const { return left_out_[i]; }
  // After by_layers().
  const LayerCount& layer_count() const { return count_.value(); }
  // The same: the layers in the order in which they were asked for.
  const std::vector<uint32_t>& order() const { return order_; }
  Chosen chosen() { return std::move(chosen_); }

 private:
  const Catalog& catalog_;
  const Selection& options_;
  std::vector<bool> left_out_ = std::vector<bool>(catalog_.tensors.size());
  Chosen chosen_;
  std::optional<LayerCount> count_;
  std::vector<uint32_t> order_;
  uint32_t stacked_ = 0;  // the most layers that a tensor stacks
};

void Chooser::filter(const std::string& why,
                     const std::function<bool(const Tensor&)>& keep) {
  uint64_t count = 0, bytes = 0;
  for (size_t i = 0; i < left_out_.size(); ++i) {
    const Tensor& tensor = catalog_.tensors[i];
    if (left_out_[i] || keep(tensor)) continue;
    left_out_[i] = true;
    ++count;
    bytes += byte_size(tensor);
  }
  if (count == 0) return;
  chosen_.dropped += count;
  chosen_.dropped_bytes += bytes;
  chosen_.notes.push_back(fmt::format("{}: {} of {} tensors ({}) left out", why,
                                      count, left_out_.size(),
                                      text::iec_size(bytes)));
}

void Chooser::by_kind() {
  if (options_.model_only)
    filter("--model-only", [this](const Tensor& t) {
      // What else a trainer keeps is not the model's: the best metric of a
      // callback, an average of weights, random numbers.
      return catalog_.run ? t.kind == Kind::model : t.kind != Kind::optim;
    });
  if (options_.optim_only)
    filter("--optim-only",
           [](const Tensor& t) { return t.kind == Kind::optim; });
}

bool any_tensor(const Catalog& catalog, const text::Glob& glob) {
  return std::ranges::any_of(catalog.tensors, [&](const Tensor& tensor) {
    return glob.matches(tensor.name);
  });
}

bool any_object(const Catalog& catalog, const text::Glob& glob) {
  return std::ranges::any_of(catalog.objects, [&](const Object& object) {
    return glob.matches(object.name);
  });
}

// --exclude leaves out objects, too; --keys concerns only tensors.
bool matches_any(const Catalog& catalog, const std::string& option,
                 const text::Glob& glob) {
  return any_tensor(catalog, glob) ||
         (option == "--exclude" && any_object(catalog, glob));
}

// The patterns; each must match something.
std::vector<text::Glob> compile(const std::string& option,
                                const std::vector<std::string>& patterns,
                                const Catalog& catalog) {
  std::vector<text::Glob> globs;
  for (const std::string& pattern : patterns) {
    const text::Glob& glob = globs.emplace_back(pattern);
    if (!matches_any(catalog, option, glob))
      throw nothing_matches(option, pattern, catalog);
  }
  return globs;
}

bool any(const std::vector<text::Glob>& globs, const std::string& name) {
  return std::ranges::any_of(
      globs, [&](const text::Glob& glob) { return glob.matches(name); });
}

void Chooser::by_names() {
  const auto keys = compile("--keys", options_.keys, catalog_);
  const auto exclude = compile("--exclude", options_.exclude, catalog_);
  if (!keys.empty())
    filter(fmt::format("--keys {}", fmt::join(options_.keys, " ")),
           [&](const Tensor& t) { return any(keys, t.name); });
  if (!exclude.empty())
    filter(fmt::format("--exclude {}", fmt::join(options_.exclude, " ")),
           [&](const Tensor& t) { return !any(exclude, t.name); });
}

void Chooser::by_layers() {
  if (options_.layers.empty()) return;
  const LayerCount& count = count_.emplace(catalog_, left_out_);
  std::set<uint32_t> held;
  for (const Tensor& tensor : catalog_.tensors) {
    if (const auto layer = count.layer_of(tensor)) held.insert(*layer);
    const uint64_t rows =
        std::min<uint64_t>(count.stacked(catalog_, tensor), kMostLayers);
    if (rows > stacked_)
      for (; stacked_ < rows; ++stacked_) held.insert(stacked_);
  }
  if (held.empty())
    throw unfaithful_error({catalog_.path, {}},
                           "--layers {}: no tensor name has a layer number",
                           options_.layers)
        .with_hint("select by name with --keys instead");
  if (const auto last = last_layers(options_.layers))
    order_.assign(
        std::prev(held.end(), std::min<ptrdiff_t>(*last, std::ssize(held))),
        held.end());
  else
    order_ = parse_layer_order(options_.layers);
  const std::set<uint32_t> wanted(order_.begin(), order_.end());
  for (const uint32_t layer : wanted)
    if (!held.contains(layer))
      throw unfaithful_error(
          {catalog_.path, {}},
          "--layers {}: there is no layer {}; the source has {} layers, {} "
          "to {}",
          options_.layers, layer, held.size(), *held.begin(), *held.rbegin())
          .with_hint(fmt::format("all of them: --layers {}-{}", *held.begin(),
                                 *held.rbegin()));
  filter("--layers " + options_.layers, [&](const Tensor& t) {
    if (const uint64_t rows = count.stacked(catalog_, t))
      return *wanted.begin() < rows;
    const auto layer = count.layer_of(t);
    return !layer || wanted.contains(*layer);
  });
}

void Chooser::by_blocks() {
  if (options_.blocks.empty()) return;
  filter("--blocks " + options_.blocks,
         owned_blocks(catalog_, options_.blocks));
}

// --exclude: leaves out objects as well, and says which.
void leave_out_objects(Catalog& catalog, const Selection& options,
                       Chosen& chosen) {
  std::vector<text::Glob> globs;
  for (const std::string& pattern : options.exclude)
    globs.emplace_back(pattern);
  const size_t before = catalog.objects.size();
  const size_t gone = std::erase_if(catalog.objects, [&](const Object& object) {
    return any(globs, object.name);
  });
  if (gone == 0) return;
  chosen.notes.push_back(fmt::format("--exclude {}: {} of {} objects left out",
                                     fmt::join(options.exclude, " "), gone,
                                     before));
}

// --model-only: leaves out an optimizer's options where each is an object of
// its own: optim.param_groups.0.lr.
void leave_out_options(Catalog& catalog, const Selection& options,
                       Chosen& chosen) {
  if (!options.model_only || !formats::traits_of(catalog.format).flat_objects)
    return;
  const size_t before = catalog.objects.size();
  const size_t gone = std::erase_if(catalog.objects, [](const Object& object) {
    return ('.' + object.name).find(".param_groups.") != std::string::npos;
  });
  if (gone == 0) return;
  chosen.notes.push_back(fmt::format(
      "--model-only: {} of {} objects left out, options of the optimizer", gone,
      before));
}

// True for a model that its family's rules find whole, of which layers or
// experts alone are left out: what is left has to be a model again.
bool stays_a_model(const Catalog& catalog, const Selection& options) {
  if (options.layers.empty() || !options.keys.empty() ||
      !options.exclude.empty() || !options.blocks.empty())
    return false;
  const families::Whole whole = families::check_whole(catalog);
  return whole.sound() && whole.basis == families::Whole::Basis::kRules;
}

// Whatever its configuration says by the number of a layer has followed, or
// could not.
void need_model(const Catalog& catalog, const std::vector<uint32_t>& order) {
  const families::Whole whole = families::check_whole(catalog);
  const auto found = std::ranges::find(
      whole.problems, Problem::Severity::kDamage, &Problem::severity);
  if (found == whole.problems.end()) return;
  throw unfaithful_error({catalog.path, found->tensor},
                         "--layers: as layers 0-{}, these are not the model "
                         "that the configuration describes: {}",
                         order.size() - 1, found->message)
      .with_hint(
          "--keys GLOB takes layers by their names, as a part of the model");
}

}  // namespace

Chosen choose(Catalog& catalog, const Selection& options) {
  const bool model = stays_a_model(catalog, options);
  std::string part;
  if (!options.part.empty()) part = keep_part(catalog, options.part);
  const bool predicted = !options.layers.empty() && predicts(catalog);
  Chooser chooser(catalog, options);
  chooser.by_kind();
  chooser.by_names();
  chooser.by_layers();
  chooser.by_blocks();

  size_t kept = 0;
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    if (chooser.left_out(i)) continue;
    if (kept != i) catalog.tensors[kept] = std::move(catalog.tensors[i]);
    ++kept;
  }
  const size_t before = catalog.tensors.size();
  catalog.tensors.resize(kept);
  Chosen chosen = chooser.chosen();
  chosen.kept = kept;
  if (!part.empty()) chosen.notes.insert(chosen.notes.begin(), part);
  // What the last of the options left out: of tensors, not of objects.
  const std::string of_tensors =
      chosen.notes.empty() ? "" : chosen.notes.back();
  leave_out_objects(catalog, options, chosen);
  leave_out_options(catalog, options, chosen);
  if (kept == 0 && before != 0)
    throw unfaithful_error({catalog.path, {}},
                           "the selection leaves none of the {} tensors",
                           before)
        .with_hint(of_tensors);
  const std::vector<uint32_t>& order = chooser.order();
  if (!order.empty() && (counts_anew(order) || last_layers(options.layers))) {
    chosen.notes.push_back(
        order_layers(catalog, order, chooser.layer_count(), chosen.edits));
  } else if (!order.empty()) {
    const std::set<uint32_t> layers(order.begin(), order.end());
    chosen.warning =
        keep_rows(catalog, layers, chooser.layer_count(), chosen.edits);
    // Rows of stacked tensors are counted anew, and the first layers alone are
    // a model: the configuration follows.
    if (!chosen.warning.empty() && order.back() + 1 != order.size()) {
      if (const std::string why = try_order(catalog, order); !why.empty())
        chosen.warning +=
            fmt::format(". The configuration stays as it was: {}", why);
    } else {
      follow_layers(catalog, layers);
    }
  }
  if (predicted && !predicts(catalog)) drop_prediction(catalog);
  drop_unruled(catalog);
  if (!options.experts.empty()) {
    KeptExperts experts = keep_experts(catalog, options.experts, chosen.edits);
    chosen.notes.push_back(std::move(experts.note));
    if (!experts.warning.empty() && !chosen.warning.empty())
      chosen.warning += "; ";
    chosen.warning += experts.warning;
  }
  if (model && (counts_anew(order) || last_layers(options.layers) ||
                order.back() + 1 == order.size()))
    need_model(catalog, order);
  tidy(chosen.edits);
  for (const std::string& note : chosen.notes)
    catalog.assumptions.push_back(note);
  if (!chosen.warning.empty()) catalog.assumptions.push_back(chosen.warning);
  return chosen;
}

namespace {

// Selects on one side, without the patterns that match only the other side's
// names.
void select_side(Catalog& catalog, Selection options) {
  // What was converted from a part has nothing around it any more.
  if (parts_of(catalog).size() < 2) options.part.clear();
  const auto drop_foreign = [&](const std::string& option,
                                std::vector<std::string>& patterns) {
    std::erase_if(patterns, [&](const std::string& pattern) {
      return !matches_any(catalog, option, text::Glob(pattern));
    });
  };
  drop_foreign("--exclude", options.exclude);
  const bool by_keys = !options.keys.empty();
  drop_foreign("--keys", options.keys);
  if (by_keys && options.keys.empty())
    catalog.tensors.clear();
  else
    choose(catalog, options);
}

}  // namespace

void keep_keys(Catalog& part, const std::vector<std::string>& keys,
               const Catalog& whole) {
  const std::vector<text::Glob> globs = compile("--keys", keys, whole);
  std::erase_if(part.tensors,
                [&](const Tensor& tensor) { return !any(globs, tensor.name); });
}

void select_both(Catalog& a, Catalog& b, const Selection& options) {
  const auto check = [&](const std::string& option,
                         const std::vector<std::string>& patterns) {
    for (const std::string& pattern : patterns)
      if (const text::Glob glob(pattern);
          !matches_any(a, option, glob) && !matches_any(b, option, glob))
        throw nothing_matches(option, pattern, a);
  };
  if (!options.part.empty() && parts_of(a).size() < 2 && parts_of(b).size() < 2)
    keep_part(a, options.part);
  check("--keys", options.keys);
  check("--exclude", options.exclude);
  select_side(a, options);
  select_side(b, options);
}

}  // namespace ckpt::library

namespace ckpt {

Selected select(Catalog& catalog, const Selection& selection) {
  return library::choose(catalog, selection);
}

}  // namespace ckpt
