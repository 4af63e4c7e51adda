// SPDX-License-Identifier: Apache-2.0
// File names with numbers in them: the patterns of trainers.json.
//
//   rng_state_{r}.pth        rng_state_12.pth          r = 12
//   model{_i}.safetensors    model.safetensors         i = 0
//                            model_1.safetensors       i = 1
//   {*}step={N}{*}.ckpt      epoch=0-step=16.ckpt      N = 16
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace ckpt::runs {

using Numbers = std::map<std::string, uint64_t, std::less<>>;

// The numbers in a matching name; nothing for other names. {*} matches as
// little as it can; numbers that don't fit 64 bits don't match.
std::optional<Numbers> match(std::string_view pattern, std::string_view name);

// The name that a pattern gives with these numbers; placeholders without a
// number stay as they are.
std::string fill(std::string_view pattern, const Numbers& numbers);

// The pattern as a shell has it, for people: rng_state_*.pth. Of alternatives
// ("a|b") the first.
std::string as_glob(std::string_view pattern);

// Digits and nothing else, that fit 64 bits.
std::optional<uint64_t> whole_number(std::string_view text);

// True if the pattern has such a number: has(…, "r").
bool has(std::string_view pattern, std::string_view number);

}  // namespace ckpt::runs
