// SPDX-License-Identifier: Apache-2.0
#include "models/wrapper.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "lib/text/words.h"

namespace ckpt::families {
namespace {

// Prefixes of the whole model.
constexpr std::string_view kOuter[] = {
    "state_dict.", "model_state_dict.", "app.", "model.", "module.",
};
// Prefixes of any module.
constexpr std::string_view kInner[] = {"_orig_mod.", "_forward_module.",
                                       "_fsdp_wrapped_module.", "_fpw_module.",
                                       "_checkpoint_wrapped_module."};
constexpr std::string_view kEmbeddings =
    "embed_tokens.weight wte.weight embed_in.weight word_embeddings.weight";
constexpr size_t kMostWords = 8;

using Patterns = std::unordered_set<std::string>;

Patterns patterns_of(const Family& family) {
  Patterns patterns;
  for (const Dialect& dialect : family.dialects())
    for (const Rule& rule : dialect.rules)
      for (const std::string& name : rule.hf) patterns.insert(numberless(name));
  return patterns;
}

bool is_family(const Family& family, const std::vector<std::string>& names) {
  const Patterns patterns = patterns_of(family);
  return std::ranges::all_of(names, [&](const std::string& name) {
    return patterns.contains(numberless(family.normal_name(name))) ||
           Family::ignored(name, family.hf().ignore) || family.repeats(name);
  });
}

// Reading all families takes a tenth of a second: the likely one comes first.
bool is_any_family(const std::vector<std::string>& names,
                   const Family* likely) {
  if (likely && is_family(*likely, names)) return true;
  return std::ranges::any_of(Family::names(), [&](const std::string& family) {
    return is_family(*Family::by_name(family), names);
  });
}

// The rest of each name that begins with `prefix`.
std::vector<std::string> behind(const std::vector<std::string>& names,
                                const std::string& prefix) {
  std::vector<std::string> found;
  for (const std::string& name : names)
    if (name.starts_with(prefix)) found.push_back(name.substr(prefix.size()));
  return found;
}

// What all names begin with, up to a dot.
std::string common_prefix(const std::vector<std::string>& names) {
  if (names.size() < 2) return {};
  std::string_view common = names.front();
  for (const std::string& name : names) {
    const auto end = std::ranges::mismatch(common, name).in1;
    common = {common.begin(), end};
  }
  return std::string(common.substr(0, common.rfind('.') + 1));
}

bool is_embedding(const std::string& name) {
  return text::ends_with_any(name, kEmbeddings);
}

// The least of the prefix behind which all names are those of a family. Without
// an embedding none is asked: a small --max-mem has no room for all families.
std::optional<std::string> find_common(const std::vector<std::string>& names,
                                       const Family* likely) {
  const std::string common = common_prefix(names);
  if (common.empty() || std::ranges::none_of(names, is_embedding) ||
      is_any_family(names, likely))
    return std::nullopt;
  size_t end = 0;
  for (size_t word = 0; word < kMostWords && end < common.size(); ++word) {
    end = common.find('.', end) + 1;
    const std::string prefix = common.substr(0, end);
    // One name says no soon: there may be a million.
    if (is_any_family({names.front().substr(end)}, likely) &&
        is_any_family(behind(names, prefix), likely))
      return prefix;
  }
  return std::nullopt;
}

// DistributedDataParallel's and DataParallel's, if all names have it.
std::string replica_prefix(const std::vector<std::string>& names) {
  constexpr std::string_view kReplica = "module.";
  std::string prefix;
  while (!names.empty() && prefix.size() < kMostWords * kReplica.size() &&
         std::ranges::all_of(names, [&](const std::string& name) {
           return name.starts_with(prefix + std::string(kReplica));
         }))
    prefix += kReplica;
  return prefix;
}

// The words that lead to the embedding, `outer` among them; nothing if none do.
std::optional<std::string> find_prefix(
    const std::vector<std::string>& names,
    const std::vector<std::string_view>& outer, const Family* likely,
    bool has_inner) {
  const auto embedding = std::ranges::find_if(names, is_embedding);
  if (embedding == names.end()) return std::nullopt;
  const bool has_outer = std::ranges::any_of(outer, [&](std::string_view word) {
    return embedding->starts_with(word);
  });
  if (!has_outer && !has_inner) return std::nullopt;
  std::string prefix;
  for (size_t words = 0; words <= kMostWords; ++words) {
    if (is_any_family(behind(names, prefix), likely)) return prefix;
    const std::string_view rest =
        std::string_view(*embedding).substr(prefix.size());
    const auto next = std::ranges::find_if(
        outer, [&](std::string_view word) { return rest.starts_with(word); });
    if (next == outer.end()) return std::nullopt;
    prefix += *next;
  }
  return std::nullopt;
}

// The roles of a run's models of which there is a tensor here.
std::vector<std::string_view> roles_in(const Catalog& catalog) {
  std::vector<std::string_view> found;
  if (!catalog.run) return found;
  for (const std::string& role : catalog.run->models)
    if (std::ranges::any_of(catalog.tensors, [&](const Tensor& tensor) {
          return tensor.kind == Kind::model && tensor.name.starts_with(role);
        }))
      found.push_back(role);
  return found;
}

// Beside the model in it, torch's AveragedModel counts what it averaged.
void leave_counter(Catalog& catalog) {
  std::erase_if(catalog.tensors, [](const Tensor& tensor) {
    return tensor.kind == Kind::model && tensor.name == "n_averaged" &&
           tensor.shape.empty();
  });
}

}  // namespace

std::string numberless(std::string_view name) {
  std::string text;
  size_t depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (c == '{' && depth++ == 0) text += '#';
    const bool digit = c >= '0' && c <= '9';
    const bool starts = i == 0 || name[i - 1] == '.';
    if (depth == 0 && digit && starts) {
      size_t end = i;
      while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
      if (end == name.size() || name[end] == '.') {
        text += '#';
        i = end - 1;
        continue;
      }
    }
    if (depth == 0) text += c;
    if (c == '}' && depth > 0) --depth;
  }
  return text;
}

std::string without_wrappers(std::string name) {
  for (const std::string_view word : kInner)
    for (size_t at = 0; (at = name.find(word, at)) != name.npos;)
      if (at == 0 || name[at - 1] == '.')
        name.erase(at, word.size());
      else
        at += word.size();
  return name;
}

bool unwrap(Catalog& catalog, const Family* likely, Words words) {
  std::vector<std::string_view> outer = roles_in(catalog);
  if (outer.size() > 1) return false;
  outer.insert(outer.end(), std::begin(kOuter), std::end(kOuter));
  std::vector<std::string> names;
  bool has_inner = false;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::model) continue;
    names.push_back(without_wrappers(tensor.name));
    has_inner = has_inner || names.back() != tensor.name;
  }
  auto prefix = find_prefix(names, outer, likely, has_inner);
  if (!prefix && words == Words::kAny) prefix = find_common(names, likely);
  const bool known = prefix.has_value();
  if (!prefix && words == Words::kKnown) return false;
  if (!prefix) prefix = replica_prefix(names);
  if (prefix->empty() && !has_inner) return false;
  const auto unwrapped = [&](const std::string& name) {
    std::string inner = without_wrappers(name);
    return inner.starts_with(*prefix) ? inner.substr(prefix->size()) : name;
  };
  std::unordered_set<std::string> taken;
  uint64_t changed = 0;
  std::string example;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::model) {
      taken.insert(tensor.name);
      continue;
    }
    const std::string name = unwrapped(tensor.name);
    if (!taken.insert(name).second) return false;  // two names would become one
    if (name == tensor.name) continue;
    ++changed;
    if (example.empty() && tensor.name.ends_with(name))
      example = tensor.name.substr(0, tensor.name.size() - name.size());
  }
  if (changed == 0) return false;
  for (Tensor& tensor : catalog.tensors) {
    if (tensor.kind == Kind::model) tensor.name = unwrapped(tensor.name);
    if (!tensor.param.empty()) tensor.param = unwrapped(tensor.param);
  }
  for (Claim& claim : catalog.claims) {
    claim.exact = unwrapped(claim.exact);
    claim.rounded = unwrapped(claim.rounded);
  }
  catalog.skeleton.reset();
  if (known) catalog.dialect = "hf";
  if (known && prefix->ends_with("module.")) leave_counter(catalog);
  if (example.empty()) example = *prefix;
  const char* const left =
      known ? "what is left are transformers'" : "a wrapper added it";
  catalog.assumptions.push_back(
      example.empty()
          ? fmt::format("words of wrappers are taken out of {} names: {}",
                        changed, left)
          : fmt::format("the prefix '{}' is taken off {} names: {}", example,
                        changed, left));
  return true;
}

}  // namespace ckpt::families
