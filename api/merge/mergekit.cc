// SPDX-License-Identifier: Apache-2.0
// A configuration of mergekit as sources and options of merge_models.
//
//   models:                          or   slices:
//     - model: ORG/NAME or a path           - sources:
//       parameters:                             - model: …
//         weight: 0.5                             layer_range: [0, 16]
//         density: [1, 0.7]                       parameters: …
//   merge_method: ties
//   base_model: …
//   parameters: {normalize: true, lambda: 0.9}
//   dtype: float32
//
// What mergekit would take another way is refused, and so is what it would not
// look at.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <memory>
#include <set>

#include "api/merge/mergekit_recipe.h"
#include "ckpt/error.h"
#include "ckpt/merge.h"
#include "formats/scan/configs.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/suggest.h"

namespace ckpt::mergekit {
namespace {

using nlohmann::json;
using text::printable;

constexpr uint64_t kMostBytes = uint64_t{1} << 20;

std::optional<double> number_in(const json& value) {
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (text == "true" || text == "True") return 1;
  if (text == "false" || text == "False") return 0;
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [at, failed] = std::from_chars(text.data(), end, number);
  if (failed != std::errc() || at != end) return std::nullopt;
  return number;
}

// Which parameters a method looks at, and where.
struct Parameter {
  std::string_view name;
  bool of_models;  // may be one for each
  std::array<std::string_view, 6> methods;
};
constexpr auto kParameters = std::to_array<Parameter>({
    {"weight",
     true,
     {"linear", "task_arithmetic", "ties", "dare_linear", "dare_ties"}},
    {"density", true, {"task_arithmetic", "ties", "dare_linear", "dare_ties"}},
    {"normalize",
     false,
     {"linear", "task_arithmetic", "ties", "dare_linear", "dare_ties"}},
    {"lambda", false, {"task_arithmetic", "ties", "dare_linear", "dare_ties"}},
    {"rescale", false, {"task_arithmetic", "ties", "dare_linear", "dare_ties"}},
    {"int8_mask",
     false,
     {"task_arithmetic", "ties", "dare_linear", "dare_ties"}},
    {"t", false, {"slerp"}},
    {"filter_wise", false, {"model_stock"}},
    {"scale", true, {"passthrough"}},
});

class Reading {
 public:
  explicit Reading(const std::string& path) : path_(path) {
    document_ = scan::read_settings(io::read_file(path, kMostBytes), path);
  }

  MergeFile read();

 private:
  // The line of a place in the document.
  std::string line(const std::string& at) const {
    const auto found = document_.lines.find(at);
    return found == document_.lines.end()
               ? at
               : fmt::format("line {}", found->second);
  }
  template <class... Args>
  [[noreturn]] void refuse(const std::string& at, const std::string& hint,
                           fmt::format_string<Args...> why,
                           Args&&... args) const {
    throw unfaithful_error({path_, {}}, "{}: {}", line(at),
                           fmt::format(why, std::forward<Args>(args)...))
        .with_hint(hint);
  }
  template <class... Args>
  [[noreturn]] void wrong(const std::string& at,
                          fmt::format_string<Args...> why,
                          Args&&... args) const {
    throw usage_error({path_, {}}, "{}: {}", line(at),
                      fmt::format(why, std::forward<Args>(args)...))
        .with_hint("mergekit's README says what its files have");
  }

  // Each key of a mapping is one of these.
  void check_keys(const json& map, const std::string& at,
                  const std::vector<std::string>& known) const {
    if (!map.is_object()) wrong(at, "expected a mapping");
    for (const auto& [key, value] : map.items()) {
      if (std::ranges::find(known, key) != known.end()) continue;
      const std::string near = text::nearest(key, known);
      refuse(fmt::format("{}/{}", at, key),
             near.empty() ? "take it out if the merge needs none of it"
                          : "did you mean " + near + "?",
             "'{}' is not known here", printable(key));
    }
  }

  const json* member(const json& map, const char* key) const {
    const auto found = map.find(key);
    return found == map.end() || found->is_null() ? nullptr : &*found;
  }

  std::string text_at(const json& value, const std::string& at) const {
    if (!value.is_string()) wrong(at, "expected text");
    return value.get<std::string>();
  }

  std::vector<double> values(const json& value, const std::string& at) const {
    std::vector<double> all;
    if (const auto number = number_in(value)) return {*number};
    if (!value.is_array() || value.empty())
      wrong(at, "expected a number, or a list of numbers");
    for (size_t i = 0; i < value.size(); ++i) {
      const auto number = number_in(value[i]);
      if (!number) wrong(fmt::format("{}/{}", at, i), "expected a number");
      all.push_back(*number);
    }
    return all;
  }

  Setting setting(const json& value, const std::string& at) const {
    Setting made;
    const bool rules =
        value.is_array() && !value.empty() && value.front().is_object();
    if (!rules) {
      made.rules.push_back({"", values(value, at)});
      made.plain = made.rules[0].values.size() == 1;
      return made;
    }
    made.plain = false;
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string here = fmt::format("{}/{}", at, i);
      check_keys(value[i], here, {"filter", "value"});
      Setting::Rule rule;
      if (const json* filter = member(value[i], "filter"))
        rule.filter = text_at(*filter, here + "/filter");
      if (rule.filter == "*") rule.filter.clear();
      const json* what = member(value[i], "value");
      if (!what) wrong(here, "no value");
      rule.values = values(*what, here + "/value");
      made.rules.push_back(std::move(rule));
    }
    return made;
  }

  // `of_model`: those of one model.
  Settings settings(const json& owner, const std::string& above,
                    bool of_model) {
    Settings all;
    const json* map = member(owner, "parameters");
    if (!map) return all;
    const std::string at = above + "/parameters";
    std::vector<std::string> known;
    for (const Parameter& one : kParameters)
      if ((one.of_models || !of_model) &&
          std::ranges::find(one.methods, method_) != one.methods.end())
        known.emplace_back(one.name);
    check_keys(*map, at, known);
    for (const auto& [key, value] : map->items()) {
      const std::string here = fmt::format("{}/{}", at, key);
      Setting one = setting(value, here);
      if (key == "int8_mask") {
        note("int8_mask saves mergekit memory and changes no element");
        continue;
      }
      const bool off = one.plain && one.rules[0].values[0] == 0;
      if (key == "filter_wise" && !off)
        refuse(here, "leave filter_wise out, or merge with mergekit",
               "model_stock by rows is not known");
      if (key == "scale" && !(one.plain && one.rules[0].values[0] == 1))
        refuse(here, "merge with mergekit",
               "tensors that pass through are not scaled");
      if (key == "density" && method_ == "task_arithmetic")
        note(
            "task_arithmetic leaves no deltas out: density has no effect, "
            "nor has it in mergekit");
      if (key != "filter_wise" && key != "scale")
        all.emplace(key, std::move(one));
    }
    return all;
  }

  size_t model(const json& owner, const std::string& at, const char* key) {
    const json* value = member(owner, key);
    if (!value) wrong(at, "no {}", key);
    return source(text_at(*value, at + "/" + key), at + "/" + key);
  }
  size_t source(const std::string& name, const std::string& at);
  void read_models(const json& list);
  void read_slices(const json& list);
  void read_slice(const json& item, const std::string& at, uint64_t& begin);
  void check_models() const;
  void check_tokenizers(const std::string& wanted) const;
  void read_dtype(const json& root);
  void note(std::string text) {
    if (std::ranges::find(file_.notes, text) == file_.notes.end())
      file_.notes.push_back(std::move(text));
  }

  const std::string path_;
  scan::Settings document_;
  std::string method_;
  std::map<std::string, size_t> models_;  // number in file_.sources
  Recipe recipe_;
  MergeFile file_;
};

// As transformers finds it: a path, or else a repository of the hub.
size_t Reading::source(const std::string& name, const std::string& at) {
  if (name.find('+') != name.npos)
    refuse(at, "add it to its model first: ckpt convert BASE DST --adapter DIR",
           "'{}' is a model with an adapter", printable(name));
  const auto [found, fresh] = models_.emplace(name, models_.size());
  if (!fresh) return found->second;
  const bool local = io::is_url(name) || io::is_directory(name) ||
                     io::is_file(name) || name.starts_with('/') ||
                     name.starts_with('.') ||
                     std::ranges::count(name, '/') != 1;
  file_.sources.push_back(local ? name : "hf://" + name);
  return found->second;
}

void Reading::read_models(const json& list) {
  if (!list.is_array() || list.empty()) wrong("/models", "expected a list");
  Slice& slice = recipe_.slices.emplace_back();
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at = fmt::format("/models/{}", i);
    check_keys(list[i], at, {"model", "parameters"});
    const size_t number = model(list[i], at, "model");
    slice.sources.push_back({number, settings(list[i], at, true)});
  }
}

void Reading::read_slice(const json& item, const std::string& at,
                         uint64_t& begin) {
  check_keys(item, at, {"sources", "parameters", "base_model"});
  if (member(item, "base_model") &&
      model(item, at, "base_model") != recipe_.base)
    refuse(at + "/base_model", "give all slices one base_model",
           "another base for one slice");
  const json* sources = member(item, "sources");
  if (!sources || !sources->is_array() || sources->empty())
    wrong(at, "expected sources");
  Slice& slice = recipe_.slices.emplace_back();
  slice.begin = begin;
  slice.settings = settings(item, at, false);
  for (size_t i = 0; i < sources->size(); ++i) {
    const json& one = (*sources)[i];
    const std::string here = fmt::format("{}/sources/{}", at, i);
    check_keys(one, here, {"model", "layer_range", "parameters"});
    const size_t number = model(one, here, "model");
    const json* range = member(one, "layer_range");
    std::vector<double> layers;
    if (range) layers = values(*range, here + "/layer_range");
    if (layers.size() != 2 || !(layers[0] >= 0) || !(layers[1] > layers[0]) ||
        !(layers[1] < 1e6) || layers[0] != static_cast<uint32_t>(layers[0]) ||
        layers[1] != static_cast<uint32_t>(layers[1]))
      wrong(here, "expected layer_range: [FIRST, END]");
    const auto first = static_cast<uint64_t>(layers[0]);
    const auto end = static_cast<uint64_t>(layers[1]);
    if (first != begin || (slice.end != 0 && end != slice.end))
      refuse(here + "/layer_range",
             "merge with mergekit: models that get other layers than their "
             "own are new ones",
             "layers {} to {} of a model, where the merged one has its layer "
             "{}: ckpt keeps each layer in its place",
             first, end, begin);
    slice.end = end;
    slice.sources.push_back({number, settings(one, here, true)});
  }
  begin = slice.end;
}

void Reading::read_slices(const json& list) {
  if (!list.is_array() || list.empty()) wrong("/slices", "expected a list");
  uint64_t begin = 0;
  for (size_t i = 0; i < list.size(); ++i)
    read_slice(list[i], fmt::format("/slices/{}", i), begin);
}

// Each slice is made of the same models, or of one.
void Reading::check_models() const {
  for (size_t i = 0; i < recipe_.slices.size(); ++i) {
    std::set<size_t> here;
    const std::string at =
        recipe_.slices[i].end ? fmt::format("/slices/{}", i) : "/models";
    const std::vector<Source>& sources = recipe_.slices[i].sources;
    const std::string each = recipe_.slices[i].end ? at + "/sources" : at;
    for (size_t s = 0; s < sources.size(); ++s)
      if (!here.insert(sources[s].model).second)
        refuse(fmt::format("{}/{}", each, s), "name each model once",
               "the same model twice");
    if (!recipe_.method) {
      if (here.size() != 1)
        refuse(at, "name one model for each slice", "passthrough of {} models",
               here.size());
      continue;
    }
    if (recipe_.base) here.insert(*recipe_.base);
    if (here.size() != file_.sources.size())
      refuse(at, "give a model that a slice is not made of a weight of 0",
             "{} of {} models: each slice is made of all", here.size(),
             file_.sources.size());
  }
  if (recipe_.base && (method_ == "linear" || method_ == "passthrough") &&
      std::ranges::none_of(recipe_.slices[0].sources, [&](const Source& one) {
        return one.model == *recipe_.base;
      }))
    refuse("/base_model", "leave base_model out", "{} takes no base", method_);
}

// mergekit rearranges embeddings by the tokens of a tokenizer; with one
// tokenizer there is nothing to do.
void Reading::check_tokenizers(const std::string& wanted) const {
  constexpr uint64_t kMost = uint64_t{256} << 20;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json",
                           "merges.txt", "added_tokens.json"}) {
    std::optional<std::string> first;
    for (const std::string& source : file_.sources) {
      const std::string path = io::join(source, name);
      std::string text;
      if (!io::is_url(source) && io::is_file(path))
        text = io::read_file(path, kMost);
      if (!first) first = text;
      if (text != *first || io::is_url(source))
        refuse("/tokenizer_source",
               "leave tokenizer_source out: the files are those of the base, "
               "or of the first model",
               "{}: {} is not known to be the same in all models, so mergekit "
               "may rearrange their embeddings",
               printable(wanted), name);
    }
  }
}

void Reading::read_dtype(const json& root) {
  const auto named = [&](const char* key) -> std::optional<DType> {
    const json* value = member(root, key);
    if (!value) return std::nullopt;
    std::string name = text_at(*value, std::string("/") + key);
    if (name.starts_with("torch.")) name.erase(0, 6);
    const auto dtype = dtype_from_torch(name);
    if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16)
      wrong(std::string("/") + key,
            "{} '{}': expected float32, float16 or "
            "bfloat16",
            key, printable(name));
    return dtype;
  };
  const auto dtype = named("dtype"), out = named("out_dtype");
  file_.dtype = out ? out : dtype;
  if (dtype && dtype != DType::f32 && recipe_.method)
    note(
        fmt::format("sums are in f32 and rounded once: mergekit rounds each "
                    "step to {}, the dtype of the file",
                    name(*dtype)));
}

MergeFile Reading::read() {
  const json& root = document_.tree;
  check_keys(root, "",
             {"models", "slices", "merge_method", "base_model", "parameters",
              "dtype", "out_dtype", "tokenizer_source"});
  const json* method = member(root, "merge_method");
  if (!method) wrong("", "no merge_method: is it a file of mergekit's?");
  method_ = text_at(*method, "/merge_method");
  recipe_.method = merge_method(method_);
  if (!recipe_.method && method_ != "passthrough")
    refuse("/merge_method",
           "ckpt knows linear, slerp, task_arithmetic, ties, dare_linear, "
           "dare_ties, model_stock and passthrough",
           "merge_method {} is not known", printable(method_));
  const json* models = member(root, "models");
  const json* slices = member(root, "slices");
  if ((models == nullptr) == (slices == nullptr))
    wrong("", "expected either models or slices");
  // Names, dtypes and files are the base's, as they are in mergekit.
  if (member(root, "base_model")) recipe_.base = model(root, "", "base_model");
  recipe_.settings = settings(root, "", false);
  if (models)
    read_models(*models);
  else
    read_slices(*slices);
  check_models();
  recipe_.path = path_;
  recipe_.models = file_.sources.size();
  if (recipe_.models < 2)
    refuse("/merge_method", "`ckpt convert SRC DST` writes one model again",
           "one model, with which nothing is merged");
  read_dtype(root);
  if (const json* source = member(root, "tokenizer_source"))
    check_tokenizers(text_at(*source, "/tokenizer_source"));

  MergeOptions& options = file_.options;
  options.method = recipe_.method;
  const bool based =
      recipe_.has_deltas() || recipe_.method == MergeMethod::kModelStock;
  if ((based || method_ == "slerp") && !recipe_.base)
    wrong("/merge_method", "{} needs a base_model", method_);
  if (based) {
    options.base = recipe_.base;
    for (const Slice& slice : recipe_.slices)
      for (const Source& source : slice.sources)
        if (source.model == *recipe_.base && !source.settings.empty())
          note(
              "the parameters of the base have no effect, nor have they in "
              "mergekit");
  }
  if (recipe_.is_plain()) {
    const MergeNumbers numbers = recipe_.numbers("", {}, 0);
    options.weights = numbers.weights;
    options.densities = numbers.densities;
    options.lambda = numbers.lambda;
    options.t = numbers.t;
    options.normalize = numbers.normalize;
    options.rescale = numbers.rescale;
  } else {
    options.tune = [recipe = std::make_shared<const Recipe>(recipe_)](
                       const std::string& tensor, std::optional<uint32_t> layer,
                       uint64_t layers) {
      return recipe->numbers(tensor, layer, layers);
    };
  }
  return std::move(file_);
}

}  // namespace
}  // namespace ckpt::mergekit

ckpt::MergeFile ckpt::read_mergekit(const std::string& path) {
  return mergekit::Reading(path).read();
}
