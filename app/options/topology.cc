// SPDX-License-Identifier: Apache-2.0
// --tp, --pp, --dp, --ep: 8, or 4:8 for 4 to 8.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "app/options/options.h"
#include "ckpt/error.h"
#include "lib/text/number.h"

namespace ckpt::app {
namespace {

constexpr uint32_t kMostRanks = 1'000'000;

// Parses a string of digits that fits; refuses signs, spaces and junk.
std::optional<uint32_t> parse_count(std::string_view text) {
  const auto value = text::number<uint32_t>(text);
  return value.value_or(0) == 0 || *value > kMostRanks ? std::nullopt : value;
}

uint32_t rank_count(const std::string& option, std::string_view text,
                    const std::string& whole) {
  const auto count = parse_count(text);
  if (count) return *count;
  // --tp 4->8 without quotes: the shell passes "4-" and creates a file "8".
  if (text.size() > 1 && text.ends_with('-') &&
      parse_count(text.substr(0, text.size() - 1)))
    throw usage_error({},
                      "{} '{}': the shell took what follows as a file to "
                      "redirect the output to",
                      option, text)
        .with_hint(fmt::format("write {} {}:8, or quote it: {} '{}->8' "
                               "(remove the file that the shell made)",
                               option, text.substr(0, text.size() - 1), option,
                               text.substr(0, text.size() - 1)));
  throw usage_error({}, "{} '{}': expected a number from 1 to {}", option,
                    whole, kMostRanks)
      .with_hint(option + " takes 8, or 4:8 (4->8, 4→8) for 4 to 8");
}

uint32_t resolve_axis(std::string_view axis, uint32_t held,
                      const TopologyOptions::Axis& wanted) {
  if (wanted.from && *wanted.from != held) {
    throw usage_error({}, "--{} {}: the source has {}={}, not {}", axis,
                      wanted.text, axis, held, *wanted.from)
        .with_hint(fmt::format("--{} {}:{}, or just --{} {}", axis, held,
                               *wanted.to, axis, *wanted.to));
  }
  return wanted.to.value_or(held);
}

}  // namespace

TopologyOptions::Axis parse_axis(const std::string& option,
                                 const std::string& text) {
  TopologyOptions::Axis axis{.text = text, .from = {}, .to = {}};
  for (const std::string_view arrow : {"→", "->", ":"}) {
    const size_t at = text.find(arrow);
    if (at == text.npos) continue;
    const std::string_view both = text;
    axis.from = rank_count(option, both.substr(0, at), text);
    axis.to = rank_count(option, both.substr(at + arrow.size()), text);
    return axis;
  }
  axis.to = rank_count(option, text, text);
  return axis;
}

Topology TopologyOptions::resolve(const Topology& source) const {
  return {.tp = resolve_axis("tp", source.tp, tp),
          .pp = resolve_axis("pp", source.pp, pp),
          .dp = resolve_axis("dp", source.dp, dp),
          .ep = resolve_axis("ep", source.ep, ep)};
}

formats::Asked TopologyOptions::asked() const {
  return {.tp = tp.to, .pp = pp.to, .dp = dp.to, .ep = ep.to};
}

void add_topology_options(CLI::App& app, TopologyOptions& options) {
  struct Row {
    const char* name;
    const char* help;
    TopologyOptions::Axis* axis;
  };
  const Row rows[] = {
      {"--tp", "Tensor-parallel ranks: 8, or 4:8 for 4 to 8", &options.tp},
      {"--pp", "Pipeline stages", &options.pp},
      {"--dp", "Data-parallel shards (FSDP, ZeRO)", &options.dp},
      {"--ep", "Expert-parallel ranks", &options.ep},
  };
  for (const Row& row : rows) {
    app.add_option_function<std::string>(
           row.name,
           [row](const std::string& text) {
             *row.axis = parse_axis(row.name, text);
           },
           row.help)
        ->type_name("N")
        ->group("Topology");
  }
}

}  // namespace ckpt::app
