// SPDX-License-Identifier: Apache-2.0
#include "api/edit/vocabulary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "api/edit/config_edit.h"
#include "ckpt/error.h"
#include "convert/tokens.h"
#include "lib/text/words.h"
#include "models/view.h"

namespace ckpt::library {
namespace {

using families::View;

// The modules of transformers whose weights and biases have a row for each
// token: embeddings, heads, and those that a multi-token predictor has again.
constexpr std::string_view kWithRows =
    "embed_tokens lm_head word_embeddings wte embed_in embed_out embeddings "
    "shared embedding shared_head head embed predictions";

// Objects of config.json that describe the language model.
constexpr std::array<std::string_view, 6> kText = {
    "text_config", "llm_config", "language_config",
    "decoder",     "encoder",    "thinker_config"};

bool has_rows(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return false;
  const std::string_view last = name.substr(dot + 1);
  if (last != "weight" && last != "bias") return false;
  const std::string_view module = name.substr(0, dot);
  if (module.ends_with("predictions.decoder")) return true;
  return text::has_word(kWithRows, module.substr(module.rfind('.') + 1));
}

const std::string& parameter_of(const Tensor& tensor) {
  return tensor.kind == Kind::optim ? tensor.param : tensor.name;
}

// All objects that may say vocab_size: config.json itself and its language
// models.
std::vector<ConfigTable*> text_tables(ConfigTable& config) {
  std::vector<ConfigTable*> tables;
  if (!config.is_object()) return tables;
  tables.push_back(&config);
  for (size_t i = 0; i < tables.size() && tables.size() < 16; ++i)
    for (const std::string_view key : kText)
      if (const auto found = tables[i]->find(key);
          found != tables[i]->end() && found->is_object())
        tables.push_back(&*found);
  return tables;
}

// config.json and all objects in it: a model's part may stand under any key.
// Tensors are cut by their number of rows, wherever they are, and whoever says
// that number follows.
std::vector<ConfigTable*> all_tables(ConfigTable& config) {
  constexpr size_t kMost = 1000;
  std::vector<ConfigTable*> tables;
  if (!config.is_object()) return tables;
  tables.push_back(&config);
  for (size_t i = 0; i < tables.size(); ++i)
    for (auto& [key, value] : tables[i]->items())
      if (value.is_object() && key != "quantization_config" &&
          tables.size() < kMost)
        tables.push_back(&value);
  return tables;
}

using Tables = std::vector<ConfigTable*> (*)(ConfigTable&);

std::set<uint64_t> sizes_said(const Catalog& catalog, Tables tables_of) {
  std::set<uint64_t> sizes;
  for (const Sidecar& sidecar : catalog.sidecars) {
    if (!is_config_file(sidecar)) continue;
    ConfigTable config = config_of(sidecar);
    for (const ConfigTable* table : tables_of(config))
      if (const auto found = table->find("vocab_size");
          found != table->end() && found->is_number_unsigned())
        sizes.insert(found->get<uint64_t>());
  }
  return sizes;
}

bool has_table_of(const Catalog& catalog, uint64_t rows) {
  return std::ranges::any_of(catalog.tensors, [&](const Tensor& tensor) {
    return tensor.kind != Kind::optim && !tensor.shape.empty() &&
           tensor.shape[0] == rows && has_rows(tensor.name);
  });
}

// Those of the language models that are known; else of any part, as far as
// there are tensors of that many rows.
std::set<uint64_t> sizes_said(const Catalog& catalog) {
  std::set<uint64_t> sizes = sizes_said(catalog, text_tables);
  if (!sizes.empty()) return sizes;
  sizes = sizes_said(catalog, all_tables);
  std::erase_if(sizes,
                [&](uint64_t rows) { return !has_table_of(catalog, rows); });
  return sizes;
}

// What config.json says, and what the tables have.
struct Rows {
  uint64_t said = 0;
  uint64_t stored = 0;
};

// Rows before; all vocabularies of a model have as many. Where config.json says
// others than the tables have, `rows` has to be either.
Rows rows_before(Catalog& catalog, uint64_t rows) {
  const std::set<uint64_t> sizes = sizes_said(catalog);
  if (sizes.size() != 1)
    throw unfaithful_error(
        {catalog.path, {}}, "--vocab-size: config.json {}",
        sizes.empty() ? std::string("has no vocab_size that could follow")
                      : fmt::format("says vocabularies of {}",
                                    fmt::join(sizes, " and of ")));
  const uint64_t said = *sizes.begin();
  if (has_table_of(catalog, said)) return {said, said};
  std::set<uint64_t> stored;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model && tensor.shape.size() > 1 &&
        has_rows(tensor.name))
      stored.insert(tensor.shape[0]);
  if (stored.size() == 1 && (rows == said || rows == *stored.begin()))
    return {said, *stored.begin()};
  throw unfaithful_error({catalog.path, {}},
                         "--vocab-size: no embedding and no head has the {} "
                         "rows of config.json's vocab_size",
                         said)
      .with_hint(stored.size() != 1
                     ? ""
                     : fmt::format("--vocab-size {} takes all their rows, "
                                   "--vocab-size {} as many as config.json "
                                   "says",
                                   *stored.begin(), said));
}

// Checks codes of a quantized head and embeddings of each layer: nobody knows
// whether they have a row for each token.
void check_others(const Catalog& catalog, uint64_t before) {
  for (const Tensor& tensor : catalog.tensors) {
    const bool known = has_rows(parameter_of(tensor)) &&
                       !tensor.shape.empty() && tensor.shape[0] == before;
    if (known || std::ranges::find(tensor.shape, before) == tensor.shape.end())
      continue;
    throw unfaithful_error({catalog.path, tensor.name},
                           "--vocab-size: has a dimension of {}, as the "
                           "vocabulary, and is not an embedding or head of a "
                           "known name",
                           before);
  }
}

void set_rows(Catalog& catalog, Tensor& tensor, uint64_t rows) {
  const View view = View::of(tensor);
  if (rows < tensor.shape[0]) return view.slice(0, 0, rows).into(tensor);
  Shape spare = tensor.shape;
  spare[0] = rows - tensor.shape[0];
  Shape whole = tensor.shape;
  whole[0] = rows;
  if (!byte_size(tensor.dtype, whole))
    throw unfaithful_error({catalog.path, tensor.name},
                           "with {} rows it is too large", rows);
  const View zeros = View::filled(catalog, tensor.dtype, spare, 0);
  View::concat(std::array{view, zeros}, 0).into(tensor);
}

// "eos_token_id", "bos_token_id": those without a row after the cut.
void add_lost(const ConfigTable& table, uint64_t rows,
              std::set<std::string>& lost) {
  for (const auto& [key, value] : table.items()) {
    if (!key.ends_with("_token_id") && !key.ends_with("_token_index")) continue;
    const auto gone = [&](const ConfigTable& id) {
      return id.is_number_unsigned() && id.get<uint64_t>() >= rows;
    };
    if (gone(value) || (value.is_array() && std::ranges::any_of(value, gone)))
      lost.insert(key);
  }
}

// Replaces each of the sizes `before`, wherever config.json says it.
std::string follow_rows(Catalog& catalog, const std::set<uint64_t>& before,
                        uint64_t rows) {
  std::set<std::string> lost;
  for (Sidecar& sidecar : catalog.sidecars)
    if (is_config_file(sidecar))
      edit_config(sidecar, [&](ConfigTable& config) {
        for (ConfigTable* table : all_tables(config)) {
          const auto found = table->find("vocab_size");
          const bool says = found != table->end() &&
                            found->is_number_unsigned() &&
                            before.contains(found->get<uint64_t>());
          if (says) *found = rows;
          // Tokens of the whole model stand beside its language model, too.
          if (says || table == &config) add_lost(*table, rows, lost);
        }
        return true;
      });
  return lost.empty() ? std::string()
                      : fmt::format(
                            "{} of config.json: outside the new "
                            "vocabulary",
                            fmt::join(lost, ", "));
}

}  // namespace

void follow_rows_of(Catalog& catalog, uint64_t before, uint64_t rows) {
  take_config(catalog);
  follow_rows(catalog, {before}, rows);
}

bool has_row_for_each_token(std::string_view name) { return has_rows(name); }

std::string follow_vocabulary(Catalog& catalog, uint64_t rows) {
  take_config(catalog);
  for (Object& object : catalog.objects)
    if (is_config_object(object))
      edit_config(object, [&](ConfigTable& args) {
        const auto found = args.find("vocab_size");
        if (found == args.end() || !found->is_number_integer()) return false;
        *found = rows;
        return true;
      });
  return follow_rows(catalog, sizes_said(catalog), rows);
}

NewVocabulary set_vocabulary(Catalog& catalog, uint64_t rows) {
  take_config(catalog);
  const auto [said, before] = rows_before(catalog, rows);
  if (rows == said && rows == before) return {};
  NewVocabulary done;
  if (rows == before) {  // config.json alone is wrong about them
    follow_rows(catalog, {said}, rows);
    done.note = fmt::format(
        "vocabulary: config.json says {} rows now, as many as there are", rows);
    catalog.assumptions.push_back(done.note);
    return done;
  }
  check_others(catalog, before);
  locate(catalog);
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    Tensor& tensor = catalog.tensors[i];
    if (!tensor.shape.empty() && tensor.shape[0] == before &&
        has_rows(parameter_of(tensor)))
      set_rows(catalog, tensor, rows);
  }
  const std::string lost = follow_rows(catalog, {said}, rows);
  if (rows > before)
    done.warnings.push_back(fmt::format(
        "--vocab-size: new rows {} to {} are zeros: their logits are 0 and can "
        "exceed those of real tokens",
        before, rows - 1));
  if (rows < before) done.warnings = families::tokens_past(catalog, rows, true);
  if (rows < before && !lost.empty()) done.warnings.push_back(lost);
  done.note = fmt::format("vocabulary: {} of {} rows are kept{}",
                          std::min(rows, before), before,
                          rows > before ? fmt::format(", {} of zeros are put "
                                                      "behind them",
                                                      rows - before)
                                        : std::string());
  catalog.assumptions.push_back(done.note);
  return done;
}

}  // namespace ckpt::library
