// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/facts.h"

#include <cmath>

#include "ckpt/error.h"
#include "containers/torch/tensors.h"
#include "formats/megatron/model/forks.h"
#include "lib/pickle/config.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using nlohmann::json;
using pickle::Document;
using pickle::Id;
using pickle::Type;

constexpr uint64_t kMostOfAnything = uint64_t{1} << 40;
constexpr uint64_t kMostRanks = uint64_t{1} << 20;
constexpr size_t kMostShown = 60;

// The entries of the args, by name. None is absent; what is there and is
// neither that nor of the kind asked for is an error.
class Entries {
 public:
  Entries(const Document& document, Id dict, const std::string& path)
      : document_(document),
        dict_(dict),
        path_(path),
        words_(words_of_fork(document, dict, path)) {}

  std::optional<uint64_t> size(const char* key) const {
    const json found = value(key);
    if (found.is_null() || found == json(false)) return std::nullopt;
    if (found.is_boolean()) return 1;
    if (!is_whole(found)) throw not_a(key, found, "a whole number");
    if (found < 0 || found > kMostOfAnything)
      throw input_error({path_, {}}, "args.{} is {}", key, found.dump());
    return found.get<uint64_t>();
  }
  // A number of layers, rows or heads: zero counts as missing.
  std::optional<uint64_t> count(const char* key) const {
    const auto value = size(key);
    if (value && *value == 0) return std::nullopt;
    return value;
  }
  // A number of ranks along one axis: the product of three fits.
  std::optional<uint64_t> ranks(const char* key) const {
    const auto value = count(key);
    if (value && *value > kMostRanks)
      throw input_error({path_, {}}, "args.{} is {}", key, *value);
    return value;
  }
  std::optional<bool> flag(const char* key) const {
    const json found = value(key);
    if (found.is_null()) return std::nullopt;
    if (found.is_boolean()) return found.get<bool>();
    if (!found.is_number()) throw not_a(key, found, "True or False");
    return found != 0;
  }
  std::optional<DType> dtype(const char* key) const {
    const Id id = document_.find(dict_, key);
    if (!document_.is(id, Type::kGlobal)) return std::nullopt;
    return torch::as_dtype(document_, id);
  }
  // A switch, or a name: glu_activation="geglu".
  std::optional<bool> switched(const char* key) const {
    if (value(key).is_string()) return true;
    return flag(key);
  }
  // True if every n-th layer, or the layers of a list, are of another kind.
  std::optional<bool> numbered_layers() const {
    std::optional<bool> found;
    for (const char* key : {"moe_layer_freq", "linear_attention_freq"}) {
      const json each = value(key);
      if (each.is_array() && !pickle::is_foreign(each)) return true;
      if (const auto every = size(key)) found = *every > 1;
      if (found == true) return true;
    }
    if (text("heterogeneous_layers_config_path")) return true;
    if (flag("hetereogenous_dist_checkpoint") == true) return true;
    return found;
  }
  std::optional<std::string> text(const char* key) const {
    const json found = value(key);
    if (found.is_null()) return std::nullopt;
    if (!found.is_string()) throw not_a(key, found, "a text");
    return found.get<std::string>();
  }

 private:
  json value(const char* key) const {
    if (const auto word = words_.find(key); word != words_.end()) return *word;
    const Id id = document_.find(dict_, key);
    return id == pickle::kNoId ? json() : pickle::to_config(document_, id);
  }
  // 2.0 is 2, as in Python.
  static bool is_whole(const json& value) {
    if (!value.is_number_float()) return value.is_number();
    const double number = value.get<double>();
    return std::trunc(number) == number;
  }
  Error not_a(const char* key, const json& value, const char* what) const {
    const std::string shown =
        pickle::is_foreign(value)
            ? pickle::foreign_name(value)
            : value.dump(-1, ' ', true, json::error_handler_t::replace);
    return input_error({path_, {}}, "args.{} is {}, expected {}", key,
                       text::printable(shown.substr(0, kMostShown)), what);
  }

  const Document& document_;
  Id dict_;
  const std::string& path_;
  const json words_;  // a fork's, in Megatron-LM's
};

void read_model(const Entries& args, Facts& facts) {
  facts.num_layers = args.count("num_layers");
  facts.hidden_size = args.count("hidden_size");
  facts.ffn_hidden_size = args.count("ffn_hidden_size");
  facts.num_attention_heads = args.count("num_attention_heads");
  facts.num_query_groups = args.count("num_query_groups");
  // The number defaults to 1 and means nothing while the flag is off.
  if (args.flag("group_query_attention") == false)
    facts.num_query_groups = facts.num_attention_heads;
  facts.kv_channels = args.count("kv_channels");
  facts.num_experts = args.count("num_experts");
  facts.mamba_groups = args.count("mamba_num_groups");
  facts.delta_keys = args.count("linear_num_key_heads");
  facts.vocab_size = args.count("vocab_size");
  facts.padded_vocab_size = args.count("padded_vocab_size");
  facts.vocab_multiple = args.count("make_vocab_size_divisible_by");
  for (const char* name :
       {"swiglu", "gated_linear_unit", "quick_geglu", "glu_activation"}) {
    const auto gated = args.switched(name);
    if (gated) facts.gated = *gated || facts.gated.value_or(false);
  }
  facts.bias = args.flag("add_bias_linear");
  facts.untied = args.flag("untie_embeddings_and_output_weights");
  if (const auto impl = args.text("transformer_impl"))
    facts.local_spec = *impl == "local";
  facts.numbered_layers = args.numbered_layers();
  facts.params_dtype = args.dtype("params_dtype");
  if (!facts.params_dtype && args.flag("bf16") == true)
    facts.params_dtype = DType::bf16;
  if (!facts.params_dtype && args.flag("fp16") == true)
    facts.params_dtype = DType::f16;
}

void read_parallelism(const Entries& args, Facts& facts) {
  facts.tp = args.ranks("tensor_model_parallel_size");
  // Before checkpoint version 3.
  if (!facts.tp) facts.tp = args.ranks("model_parallel_size");
  facts.pp = args.ranks("pipeline_model_parallel_size");
  facts.vpp = args.ranks("virtual_pipeline_model_parallel_size");
  facts.cp = args.ranks("context_parallel_size");
  facts.ep = args.ranks("expert_model_parallel_size");
  facts.etp = args.ranks("expert_tensor_parallel_size");
  facts.dp = args.ranks("data_parallel_size");
  facts.world_size = args.count("world_size");
  if (!facts.dp && facts.world_size) {
    const uint64_t model = facts.tp.value_or(1) * facts.pp.value_or(1);
    const uint64_t other = model * facts.cp.value_or(1);
    const uint64_t dp = *facts.world_size / other;
    if (dp != 0 && dp <= kMostRanks && *facts.world_size % other == 0)
      facts.dp = dp;
  }
}

void read_buffers(const Entries& args, Facts& facts) {
  facts.distributed_optimizer = args.flag("use_distributed_optimizer");
  facts.overlap_grad_reduce = args.flag("overlap_grad_reduce");
  facts.bucket_size = args.count("ddp_bucket_size");
  facts.num_buckets = args.count("ddp_num_buckets");
  facts.grads_in_float32 = args.flag("accumulate_allreduce_grads_in_fp32");
  facts.high_bandwidth = args.flag("ddp_pad_buckets_for_high_nccl_busbw");
}

uint32_t ranks(const std::optional<uint64_t>& value) {
  return static_cast<uint32_t>(value.value_or(1));
}

}  // namespace

Id args_dict(const Document& document, Id args) {
  if (document.is(args, Type::kDict)) return args;
  if (!document.is(args, Type::kCall)) return pickle::kNoId;
  const Id state = document.call(args).state;
  return document.is(state, Type::kDict) ? state : pickle::kNoId;
}

Facts read_facts(const Document& document, Id args, const std::string& path) {
  Facts facts;
  const Id dict = args_dict(document, args);
  if (dict == pickle::kNoId) return facts;
  const Entries entries(document, dict, path);
  facts.any = true;
  read_model(entries, facts);
  read_parallelism(entries, facts);
  read_buffers(entries, facts);
  facts.iteration = entries.size("iteration");
  return facts;
}

Topology topology_of(const Facts& facts) {
  return {.tp = ranks(facts.tp),
          .pp = ranks(facts.pp),
          .dp = ranks(facts.dp),
          .ep = ranks(facts.ep)};
}

std::vector<ArgChange> topology_changes(const Facts& facts,
                                        const Topology& target,
                                        uint64_t padded_vocab_size) {
  const uint64_t cp = facts.cp.value_or(1);
  std::vector<ArgChange> changes = {
      {"tensor_model_parallel_size", target.tp},
      {"pipeline_model_parallel_size", target.pp},
      {"expert_model_parallel_size", target.ep},
      {"data_parallel_size", target.dp},
      {"world_size", cp * target.tp * target.pp * target.dp},
  };
  if (facts.tp && *facts.tp != target.tp) {
    // If it followed tp, it still does.
    if (facts.etp == facts.tp)
      changes.push_back({"expert_tensor_parallel_size", target.tp});
    changes.push_back({"model_parallel_size", target.tp});
  }
  if (facts.pp && *facts.pp != target.pp)
    for (const char* name :
         {"virtual_pipeline_model_parallel_size",
          "num_layers_per_virtual_pipeline_stage",
          "num_virtual_stages_per_pipeline_rank",
          "decoder_first_pipeline_num_layers",
          "decoder_last_pipeline_num_layers", "pipeline_model_parallel_layout"})
      changes.push_back({name, std::nullopt});
  if (padded_vocab_size != 0)
    changes.push_back({"padded_vocab_size", padded_vocab_size});
  return changes;
}

namespace {

bool is_value(const Document& document, Id id, const ArgChange& change) {
  if (change.value)
    return document.is(id, Type::kInt) &&
           document.integer(id) == static_cast<int64_t>(*change.value);
  if (!change.text.empty())
    return document.is(id, Type::kString) && document.text(id) == change.text;
  return document.is(id, Type::kNone);
}

Id add_value(Document& document, const ArgChange& change) {
  if (change.value)
    return document.add_int(static_cast<int64_t>(*change.value));
  return change.text.empty() ? document.add_none()
                             : document.add_string(change.text);
}

}  // namespace

std::vector<std::string> set_args(Document& document, Id args,
                                  const std::vector<ArgChange>& changes) {
  std::vector<std::string> changed;
  const Id dict = args_dict(document, args);
  if (dict == pickle::kNoId) return changed;
  for (const ArgChange& change : changes) {
    const Id old = document.find(dict, change.name);
    if (old == pickle::kNoId) continue;
    if (is_value(document, old, change)) continue;
    document.set(dict, change.name, add_value(document, change));
    changed.push_back(change.name);
  }
  return changed;
}

}  // namespace ckpt::megatron
