// SPDX-License-Identifier: Apache-2.0
// The modules of a base model in Megatron's names and in transformers'.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "convert/rules/instances.h"

namespace ckpt::families {

// Between a module's name and its factors'.
inline constexpr std::string_view kBridgeAdapter = ".adapter.";

// What Megatron-Bridge calls a part of a fused matrix: "adapter_q" for a name
// that ends with ".q_proj"; "" for others.
std::string_view bridge_part(std::string_view hf);

struct AdapterModule {
  Instance rule;
  std::string mcore;            // "decoder.layers.0.mlp.linear_fc1"
  std::vector<std::string> hf;  // "model.layers.0.mlp.gate_proj", …
  bool expert = false;          // one of those that share the name
  bool fused() const { return hf.size() > 1; }
};

class AdapterModules {
 public:
  AdapterModules(const Dialect& dialect, const Numbers& numbers);
  AdapterModules(const AdapterModules&) = delete;

  // Throw unfaithful_error for a module that the base lacks, or that has no
  // counterpart.
  const AdapterModule& of_hf(const Catalog& source,
                             const std::string& name) const;
  // One, or all experts of a layer.
  const std::vector<const AdapterModule*>& of_mcore(
      const Catalog& source, const std::string& name) const;
  const std::vector<AdapterModule>& all() const { return all_; }

 private:
  [[noreturn]] void refuse(const Catalog& source,
                           const std::string& name) const;

  std::vector<AdapterModule> all_;
  std::map<std::string, const AdapterModule*, std::less<>> by_hf_;
  std::map<std::string, std::vector<const AdapterModule*>, std::less<>>
      by_mcore_;
  std::map<std::string, std::string, std::less<>> why_not_;
};

}  // namespace ckpt::families
