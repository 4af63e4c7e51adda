// SPDX-License-Identifier: Apache-2.0
// Singular values of a model's matrices, by LAPACK (libtorch's).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/engine.h"
#include "ckpt/catalog.h"

namespace ckpt::library {

// Of singular values s, from the largest on.
struct Spectrum {
  double norm = 0;            // s[0], the spectral norm
  double effective_rank = 0;  // exp of the entropy of s / sum(s)
  double stable_rank = 0;     // sum(s^2) / s[0]^2
};

struct SpectrumOf {
  size_t tensor = 0;                 // in the catalog
  std::optional<Spectrum> spectrum;  // or why there is none:
  std::string left_out;
};

// Of each matrix of the model: a tensor of two dimensions whose elements are
// floating-point. Decomposed in f32, one after another; what has an element
// that is not finite, or needs more than the engine's memory, is left out.
std::vector<SpectrumOf> spectra(Catalog& catalog, const Engine& engine);

}  // namespace ckpt::library
