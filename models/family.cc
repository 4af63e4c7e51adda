// SPDX-License-Identifier: Apache-2.0
#include "models/family.h"

#include <algorithm>
#include <mutex>

#include "ckpt/error.h"
#include "lib/embedded.h"
#include "lib/io/file.h"
#include "lib/text/glob.h"
#include "lib/text/suggest.h"
#include "models/located.h"
#include "models/numbers.h"
#include "models/own.h"

namespace ckpt::families {
namespace {

using FamilyPtr = std::shared_ptr<const Family>;
constexpr uint64_t kMaxFile = uint64_t{1} << 20;

// Not every file that is compiled in is a family.
bool is_family_file(const Embedded& file) {
  return file.text.substr(0, 64).find("\"ckpt-family/2\"") != file.text.npos;
}

FamilyPtr embedded_family(const Embedded& file) {
  return Family::from_text(file.text, std::string(file.name) + ".json");
}

// Families are read on demand: there are many, and a command needs one.
FamilyPtr family_of(const Embedded& file) {
  static std::mutex mutex;
  static std::map<std::string_view, FamilyPtr> read;
  const std::lock_guard lock(mutex);
  FamilyPtr& family = read[file.name];
  if (!family) family = embedded_family(file);
  return family;
}

const Embedded* find_file(std::string_view name) {
  for (const Embedded& file : files())
    if (file.name == name && is_family_file(file)) return &file;
  return nullptr;
}

bool contains(const std::vector<std::string>& list, const Json& value) {
  return value.is_string() &&
         std::ranges::count(list, value.get_ref<const std::string&>()) > 0;
}

// One name in several spellings: transformers 4.57 writes "Glm4vMoe_text" for
// what is "glm4v_moe_text" before and after.
bool is_spelled(const Json& type, std::string_view name) {
  if (!type.is_string()) return false;
  const auto plain = [](std::string_view text) {
    std::string letters;
    for (const char c : text)
      if (c != '_')
        letters += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    return letters;
  };
  return plain(type.get_ref<const std::string&>()) == plain(name);
}

// A model of several modalities is that of its language model.
bool names_text(const HfSide& hf, const Json& config) {
  if (hf.text_type.empty()) return true;
  const auto text = config.find("text_config");
  if (text == config.end() || !text->is_object()) return true;
  const auto type = text->find("model_type");
  return type == text->end() || is_spelled(*type, hf.text_type);
}

bool names_type(const HfSide& hf, const Json& config) {
  const auto type = config.find("model_type");
  return type != config.end() && contains(hf.model_types, *type) &&
         names_text(hf, config);
}

bool names_architecture(const HfSide& hf, const Json& config) {
  const auto found = config.find("architectures");
  if (found == config.end() || !found->is_array() || !names_text(hf, config))
    return false;
  return std::ranges::any_of(
      *found, [&](const Json& one) { return contains(hf.architectures, one); });
}

// True if the file's text has one of the words by which a configuration names
// its class. No other file needs to be read.
bool may_name(const Embedded& file, const Json& config) {
  const auto has = [&](const Json& word) {
    return word.is_string() && file.text.find('"' + word.get<std::string>() +
                                              '"') != file.text.npos;
  };
  const auto type = config.find("model_type");
  if (type != config.end() && has(*type)) return true;
  const auto classes = config.find("architectures");
  return classes != config.end() && classes->is_array() &&
         std::ranges::any_of(*classes, has);
}

// False if the file can't have that section or model type: neither is ever
// inherited unasked, so that the file's own text has the word.
bool may_have(const Embedded& file, std::string_view word) {
  return is_family_file(file) &&
         file.text.find('"' + std::string(word) + '"') != file.text.npos;
}

FamilyPtr find_if(const Json& config,
                  bool (*matches)(const HfSide&, const Json&)) {
  for (const Embedded& file : files()) {
    if (!is_family_file(file) || !may_name(file, config)) continue;
    FamilyPtr family = family_of(file);
    if (matches(family->hf(), config)) return family;
  }
  return nullptr;
}

// A model_type that transformers' AutoConfig opens as another one if a key is
// there, whatever its value.
struct Retyped {
  std::string_view type, key, as;
};
constexpr Retyped kRetyped[] = {
    {"mistral", "layer_types", "ministral"},  // Ministral 8B's config.json
};

const Retyped* find_retyped(const Json& config) {
  if (!config.is_object()) return nullptr;
  const Json type = config.value("model_type", Json());
  for (const Retyped& one : kRetyped)
    if (type == Json(one.type) && config.contains(one.key)) return &one;
  return nullptr;
}

// What selects a family: where it was found, and how.
struct Named {
  FamilyPtr family;
  bool (*matches)(const HfSide&, const Json&) = nullptr;
  Json config;
};

Named find_named(const Json& config) {
  if (!config.is_object()) return {};
  Json whole = config;
  if (const Retyped* retyped = find_retyped(config))
    whole["model_type"] = retyped->as;
  for (const auto matches : {names_type, names_architecture})
    if (FamilyPtr family = find_if(whole, matches))
      return {std::move(family), matches, std::move(whole)};
  const auto text = whole.find("text_config");
  if (text == whole.end() || !text->is_object()) return {};
  return {find_if(*text, names_type), names_type, *text};
}

// fairseq2's own name for a family.
std::string fairseq2_name(const Family& family) {
  const Json& section = family.fairseq2();
  if (section.is_null()) return {};
  return section.value("family", family.name());
}

// True if the configuration selects this one among those that share the name.
bool chosen(const FamilyPtr& family, const Dialect& dialect,
            const Json& config) {
  const std::string condition = dialect.section.value("chosen", "");
  if (condition.empty()) return true;
  return Numbers(family, dialect, "fairseq2", config, "model.yaml")
      .holds(condition);
}

}  // namespace

FamilyPtr Family::by_name(const std::string& name) {
  if (const Embedded* file = find_file(name)) return family_of(*file);
  // Or a model_type of transformers: olmo3 is in family olmo2.
  for (const Embedded& file : files()) {
    if (!may_have(file, name)) continue;
    FamilyPtr family = family_of(file);
    if (std::ranges::count(family->hf().model_types, name) != 0) return family;
  }
  const std::string near = text::nearest(name, names());
  throw usage_error({}, "unknown family '{}'", name)
      .with_hint(near.empty()
                     ? "`ckpt family list` has all; --family-file FILE "
                       "brings one of your own"
                     : "did you mean '" + near + "'?");
}

std::string_view Family::text_of(std::string_view name) {
  const Embedded* file = find_file(name);
  return file ? std::string_view(file->text) : std::string_view();
}

bool Family::exists(std::string_view name) {
  return find_file(name) != nullptr;
}

FamilyPtr Family::from_file(const std::string& path) {
  return from_text(io::read_file(path, kMaxFile), path);
}

FamilyPtr Family::for_config(const Json& config) {
  return find_named(config).family;
}

std::string Family::retyped_by(const Json& config) {
  const Retyped* retyped = find_retyped(config);
  return retyped ? std::string(retyped->key) : std::string();
}

FamilyPtr Family::for_fairseq2(const std::string& name, const Json& config) {
  for (const Embedded& file : files()) {
    if (!may_have(file, "fairseq2")) continue;
    const FamilyPtr family = family_of(file);
    const Dialect* dialect = family->dialect("fairseq2");
    if (dialect && fairseq2_name(*family) == name &&
        chosen(family, *dialect, config))
      return family;
  }
  return nullptr;
}

FamilyPtr Family::for_vllm(std::string_view model_type) {
  const std::string word = '"' + std::string(model_type) + '"';
  for (const Embedded& file : files()) {
    if (!may_have(file, "vllm") || file.text.find(word) == file.text.npos)
      continue;
    FamilyPtr family = family_of(file);
    if (family->vllm() &&
        std::ranges::count(family->hf().model_types, model_type) != 0)
      return family;
  }
  return nullptr;
}

std::vector<std::string> Family::vllm_types() {
  std::vector<std::string> all;
  for (const Embedded& file : files()) {
    if (!may_have(file, "vllm")) continue;
    const FamilyPtr family = family_of(file);
    if (!family->vllm()) continue;
    const std::vector<std::string>& types = family->hf().model_types;
    all.insert(all.end(), types.begin(), types.end());
  }
  std::ranges::sort(all);
  return all;
}

std::vector<FamilyPtr> Family::with_modelopt() {
  std::vector<FamilyPtr> all;
  for (const Embedded& file : files()) {
    if (!may_have(file, "modelopt")) continue;
    FamilyPtr family = family_of(file);
    if (family->modelopt()) all.push_back(std::move(family));
  }
  return all;
}

std::vector<std::string> Family::names() {
  std::vector<std::string> all;
  for (const Embedded& file : files())
    if (is_family_file(file)) all.emplace_back(file.name);
  std::ranges::sort(all);
  return all;
}

const Dialect* Family::dialect(std::string_view name) const {
  const auto found = std::ranges::find(dialects_, name, &Dialect::name);
  if (found == dialects_.end() || found->rules.empty()) return nullptr;
  return &*found;
}

const Json& Family::fairseq2() const {
  static const Json none;
  const auto found = std::ranges::find(dialects_, "fairseq2", &Dialect::name);
  return found == dialects_.end() ? none : found->section;
}

bool Family::fits(const Json& config) const {
  const Named named = find_named(config);
  if (named.family && named.matches(hf_, named.config)) return true;
  // The language model of one that sees: what else it has must be dropped.
  const auto text = config.find("text_config");
  return text != config.end() && text->is_object() &&
         contains(hf_.model_types, text->value("model_type", Json()));
}

bool Family::fits_text(const Json& config) const {
  return !config.is_object() || names_text(hf_, config);
}

std::string Family::normal_name(std::string_view hf_name) const {
  for (const auto& [from, to] : hf_.prefixes)
    if (hf_name.starts_with(from))
      return to + std::string(hf_name.substr(from.size()));
  return std::string(hf_name);
}

bool Family::repeats(std::string_view hf_name) const {
  return std::ranges::any_of(hf_.repeats, [&](const HfSide::Repeat& repeat) {
    return hf_name.starts_with("model.layers.") &&
           hf_name.ends_with("." + repeat.name);
  });
}

bool Family::ignored(std::string_view name,
                     const std::vector<std::string>& patterns) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return text::Glob(pattern).matches(name);
  });
}

}  // namespace ckpt::families
