#include "app/select.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"
#include "lib/text/suggest.h"

namespace ckpt::app {
namespace {

constexpr uint32_t kMostLayers = 100'000;

// The last component of what comes before a layer's number.
constexpr std::string_view kLayerWords[] = {"layers", "layer", "blocks",
                                            "block", "h"};

std::optional<uint32_t> parse_number(std::string_view text) {
  uint32_t value = 0;
  const auto [end, failure] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size())
    return std::nullopt;
  return value;
}

uint32_t layer_number(const std::string& list, std::string_view text) {
  const auto number = parse_number(text);
  if (!number || *number >= kMostLayers)
    throw usage_error({}, "--layers {}: '{}' is no layer number", list, text)
        .with_hint("numbers and ranges, as in --layers 0-15,20");
  return *number;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t dot; (dot = text.find('.')) != text.npos;
       text.remove_prefix(dot + 1))
    parts.emplace_back(text.substr(0, dot));
  parts.emplace_back(text);
  return parts;
}

// The pattern with words that are in no name replaced by the nearest that
// are: "*.q_prj.*" -> "*.q_proj.*". Empty if that matches nothing either.
std::string nearest_pattern(const std::string& pattern,
                            const Catalog& catalog) {
  std::set<std::string> words;
  for (const Tensor& tensor : catalog.tensors)
    for (std::string& word : split(tensor.name))
      if (!parse_number(word)) words.insert(std::move(word));
  if (words.size() > 10'000) return {};
  const std::vector<std::string> known(words.begin(), words.end());
  std::vector<std::string> parts = split(pattern);
  for (std::string& part : parts) {
    const bool literal = part.find_first_of("*?[]{}") == part.npos;
    if (!literal || words.contains(part) || parse_number(part)) continue;
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
  return unfaithful_error({catalog.path, {}},
                          "{} '{}' matches none of the {} tensors", option,
                          pattern, catalog.tensors.size())
      .with_hint(std::move(hint));
}

// A tensor and why it is left out (an index into the reasons), if it is.
class Chooser {
 public:
  Chooser(const Catalog& catalog, const SelectOptions& options)
      : catalog_(catalog), options_(options) {}

  // Leaves out every remaining tensor that `keep` refuses.
  void filter(const std::string& why,
              const std::function<bool(const Tensor&)>& keep);
  void by_kind();
  void by_names();
  void by_layers();
  bool left_out(size_t i) const { return left_out_[i]; }
  Selection selection() && { return std::move(selection_); }

 private:
  const Catalog& catalog_;
  const SelectOptions& options_;
  std::vector<bool> left_out_ = std::vector<bool>(catalog_.tensors.size());
  Selection selection_;
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
  selection_.dropped += count;
  selection_.dropped_bytes += bytes;
  selection_.notes.push_back(fmt::format("{}: {} of {} tensors ({}) left out",
                                         why, count, left_out_.size(),
                                         text::iec_size(bytes)));
}

void Chooser::by_kind() {
  if (options_.model_only)
    filter("--model-only",
           [](const Tensor& t) { return t.kind != Kind::optim; });
  if (options_.optim_only)
    filter("--optim-only",
           [](const Tensor& t) { return t.kind == Kind::optim; });
}

// The patterns, each of which matches something.
std::vector<text::Glob> compile(const std::string& option,
                                const std::vector<std::string>& patterns,
                                const Catalog& catalog) {
  std::vector<text::Glob> globs;
  for (const std::string& pattern : patterns) {
    const text::Glob& glob = globs.emplace_back(pattern);
    if (std::ranges::none_of(catalog.tensors, [&](const Tensor& t) {
          return glob.matches(t.name);
        }))
      throw nothing_matches(option, pattern, catalog);
  }
  return globs;
}

void Chooser::by_names() {
  const auto any = [](const std::vector<text::Glob>& globs,
                      const Tensor& tensor) {
    return std::ranges::any_of(
        globs, [&](const auto& glob) { return glob.matches(tensor.name); });
  };
  const auto keys = compile("--keys", options_.keys, catalog_);
  const auto exclude = compile("--exclude", options_.exclude, catalog_);
  if (!keys.empty())
    filter(fmt::format("--keys {}", fmt::join(options_.keys, " ")),
           [&](const Tensor& t) { return any(keys, t); });
  if (!exclude.empty())
    filter(fmt::format("--exclude {}", fmt::join(options_.exclude, " ")),
           [&](const Tensor& t) { return !any(exclude, t); });
}

// Optimizer state goes with its parameter, whatever its own name is.
std::optional<uint32_t> layer_of(const Tensor& tensor) {
  const auto layer = app::layer_of(tensor.name);
  return layer || tensor.param.empty() ? layer : app::layer_of(tensor.param);
}

void Chooser::by_layers() {
  if (options_.layers.empty()) return;
  const std::set<uint32_t> wanted = parse_layers(options_.layers);
  std::set<uint32_t> held;
  for (const Tensor& tensor : catalog_.tensors)
    if (const auto layer = layer_of(tensor)) held.insert(*layer);
  if (held.empty())
    throw unfaithful_error({catalog_.path, {}},
                           "--layers {}: no tensor name has a layer number",
                           options_.layers)
        .with_hint("select by name with --keys instead");
  for (const uint32_t layer : wanted)
    if (!held.contains(layer))
      throw unfaithful_error(
          {catalog_.path, {}},
          "--layers {}: there is no layer {}; the source has {} layers, {} "
          "to {}",
          options_.layers, layer, held.size(), *held.begin(), *held.rbegin());
  filter("--layers " + options_.layers, [&](const Tensor& t) {
    const auto layer = layer_of(t);
    return !layer || wanted.contains(*layer);
  });
}

}  // namespace

std::optional<uint32_t> layer_of(std::string_view name) {
  bool after_word = false;
  while (!name.empty()) {
    const size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    if (after_word)
      if (const auto number = parse_number(part)) return number;
    after_word = std::ranges::find(kLayerWords, part) != std::end(kLayerWords);
    name = dot == name.npos ? std::string_view() : name.substr(dot + 1);
  }
  return std::nullopt;
}

std::set<uint32_t> parse_layers(const std::string& text) {
  std::set<uint32_t> layers;
  std::string_view rest = text;
  while (true) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t dash = item.find('-');
    const uint32_t first = layer_number(text, item.substr(0, dash));
    const uint32_t last =
        dash == item.npos ? first : layer_number(text, item.substr(dash + 1));
    if (last < first)
      throw usage_error({}, "--layers {}: {} comes before {}", text, last,
                        first);
    for (uint32_t layer = first; layer <= last; ++layer) layers.insert(layer);
    if (comma == rest.npos) return layers;
    rest.remove_prefix(comma + 1);
  }
}

Selection select(Catalog& catalog, const SelectOptions& options) {
  Chooser chooser(catalog, options);
  chooser.by_kind();
  chooser.by_names();
  chooser.by_layers();

  size_t kept = 0;
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    if (chooser.left_out(i)) continue;
    if (kept != i) catalog.tensors[kept] = std::move(catalog.tensors[i]);
    ++kept;
  }
  const size_t before = catalog.tensors.size();
  catalog.tensors.resize(kept);
  Selection selection = std::move(chooser).selection();
  selection.kept = kept;
  if (kept == 0 && before != 0)
    throw unfaithful_error({catalog.path, {}},
                           "the selection leaves none of the {} tensors",
                           before)
        .with_hint(selection.notes.back());
  for (const std::string& note : selection.notes)
    catalog.assumptions.push_back(note);
  return selection;
}

namespace {

bool matches_any(const Catalog& catalog, const std::string& pattern) {
  const text::Glob glob(pattern);
  return std::ranges::any_of(catalog.tensors, [&](const Tensor& tensor) {
    return glob.matches(tensor.name);
  });
}

// One side: without the patterns that only the other side has names for.
void select_side(Catalog& catalog, SelectOptions options) {
  const auto foreign = [&](const std::string& pattern) {
    return !matches_any(catalog, pattern);
  };
  std::erase_if(options.exclude, foreign);
  const bool by_keys = !options.keys.empty();
  std::erase_if(options.keys, foreign);
  if (by_keys && options.keys.empty())
    catalog.tensors.clear();
  else
    select(catalog, options);
}

}  // namespace

void select_both(Catalog& a, Catalog& b, const SelectOptions& options) {
  const auto check = [&](const std::string& option,
                         const std::vector<std::string>& patterns) {
    for (const std::string& pattern : patterns)
      if (!matches_any(a, pattern) && !matches_any(b, pattern))
        throw nothing_matches(option, pattern, a);
  };
  check("--keys", options.keys);
  check("--exclude", options.exclude);
  select_side(a, options);
  select_side(b, options);
}

}  // namespace ckpt::app
