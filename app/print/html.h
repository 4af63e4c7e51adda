// SPDX-License-Identifier: Apache-2.0
// `inspect --html`: one self-contained page. It loads nothing, and every name
// in it is escaped. `view` serves the same one, which then asks for statistics
// (app/page/live.js).
#pragma once

#include <span>
#include <string>

#include "app/print/plot.h"
#include "ckpt/catalog.h"
#include "reshard/numbers/stats.h"

namespace ckpt::app {

// `stats`: empty, or one per tensor in order.
std::string inspect_html(const Catalog& catalog,
                         std::span<const reshard::Stats> stats = {});
// The model's values, step by step.
std::string steps_html(const std::string& root,
                       const std::vector<NamedStats>& steps);

// Its scripts need live_policy(nonce) as Content-Security-Policy.
std::string live_html(const Catalog& catalog, const std::string& nonce);
std::string live_policy(const std::string& nonce);

}  // namespace ckpt::app
