// SPDX-License-Identifier: Apache-2.0
// Fused projections of mixers. Ranks cut each of their parts separately.
//
//   mixer.in_proj.weight           z, x, B, C, dt       (Mamba 2)
//   mixer.conv1d.weight, .bias     x, B, C
//   self_attention.in_proj.weight  query, key, value, z, beta, alpha
//   self_attention.conv1d.weight   query, key, value    (gated delta net)
//
//   whole   | z | x | B | C | dt |      rank 0 of 2   | z | x | B | C |dt|
//
// A module holds one tensor. Distributed checkpoints have one key for each
// part: ….in_proj.weight.z. The files don't say the parts' sizes; the rows of
// in_proj, conv1d and A_log of one mixer are three sums of three sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::megatron {

// The parts of such a parameter, in order; none for any other name.
std::span<const std::string_view> parts_of(std::string_view name);

// The "….in_proj.weight" of "….in_proj.weight.z", and which part that is.
// Nothing for any other name.
struct PartKey {
  std::string_view whole;
  size_t part = 0;
};
std::optional<PartKey> part_key(std::string_view name);

// The sizes of the parts of a model's fused parameters, whole or one rank's.
class MixerParts {
 public:
  MixerParts() = default;
  explicit MixerParts(const std::vector<Tensor>& tensors);
  // Ignores other names.
  void add(const std::string& name, const Shape& shape);
  // Nothing if the shapes of its mixer don't determine them.
  std::optional<std::vector<uint64_t>> extents(const std::string& name) const;
  // The same, but throws unfaithful_error.
  std::vector<uint64_t> need(const std::string& path,
                             const std::string& name) const;

 private:
  std::unordered_map<std::string, Shape> shapes_;
};

// What `tp` ranks would have to cut in a mixer, in words: Megatron gives each
// rank whole groups of Mamba and whole key heads of a delta net. Nothing if the
// ranks can share the mixers, or if there are none; args of other models have
// such numbers, too.
struct MixerNumbers {
  std::optional<uint64_t> mamba_groups, delta_keys;
};
std::optional<std::string> unshared(const std::vector<Tensor>& tensors,
                                    const MixerNumbers& numbers, uint64_t tp);

// The parameter whose parts it has: itself, or the one whose state it is.
const std::string& parameter_of(const Tensor& tensor);

// Makes one tensor of each part. Throws unfaithful_error if their sizes are not
// known. False if there are none: then no tensor has moved.
bool split_parts(Catalog& catalog);

// The inverse. Throws unfaithful_error if a part is missing.
void join_parts(Catalog& catalog);

}  // namespace ckpt::megatron
