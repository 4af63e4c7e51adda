// SPDX-License-Identifier: Apache-2.0
// The output of `inspect --digest`, `--stats` and `--spectral` for people.
#pragma once

#include <span>
#include <string>

#include "api/check/read_all.h"
#include "api/check/spectra.h"
#include "ckpt/catalog.h"

namespace ckpt::app {

// One row per tensor: its digest and its statistics, whichever were read.
std::string contents_text(const Catalog& catalog,
                          const library::Reading& reading, size_t width);

// A row for each matrix, and those that have none.
std::string spectra_text(const Catalog& catalog,
                         std::span<const library::SpectrumOf> spectra,
                         size_t width);

}  // namespace ckpt::app
