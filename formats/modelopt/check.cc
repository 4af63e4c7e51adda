// SPDX-License-Identifier: Apache-2.0
#include "formats/modelopt/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "formats/modelopt/owners.h"

namespace ckpt::modelopt {
namespace {

using Severity = Problem::Severity;

class Checker {
 public:
  Checker(Catalog& catalog, const Naming& naming, const Config& config)
      : catalog_(catalog), naming_(naming), config_(config) {}

  void run() {
    if (config_.any_model && config_.layers &&
        *config_.layers != config_.blocks.size())
      report(Severity::kDamage, "block_configs", "",
             fmt::format("config.json has {} block_configs for {} layers",
                         config_.blocks.size(), *config_.layers));
    for (const Tensor& tensor : catalog_.tensors) {
      const Place place = naming_.place(tensor.name);
      if (place.part != Part::kBlock) continue;
      Halves& halves = held_[place.block];
      const Half half = naming_.half(place.rest);
      halves.attention |= half == Half::kAttention || half == Half::kBoth;
      halves.ffn |= half == Half::kFfn || half == Half::kBoth;
      if (place.block < config_.blocks.size())
        check_tensor(tensor, place, half, config_.blocks[place.block]);
    }
    check_held();
  }

 private:
  struct Halves {
    bool attention = false;
    bool ffn = false;
  };

  void report(Severity severity, std::string kind, std::string tensor,
              std::string message) {
    catalog_.problems.push_back({severity, std::move(kind), catalog_.path,
                                 std::move(tensor), std::move(message)});
  }

  void check_held() {
    const uint64_t count =
        config_.any_model ? config_.blocks.size() : config_.layers.value_or(0);
    const bool known = find_naming(config_.model_type) != nullptr;
    // A hybrid's block is attention or ffn; its own rules say which.
    const bool hybrid = !naming_.shared.empty();
    for (uint64_t b = 0; b < std::min<uint64_t>(count, 100'000); ++b) {
      BlockConfig wanted;
      if (config_.any_model) wanted = config_.blocks[b];
      const auto found = held_.find(static_cast<uint32_t>(b));
      if (found == held_.end()) {
        if (wanted.attention || wanted.ffn) absent(b, count);
        continue;
      }
      if (!known || hybrid) continue;
      missing_half(b, "attention", wanted.attention, found->second.attention);
      missing_half(b, "ffn", wanted.ffn, found->second.ffn);
    }
  }

  // A checkpoint of some blocks lacks others by design: not damage.
  void absent(uint64_t block, uint64_t count) {
    report(Severity::kWarning, "missing_block", "",
           fmt::format("block {} of {} is not here", block, count));
  }

  void missing_half(uint64_t block, const char* half, bool wanted, bool held) {
    if (!wanted || held) return;
    report(Severity::kDamage, "missing_block", "",
           fmt::format("block {} has no {} tensors, and config.json does not "
                       "say no_op",
                       block, half));
  }

  void check_tensor(const Tensor& tensor, const Place& place, Half half,
                    const BlockConfig& block) {
    const bool removed = (half == Half::kAttention && !block.attention) ||
                         (half == Half::kFfn && !block.ffn);
    if (removed && naming_.shared.empty())
      report(Severity::kWarning, "removed_tensor", tensor.name,
             "is stored, though config.json says no_op");
    const auto heads = block.kv_heads && config_.head_dim
                           ? checked_mul(*block.kv_heads, *config_.head_dim)
                           : std::nullopt;
    const bool is_kv = place.rest == "self_attn.k_proj.weight" ||
                       place.rest == "self_attn.v_proj.weight";
    if (block.plain_attention && heads && is_kv)
      want(tensor, 0, *heads, "num_key_value_heads");
    const bool is_up = place.rest == "mlp.up_proj.weight" ||
                       place.rest == "mlp.gate_proj.weight";
    if (block.plain_ffn && block.intermediate && is_up)
      want(tensor, 0, *block.intermediate, "intermediate_size");
    if (block.plain_ffn && block.intermediate &&
        place.rest == "mlp.down_proj.weight")
      want(tensor, 1, *block.intermediate, "intermediate_size");
    if (block.experts && place.rest.starts_with("mlp.experts.") &&
        place.rest.find('.', sizeof("mlp.experts.") - 1) == place.rest.npos)
      want(tensor, 0, *block.experts, "num_local_experts");
  }

  void want(const Tensor& tensor, size_t dim, uint64_t rows, const char* key) {
    // Packed types count in other units.
    if (tensor.shape.size() <= dim || tensor.dtype == DType::u8) return;
    if (tensor.shape[dim] == rows) return;
    report(Severity::kDamage, "block_configs", tensor.name,
           fmt::format("is {}; by {} of its block in config.json dimension {} "
                       "is {}",
                       to_string(tensor.shape), key, dim, rows));
  }

  Catalog& catalog_;
  const Naming& naming_;
  const Config& config_;
  std::map<uint32_t, Halves> held_;
};

}  // namespace

void check_blocks(Catalog& catalog, const Naming& naming,
                  const Config& config) {
  Checker(catalog, naming, config).run();
}

}  // namespace ckpt::modelopt
