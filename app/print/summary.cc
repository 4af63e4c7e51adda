// SPDX-License-Identifier: Apache-2.0
// The block at the top of `inspect`: where, what and how large.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "api/deltas.h"
#include "api/edit/layer_place.h"
#include "app/print/console.h"
#include "app/print/models.h"
#include "app/print/quantized.h"
#include "app/print/report.h"
#include "app/print/table.h"
#include "app/print/view.h"
#include "ckpt/error.h"
#include "convert/config/dialects.h"
#include "convert/config/facts.h"
#include "convert/config/values.h"
#include "formats/peft/settings.h"
#include "lib/decoding.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/words.h"
#include "lib/unruled.h"
#include "models/numbers.h"

namespace ckpt::app {
namespace {

using text::iec_size;
using text::printable;

// "21 model, 63 optimizer"
std::string kinds_text(const Totals& sums) {
  std::string text;
  const auto add = [&](uint64_t count, std::string_view kind) {
    if (count == 0) return;
    if (!text.empty()) text += ", ";
    text += fmt::format("{} {}", grouped(count), kind);
  };
  add(sums.model, "model");
  add(sums.optim, "optimizer");
  add(sums.other, "other");
  return text.empty() ? "none" : text;
}

std::string format_text(const Catalog& catalog) {
  std::string text = printable(catalog.format);
  if (!catalog.version.empty()) text += " " + printable(catalog.version);
  return text;
}

// What the files name, else the family that the configuration beside them is
// of.
std::string family_name(const Catalog& catalog) {
  if (!catalog.family.empty()) return printable(catalog.family);
  try {
    if (const auto family = families::find_family(catalog, {}))
      return printable(family->name());
  } catch (const Error&) {
    // Do without: whatever needs a damaged configuration reports it.
  }
  return "unknown";
}

std::string family_text(const Catalog& catalog) {
  if (catalog.family.empty() && catalog.dialect.empty()) return "";
  std::string text = family_name(catalog);
  if (!catalog.dialect.empty())
    text += " (" + printable(catalog.dialect) + " names)";
  return text;
}

// "bf16 16.8 KiB, f32 101.1 KiB", the largest first.
std::string dtypes_text(const Catalog& catalog) {
  // dtypes in the order of the enum, then types of blocks.
  using StoredAs = std::pair<std::optional<DType>, std::string_view>;
  const auto less = [](const StoredAs& a, const StoredAs& b) {
    return a.first && b.first   ? *a.first < *b.first
           : a.first || b.first ? a.first.has_value()
                                : a.second < b.second;
  };
  std::map<StoredAs, uint64_t, decltype(less)> bytes(less);
  for (const Tensor& tensor : catalog.tensors) {
    StoredAs key(tensor.dtype, stored_type(tensor, catalog));
    if (blocks_of(tensor, catalog)) key.first.reset();
    uint64_t& sum = bytes[key];
    sum = checked_add(sum, stored_bytes(tensor, catalog)).value_or(UINT64_MAX);
  }
  std::vector<std::pair<StoredAs, uint64_t>> sorted(bytes.begin(), bytes.end());
  std::ranges::stable_sort(sorted, std::greater{},
                           &std::pair<StoredAs, uint64_t>::second);
  std::string text;
  for (const auto& [key, sum] : sorted)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key.second,
                        iec_size(sum));
  return text;
}

// What configurations call each number.
struct Number {
  std::string_view shown;
  std::array<std::string_view, 6> keys;
};
constexpr auto kNumbers = std::to_array<Number>({
    {"layers",
     {"layers", "num_hidden_layers", "num_layers", "n_layers", "n_layer"}},
    {"hidden", {"hidden_size", "model_dim", "d_model", "dim", "n_embd"}},
    {"heads",
     {"heads", "num_attention_heads", "num_attn_heads", "n_heads", "n_head"}},
    {"kv heads",
     {"num_key_value_heads", "num_query_groups", "kv_heads", "n_kv_heads"}},
    {"experts",
     {"experts", "num_local_experts", "num_experts", "n_routed_experts",
      "num_moe_experts"}},
});

// A count, whether its text was JSON (unsigned) or a pickle or YAML (signed).
template <class Json>
bool is_count(const Json& value) {
  return value.is_number_unsigned() ||
         (value.is_number_integer() && value.template get<int64_t>() >= 0);
}

std::optional<uint64_t> number_in(const families::Json& values,
                                  std::string_view key) {
  if (key.empty() || !values.is_object()) return std::nullopt;
  const auto found = values.find(std::string(key));
  if (found == values.end() || !is_count(*found)) return std::nullopt;
  return found->get<uint64_t>();
}

// What Lightning's save_hyperparameters() kept.
families::Json hyper_parameters(const Catalog& catalog) {
  constexpr uint64_t kBudget = 1 << 16;
  const ObjectValues values(catalog);
  for (const Object& object : catalog.objects)
    if (object.name == "hyper_parameters" && object.document)
      return families::Json(values.json(object, kBudget));
  return {};
}

// What the ledger of facts knows about the model, else its own configuration.
families::Json configuration(const Catalog& catalog) {
  try {
    families::Json values = families::Json::object();
    for (const auto& [name, fact] : families::facts_of(catalog))
      if (is_count(fact.value)) values[name] = fact.value;
    if (values.contains("layers")) return values;
  } catch (const Error&) {
    // Do without: whatever needs a damaged configuration reports it.
  }
  constexpr std::string_view kSides[] = {"mcore", "hf", "fairseq2", "meta",
                                         "olmo_core"};
  const auto read = [&](std::string_view side) -> families::Json {
    try {
      return families::values_of(catalog, side).values;
    } catch (const Error&) {
      return {};  // a command that needs it reports what is wrong
    }
  };
  if (!catalog.dialect.empty())
    if (auto own = read(catalog.dialect); !own.empty()) return own;
  for (const std::string_view side : kSides)
    if (auto values = read(side); !values.empty()) return values;
  return hyper_parameters(catalog);
}

// The number of layers by the names: layers.0 … layers.31, or a stacked
// dimension.
uint64_t counted_layers(const Catalog& catalog) {
  uint64_t most = 0;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::model) continue;
    most = std::max<uint64_t>(most, library::stacked_layers(catalog, tensor));
    if (const auto layer = library::layer_of(tensor))
      most = std::max(most, *layer + 1ul);
  }
  return most;
}

// The embedding, whose rows are what a vocabulary was padded to.
const Tensor* embedding_of(const Catalog& catalog) {
  constexpr std::string_view kNames =
      "word_embeddings.weight embed_tokens.weight tok_embeddings.weight "
      "wte.weight embed_in.weight embeddings.weight .embedding.weight "
      ".emb.weight decoder_frontend.embed.weight";
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model && tensor.shape.size() == 2 &&
        tensor.name.find("position") == tensor.name.npos &&
        tensor.name.find("token_type") == tensor.name.npos &&
        text::ends_with_any(tensor.name, kNames))
      return &tensor;
  return nullptr;
}

// For models without a configuration: the embedding's width, if a norm of the
// model has it too. A narrower embedding is projected first.
std::optional<uint64_t> width_by_shapes(const Catalog& catalog) {
  const Tensor* embedding = embedding_of(catalog);
  if (!embedding) return std::nullopt;
  const Shape width{embedding->shape[1]};
  const bool found = std::ranges::any_of(catalog.tensors, [&](const Tensor& t) {
    return t.kind == Kind::model && t.shape == width &&
           (t.name.ends_with("norm.weight") || t.name.ends_with("ln_f.weight"));
  });
  return found ? std::optional(width[0]) : std::nullopt;
}

std::string vocabulary_text(const families::Json& values,
                            const Catalog& catalog) {
  const Tensor* embedding = embedding_of(catalog);
  const uint64_t rows = embedding ? embedding->shape[0] : 0;
  const auto used = number_in(values, "vocab_size");
  if (used && *used >= rows) return "vocabulary " + grouped(*used);
  if (rows == 0) return "";
  if (!used) return "vocabulary " + grouped(rows);
  return fmt::format("vocabulary {} + {} of padding", grouped(*used),
                     text::counted(rows - *used, "row"));
}

// "32 layers, hidden 4,096, 32 heads, 8 kv heads, vocabulary 32,000"
std::string model_text(const Catalog& catalog) {
  const families::Json values = configuration(catalog);
  std::string text;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  };
  for (const Number& number : kNumbers) {
    std::optional<uint64_t> value;
    for (const std::string_view key : number.keys)
      if (!value) value = number_in(values, key);
    if (!value && number.shown == "layers") value = counted_layers(catalog);
    if (!value && number.shown == "hidden") value = width_by_shapes(catalog);
    if (!value || *value == 0) continue;
    add(number.shown == "hidden" ? fmt::format("hidden {}", grouped(*value))
        : *value == 1            ? fmt::format("1 {}", number.shown.substr(
                                                           0, number.shown.size() - 1))
                      : fmt::format("{} {}", grouped(*value), number.shown));
  }
  add(vocabulary_text(values, catalog));
  return text;
}

// The digits at the end of "iter_0000005", "step_5", "checkpoint-500".
std::optional<uint64_t> number_of_name(const std::string& path) {
  constexpr std::string_view kStems[] = {"iter_", "step_", "checkpoint-",
                                         "global_step", "step"};
  const std::string name = io::base_name(path);
  for (const std::string_view stem : kStems) {
    if (!name.starts_with(stem)) continue;
    const std::string digits = name.substr(stem.size());
    if (digits.empty() || digits.size() > 18 ||
        digits.find_first_not_of("0123456789") != digits.npos)
      continue;
    return std::stoull(digits);
  }
  return std::nullopt;
}

std::string iteration_text(const Catalog& catalog) {
  const std::string trainer =
      catalog.run ? " (" + printable(catalog.run->trainer) + ")" : "";
  if (catalog.run && catalog.run->step)
    return grouped(*catalog.run->step) + trainer;
  const ObjectValues values(catalog);
  for (const Object& object : catalog.objects)
    if (object.name == "iteration" && object.document)
      if (const auto value = values.json(object, 8); is_count(value))
        return grouped(value.get<uint64_t>()) + trainer;
  if (const auto number = number_of_name(catalog.path))
    return grouped(*number) + trainer;
  return catalog.run ? "unknown" + trainer : "";
}

// "just now", "5 minutes ago", "3 days ago"
std::string age_text(int64_t seconds) {
  struct Unit {
    int64_t seconds;
    std::string_view name;
  };
  constexpr Unit kUnits[] = {{86400, "day"}, {3600, "hour"}, {60, "minute"}};
  for (const Unit& unit : kUnits)
    if (seconds >= 2 * unit.seconds)
      return text::counted(static_cast<uint64_t>(seconds / unit.seconds),
                           unit.name) +
             " ago";
  return "just now";
}

// When the newest of a few files was written.
std::string saved_text(const Catalog& catalog) {
  constexpr size_t kMost = 16;  // each may cost a metadata server's reply
  int64_t newest = 0;
  const size_t step = catalog.files.size() / kMost + 1;
  for (size_t i = 0; i < catalog.files.size(); i += step) {
    struct stat info = {};
    const std::string& path = catalog.files[i].path;
    if (io::stat_any(path, info))
      newest = std::max<int64_t>(newest, info.st_mtime);
  }
  if (newest == 0) return "";
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  return age_text(now.count() - newest);
}

}  // namespace

namespace {

// What ranks share in a way that nobody knows.
std::string unruled_text(const Catalog& catalog) {
  const std::vector<Unruled> unruled = unruled_of(catalog);
  if (unruled.empty()) return "";
  const auto differ = std::ranges::count_if(
      unruled, [](const Unruled& one) { return one.different > 1; });
  return fmt::format(
      "{}{}: shown and counted as one rank has them (--shard-dims)",
      text::counted(unruled.size(), "tensor"),
      differ == 0 ? " may be slices"
                  : fmt::format(", {} of them different slices", differ));
}

}  // namespace

std::vector<SummaryRow> summary_rows(const Catalog& catalog) {
  const Totals sums = totals(catalog);
  std::vector<SummaryRow> rows;
  const auto row = [&](std::string_view label, std::string value) {
    if (!value.empty()) rows.push_back({label, std::move(value)});
  };
  row("path", printable(catalog.path));
  if (catalog.root != catalog.path) row("found in", printable(catalog.root));
  row("format", format_text(catalog));
  row("family", family_text(catalog));
  if (const auto adapter = peft::config_of(catalog))
    row("adapter", printable(peft::describe(*adapter)));
  const std::string delta = library::delta_text(catalog);
  row("delta", delta);
  if (delta.empty()) row("model", model_text(catalog));
  row("iteration", iteration_text(catalog));
  row("topology", to_string(catalog.topology));
  row("tensors", kinds_text(sums));
  const auto count_text = [](uint64_t count) {
    return count < 1000
               ? grouped(count)
               : fmt::format("{} ({})", grouped(count), si_count(count));
  };
  if (sums.parameters != 0) {
    const auto used = active_parameters(catalog, sums);
    row("parameters",
        count_text(sums.parameters) +
            (used ? ", active " + count_text(*used) : std::string()));
  }
  row("models", models_text(catalog));
  row("no rule", unruled_text(catalog));
  row("quantized", quantized_text(catalog));
  row("size",
      fmt::format("{} in {}", iec_size(sums.bytes),
                  sums.files == 1 ? "1 file" : grouped(sums.files) + " files"));
  row("dtypes", dtypes_text(catalog));
  row("saved", saved_text(catalog));
  if (!catalog.objects.empty())
    row("objects", grouped(catalog.objects.size()) + " (--objects)");
  return rows;
}

std::string summary_text(const Catalog& catalog, size_t width) {
  Table table({Align::kLeft, Align::kLeft});
  constexpr size_t kLabels = 12;
  // A long value continues below itself. A path is never broken, because people
  // copy it.
  for (SummaryRow& row : summary_rows(catalog)) {
    std::string& value = row.value;
    std::string head = styled(row.label, Style::kBold);
    while (!value.empty()) {
      size_t end = value.size();
      if (width > 2 * kLabels && end + kLabels > width && row.label != "path")
        if (const size_t at = value.rfind(", ", width - kLabels - 1);
            at != value.npos)
          end = at + 2;
      std::string part = value.substr(0, end);
      part.erase(part.find_last_not_of(' ') + 1);
      table.row({head, std::move(part)});
      value.erase(0, end);
      head.clear();
    }
  }
  return table.text(0);
}

}  // namespace ckpt::app
