// SPDX-License-Identifier: Apache-2.0
// Will its reader find this model here? One question, asked by verify, convert,
// salvage and `family check`.
//
//   configuration + family's rules ─► names, shapes, kinds of dtype ─┐
//   names alone ─► layers and experts that repeat ───────────────────┴─► Whole
//
// Whole means: every tensor that the configuration's model has is there once,
// under its name, with its shape and kind of dtype, and nothing else claims to
// be of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "convert/options.h"
#include "convert/rules/check.h"

namespace ckpt::families {

struct Whole {
  enum class Basis : uint8_t {
    kNothing,    // nothing says what the whole is
    kStructure,  // layers and experts repeat; config.json's numbers
    kRules,      // the family's rules for the configuration
  };
  Basis basis = Basis::kNothing;
  // missing_tensor, unknown_tensor, shape, dtype, empty_tensor, layer_gap:
  // damage; a warning where the model loads nevertheless.
  std::vector<Problem> problems = {};
  // What can't be told, and why; "" where all of it can.
  std::string open = {};

  // No damage.
  bool sound() const;
};

// In messages about unknown tensors, before the name that it may be.
inline constexpr std::string_view kNearestMissing =
    "the nearest that is missing: ";

// And at the end of one about names behind a wrapper's words, which --to hf
// takes off.
inline constexpr std::string_view kAskedWithout =
    "its loader asks for them without";

// Reads no payload. Throws input_error for a configuration that can't be read.
Whole check_whole(const Catalog& source, const TranslateOptions& options = {});

// The same of a catalog that is one model, whatever its run's components are.
Whole check_model(const Catalog& source, const TranslateOptions& options = {});

// The same as an error: throws unfaithful_error for a source that is not whole.
// options.allow_missing lets tensors be missing.
void need_whole(const Catalog& source, const TranslateOptions& options = {});

// The model tensors of a source against the rules of a family, one dialect
// after the other; dialects without rules are left out.
std::vector<DialectCheck> check_family(
    const std::shared_ptr<const Family>& family, const Catalog& source,
    const Overrides& overrides = {});

}  // namespace ckpt::families
