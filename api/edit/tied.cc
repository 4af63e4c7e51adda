// SPDX-License-Identifier: Apache-2.0
#include "api/edit/tied.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "api/edit/config_edit.h"
#include "ckpt/error.h"
#include "containers/hf/hf.h"
#include "convert/whole/whole.h"
#include "models/hf_names.h"

namespace ckpt::library {
namespace {

constexpr char kKey[] = "tie_word_embeddings";

using Tensors = std::vector<const Tensor*>;

Tensors with_ending(const Catalog& catalog,
                    std::initializer_list<std::string_view> endings) {
  Tensors found;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model &&
        std::ranges::any_of(endings, [&](std::string_view ending) {
          return tensor.name.ends_with(ending);
        }))
      found.push_back(&tensor);
  return found;
}

std::string_view option(bool tied) { return tied ? "--tie" : "--untie"; }

// The only one there is; null if there is none.
const Tensor* only(const Tensors& found, std::string_view what,
                   const Catalog& catalog, bool tied) {
  if (found.size() > 1)
    throw unfaithful_error({catalog.path, found[1]->name},
                           "{}: is one of {} {}: the model has several parts",
                           option(tied), found.size(), what);
  return found.empty() ? nullptr : found[0];
}

// Says so wherever a language model's configuration stands.
bool say(Catalog& catalog, bool tied) {
  bool said = false;
  for (Sidecar& sidecar : catalog.sidecars)
    if (sidecar.name == "config.json")
      edit_config(sidecar, [&](ConfigTable& config) {
        if (!config.is_object()) return false;
        config[kKey] = tied;
        for (const char* part : {"text_config", "llm_config"})
          if (const auto found = config.find(part);
              found != config.end() && found->is_object())
            (*found)[kKey] = tied;
        said = true;
        return true;
      });
  return said;
}

// The name that the configuration's model has for an untied head: the tensor
// that it lacks now. Without rules, the one of nearly all of them.
std::string name_of_head(const Catalog& catalog, const Tensor& embedding) {
  const families::Whole whole = families::check_whole(catalog);
  for (const Problem& problem : whole.problems)
    if (problem.kind == "missing_tensor" &&
        (problem.tensor.ends_with("lm_head.weight") ||
         problem.tensor.ends_with("embed_out.weight")))
      return problem.tensor;
  const auto words = families::first_words(formats::config_json_of(catalog));
  const bool other_head =
      !words.empty() && std::ranges::count(words, "lm_head") == 0;
  if (whole.basis != families::Whole::Basis::kRules && !other_head &&
      (embedding.name.ends_with("embed_tokens.weight") ||
       embedding.name.ends_with("wte.weight")))
    return "lm_head.weight";
  throw unfaithful_error({catalog.path, embedding.name},
                         "--untie: this model's class has no head of its own "
                         "beside it");
}

}  // namespace

Tensors heads_of(const Catalog& catalog) {
  return with_ending(catalog, {"lm_head.weight", "embed_out.weight",
                               "output_layer.weight", "proj_out.weight"});
}

Tensors embeddings_of(const Catalog& catalog) {
  return with_ending(catalog, {"embed_tokens.weight", "embed_in.weight",
                               "wte.weight", "word_embeddings.weight"});
}

std::string set_tied(Catalog& catalog, bool tied) {
  take_config(catalog);
  const Tensor* head = only(heads_of(catalog), "output layers", catalog, tied);
  const Tensor* embedding =
      only(embeddings_of(catalog), "embeddings", catalog, tied);
  if (!embedding)
    throw unfaithful_error({catalog.path, {}},
                           "{}: there is no embedding of a known name",
                           option(tied))
        .with_hint("it holds for transformers' names: convert to those first");
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::optim && (tensor.param == embedding->name ||
                                       (head && tensor.param == head->name)))
      throw unfaithful_error({catalog.path, tensor.name},
                             "{}: this optimizer state is of an embedding that "
                             "was {} until now",
                             option(tied), tied ? "apart" : "shared")
          .with_hint("--model-only leaves it out");
  if (!say(catalog, tied))
    throw unfaithful_error({catalog.path, {}},
                           "{}: there is no config.json to say so",
                           option(tied))
        .with_hint("--config-from DIR gives one");
  if (!tied && head)
    return fmt::format("{} is kept beside {}: config.json says {} false",
                       head->name, embedding->name, kKey);
  if (!tied) {
    Tensor copy = *embedding;
    copy.name = name_of_head(catalog, *embedding);
    copy.tie = 0;
    const std::string done =
        fmt::format("{} is a copy of {}: config.json says {} false", copy.name,
                    embedding->name, kKey);
    catalog.tensors.push_back(std::move(copy));
    return done;
  }
  if (!head) return fmt::format("config.json says {} true", kKey);
  const std::string name = head->name;
  catalog.redundant.push_back({*head, {}, *embedding, "--tie leaves it out"});
  std::string done =
      fmt::format("{} is {} and left out: config.json says {} true", name,
                  embedding->name, kKey);
  std::erase_if(catalog.tensors,
                [&](const Tensor& tensor) { return tensor.name == name; });
  return done;
}

}  // namespace ckpt::library
