// SPDX-License-Identifier: Apache-2.0
#include "convert/adapters/peft_trainers.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "convert/config/gguf.h"
#include "lib/text/number.h"
#include "models/view.h"

namespace ckpt::families {
namespace {

// How the rows of a trained matrix stand.
enum class Rows : uint8_t {
  kSame,
  kQuery,  // rotary pairs are adjacent, in torchtune's models of kPairs
  kKey,
  kFused,  // rows of q, k and v one after the other
};

struct Row {
  std::string_view own, hf;  // {l}: a layer
  Rows rows = Rows::kSame;
};

constexpr Row kTorchtune[] = {
    {"tok_embeddings", "model.embed_tokens"},
    {"output", "lm_head"},
    {"layers.{l}.attn.q_proj", "model.layers.{l}.self_attn.q_proj",
     Rows::kQuery},
    {"layers.{l}.attn.k_proj", "model.layers.{l}.self_attn.k_proj", Rows::kKey},
    {"layers.{l}.attn.v_proj", "model.layers.{l}.self_attn.v_proj"},
    {"layers.{l}.attn.output_proj", "model.layers.{l}.self_attn.o_proj"},
    {"layers.{l}.mlp.w1", "model.layers.{l}.mlp.gate_proj"},
    {"layers.{l}.mlp.w2", "model.layers.{l}.mlp.down_proj"},
    {"layers.{l}.mlp.w3", "model.layers.{l}.mlp.up_proj"},
};

constexpr Row kLitgpt[] = {
    {"lm_head", "lm_head"},
    {"transformer.h.{l}.attn.qkv", "model.layers.{l}.self_attn.", Rows::kFused},
    {"transformer.h.{l}.attn.attn", "model.layers.{l}.self_attn.",
     Rows::kFused},
    {"transformer.h.{l}.attn.proj", "model.layers.{l}.self_attn.o_proj"},
    {"transformer.h.{l}.mlp.fc_1", "model.layers.{l}.mlp.gate_proj"},
    {"transformer.h.{l}.mlp.fc_2", "model.layers.{l}.mlp.up_proj"},
    {"transformer.h.{l}.mlp.proj", "model.layers.{l}.mlp.down_proj"},
};

// Models (model_type) for which torchtune rotates adjacent rows, and those for
// which it rotates halves as transformers does.
constexpr std::string_view kPairs[] = {"llama", "mistral", "gemma", "gemma2"};
constexpr std::string_view kHalves[] = {"qwen2", "qwen3"};

// "layers.3.attn" -> "layers.{l}.attn", and the number.
std::string without_layer(const std::string& module, std::string& layer) {
  std::string key;
  for (size_t at = 0; at <= module.size();) {
    const size_t end = std::min(module.find('.', at), module.size());
    const std::string word = module.substr(at, end - at);
    const bool number = text::is_digits(word) && layer.empty();
    if (number) layer = word;
    key += (at == 0 ? "" : ".") + (number ? std::string("{l}") : word);
    at = end + 1;
  }
  return key;
}

template <size_t Size>
std::optional<Row> find_row(const Row (&rows)[Size], const std::string& key) {
  const auto found = std::ranges::find(rows, key, &Row::own);
  return found == std::end(rows) ? std::nullopt : std::optional(*found);
}

class Trained {
 public:
  Trained(const Catalog& source, const Tensor& tensor, const peft::Part& part,
          const peft::Config& config, const AdapterBase& base)
      : source_(source),
        tensor_(tensor),
        part_(part),
        config_(config),
        base_(base) {}

  std::vector<Tensor> run() {
    std::string layer;
    const std::string key = without_layer(part_.module, layer);
    const auto row = tune()   ? find_row(kTorchtune, key)
                     : gguf() ? row_of_rules(key)
                              : find_row(kLitgpt, key);
    if (!row)
      fail(
          "transformers' model has no such module, or its counterpart is not "
          "known");
    std::string hf(row->hf);
    if (const size_t at = hf.find("{l}"); at != hf.npos)
      hf.replace(at, 3, layer);
    if (row->rows == Rows::kFused) return parts(hf);
    return {made(hf, arranged(row->rows))};
  }

 private:
  bool tune() const {
    return part_.dialect->modules == peft::Modules::kTorchtune;
  }
  bool gguf() const { return part_.dialect->modules == peft::Modules::kGguf; }

  // llama.cpp's, by the rule that the whole weight has in the base's family.
  std::optional<Row> row_of_rules(const std::string& key) const {
    const Dialect* dialect =
        base_.family ? base_.family->dialect(kGguf) : nullptr;
    if (dialect == nullptr)
      fail("there are no rules of llama.cpp's for the base's family");
    constexpr std::string_view kEnding = ".weight";
    for (const Rule& rule : dialect->rules) {
      if (rule.to != key + std::string(kEnding) || rule.hf.size() != 1 ||
          !rule.each.empty() || rule.ops.size() > 1)
        continue;
      Row row{rule.to, rule.hf[0]};
      row.hf.remove_suffix(kEnding.size());
      if (rule.ops.empty()) return row;
      if (rule.ops[0].name != "rope_interleave") continue;
      const bool groups = rule.ops[0].params.value("heads", "$nh") == "$ng";
      row.rows = groups ? Rows::kKey : Rows::kQuery;
      return row;
    }
    return std::nullopt;
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw unfaithful_error({source_.path, tensor_.name},
                           "this part of the adapter has no place: {}", why)
        .with_hint(std::string(part_.dialect->owner) +
                   " itself may add it to its base");
  }

  Tensor made(const std::string& module, const View& view) const {
    Tensor made = tensor_;
    if (part_.embedding) {
      const bool a = part_.role == peft::Role::kA;
      if (a && view.shape().size() != 2)
        fail("its shape is " + to_string(view.shape()));
      (a ? view.permute({1, 0}) : view).into(made, kAnyPieces);
      made.name = fmt::format("base_model.model.{}.lora_embedding_{}", module,
                              a ? 'A' : 'B');
      made.tp = {};
      made.tie = 0;
      return made;
    }
    view.into(made, kAnyPieces);
    const bool magnitude = part_.role == peft::Role::kMagnitude;
    made.name = fmt::format("base_model.model.{}.{}", module,
                            magnitude ? "lora_magnitude_vector"
                            : part_.role == peft::Role::kA ? "lora_A.weight"
                                                           : "lora_B.weight");
    made.tp = {};
    made.tie = 0;
    return made;
  }

  uint64_t number(const char* key, const char* instead) const {
    const Json& values = base_.values.values;
    for (const char* name : {key, instead}) {
      const auto found = values.find(name);
      if (found != values.end() && found->is_number_unsigned() &&
          found->get<uint64_t>() != 0)
        return found->get<uint64_t>();
    }
    throw unfaithful_error({source_.path, tensor_.name},
                           "nothing says the base's {}, by which its rows are "
                           "arranged",
                           key)
        .with_hint("--config-from DIR names the folder of its config.json");
  }

  uint64_t heads() const {
    return number("num_attention_heads", "num_attention_heads");
  }
  uint64_t groups() const {
    return number("num_key_value_heads", "num_attention_heads");
  }

  bool in_pairs() const {
    const Json& values = base_.values.values;
    const auto found = values.find("model_type");
    const std::string type = found != values.end() && found->is_string()
                                 ? found->get<std::string>()
                                 : std::string();
    const auto among = [&](const auto& types) {
      return std::ranges::find(types, type) != std::end(types);
    };
    if (gguf() || among(kPairs)) return true;
    if (among(kHalves)) return false;
    if (type.empty()) number("model_type", "model_type");
    fail(fmt::format("it is not known how {} arranges the rotary rows of {}",
                     part_.dialect->owner, type));
  }

  // lora_B and magnitudes have the matrix's rows.
  View arranged(Rows rows) const {
    const View view = View::of(tensor_);
    const bool rotary = rows == Rows::kQuery || rows == Rows::kKey;
    if (!rotary || part_.role == peft::Role::kA || !in_pairs()) return view;
    const uint64_t count = rows == Rows::kQuery ? heads() : groups();
    const uint64_t all = view.shape()[0];
    if (all % (2 * count) != 0)
      fail(fmt::format("{} rows are not those of {} heads", all, count));
    Shape cut{count, all / count / 2, 2};
    std::vector<uint32_t> axes{0, 2, 1};
    for (size_t d = 1; d < view.shape().size(); ++d) {
      cut.push_back(view.shape()[d]);
      axes.push_back(static_cast<uint32_t>(axes.size()));
    }
    return view.reshape(cut).permute(axes).reshape(view.shape());
  }

  // litgpt stacks lora_A of what has factors, and their rows of lora_B.
  std::vector<Tensor> parts(const std::string& attention) const {
    const View view = View::of(tensor_);
    std::vector<std::string> names = config_.parts;
    if (names.empty()) names = {"q", "k", "v"};
    std::vector<uint64_t> sizes;
    uint64_t sum = 0;
    for (const std::string& name : names) {
      sizes.push_back(size_of(name));
      if (sizes.back() > view.shape()[0]) sizes.back() = view.shape()[0];
      sum += sizes.back();
    }
    if (sum != view.shape()[0])
      fail(
          fmt::format("it has {} rows, those of {} are {}: lora_query, "
                      "lora_key and lora_value of hyperparameters.yaml say "
                      "which have factors",
                      view.shape()[0], fmt::join(names, ", "), sum));
    std::vector<Tensor> all;
    uint64_t begin = 0;
    for (size_t i = 0; i < names.size(); begin += sizes[i++])
      all.push_back(
          made(attention + names[i] + "_proj", view.slice(0, begin, sizes[i])));
    return all;
  }

  uint64_t size_of(const std::string& name) const {
    if (part_.role == peft::Role::kA) return config_.rank;
    const Json& values = base_.values.values;
    const auto size = values.find("head_dim");
    const uint64_t each = size != values.end() && size->is_number_unsigned()
                              ? size->get<uint64_t>()
                              : number("hidden_size", "hidden_size") / heads();
    return each * (name == "q" ? heads() : groups());
  }

  const Catalog& source_;
  const Tensor& tensor_;
  const peft::Part& part_;
  const peft::Config& config_;
  const AdapterBase& base_;
};

}  // namespace

std::vector<Tensor> peft_of_trainer(const Catalog& source, const Tensor& tensor,
                                    const peft::Part& part,
                                    const peft::Config& config,
                                    const AdapterBase& base) {
  if (tensor.shape.empty())
    throw input_error({source.path, tensor.name}, "has no dimensions");
  return Trained(source, tensor, part, config, base).run();
}

}  // namespace ckpt::families
