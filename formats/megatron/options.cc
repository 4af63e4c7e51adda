// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/options.h"

#include <algorithm>
#include <numeric>

#include "ckpt/error.h"
#include "formats/options.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::megatron {
namespace {

using formats::check_count;
using text::printable;

// "9,8,8,7"
std::vector<uint64_t> parse_stage_layers(const std::string& text) {
  constexpr uint64_t kMost = uint64_t{1} << 20;
  std::vector<uint64_t> layers;
  std::string_view rest = text;
  while (true) {
    const auto count = text::take_number(rest, kMost);
    if (!count || *count == 0 || layers.size() == kMost ||
        (!rest.empty() && rest[0] != ','))
      throw usage_error({}, "--pp-layout {}: not a list of layers",
                        printable(text))
          .with_hint("the layers of each pipeline stage: 9,8,8,7");
    layers.push_back(*count);
    if (rest.empty()) return layers;
    rest.remove_prefix(1);
  }
}

void check_stage_layers(const FormatOption&, const std::string& text) {
  parse_stage_layers(text);
}

void check_implementation(const FormatOption& option, const std::string& text) {
  if (text != "transformer_engine" && text != "local")
    throw usage_error({}, "--{} '{}': expected transformer_engine or local",
                      option.name, printable(text));
}

void check_form(const FormatOption&, const std::string& text) {
  check_optimizer_type(text);
}

void check_no_stages(const FormatOption& option, const std::string& text) {
  check_count(option, text);
  if (text::number(text) == 1) return;
  throw usage_error({},
                    "--vpp {}: distributed checkpoints have no virtual "
                    "stages",
                    text)
      .with_hint("any job loads it, whatever its virtual stages are");
}

std::vector<FormatOption> options(decltype(FormatOption::check) check_vpp) {
  const std::string group = "Megatron";
  return {{.name = "vocab-size", .type = "N", .help = "", .check = check_count},
          {.name = "make-vocab-size-divisible-by",
           .type = "N",
           .help = "Rows are padded to a multiple of N times tp (default: 128)",
           .group = group,
           .check = check_count},
          {.name = "pp-layout",
           .type = "LIST",
           .help = "Layers of each pipeline stage: 9,8,8,7",
           .group = group,
           .check = check_stage_layers},
          {.name = "vpp",
           .type = "N",
           .help = "megatron_legacy: virtual stages of each pipeline rank",
           .group = group,
           .check = check_vpp},
          {.name = "etp",
           .type = "N",
           .help = "Tensor-parallel ranks of experts (default: tp)",
           .group = group,
           .check = check_count},
          {.name = "transformer-impl",
           .type = "transformer_engine|local",
           .help = "Module implementation of the layers: transformer_engine, "
                   "or local",
           .group = group,
           .check = check_implementation}};
}

uint64_t count_of(const Layout& layout, std::string_view name) {
  const auto found = layout.options.find(name);
  if (found == layout.options.end()) return 0;
  check_count({.name = std::string(name), .type = {}, .help = {}},
              found->second);
  return *text::number(found->second);
}

// Takes expert ranks from the data-parallel ones: as many of those as they
// need, unless their number is given.
void settle_experts(const formats::Asked& asked, const Wanted& wanted,
                    Topology& grid) {
  if (asked.dp || !asked.ep) return;
  const uint64_t etp = wanted.etp ? wanted.etp : grid.tp;
  const uint64_t ranks = grid.ep * etp;
  const uint64_t least = ranks / std::gcd(ranks, uint64_t{grid.tp});
  if (least != 0 && least <= UINT32_MAX && grid.dp % least != 0)
    grid.dp = static_cast<uint32_t>(least);
}

// Makes the number of pipeline stages fit the cut of the layers.
void settle_stages(const formats::Asked& asked, const Wanted& wanted,
                   Layout& layout) {
  if (wanted.stage_layers.empty()) return;
  const uint64_t vpp = std::max<uint32_t>(1, wanted.vpp);
  const uint64_t chunks = wanted.stage_layers.size();
  if (chunks == layout.topology.pp * vpp) return;
  if (asked.pp || chunks % vpp != 0)
    throw usage_error({}, "--pp-layout {}: {} numbers for {} pipeline stages{}",
                      layout.option("pp-layout"), chunks, layout.topology.pp,
                      vpp > 1 ? fmt::format(" of {} virtual ones", vpp) : "")
        .with_hint("a number for each stage (with --vpp: for each chunk)");
  layout.topology.pp = static_cast<uint32_t>(chunks / vpp);
}

}  // namespace

void check_optimizer_type(std::string_view type) {
  if (type.empty() || type == kFullyReshardable) return;
  throw usage_error({}, "--optim {}: only {} can be asked for", type,
                    kFullyReshardable)
      .with_hint(
          "without --optim optimizer state keeps its form, but for flat "
          "buffers (dp_reshardable, fully_sharded_bucket_space), which belong "
          "to one topology and become fully_reshardable");
}

std::vector<FormatOption> legacy_options() { return options(check_count); }

std::vector<FormatOption> dist_options() {
  std::vector<FormatOption> all = options(check_no_stages);
  all.push_back(
      {.name = "optim",
       .type = "FORM",
       .help = "Form of Megatron's optimizer state: fully_reshardable is what "
               "megatron-core 0.15 and later load at any topology",
       .check = check_form});
  return all;
}

Wanted wanted_of(const Layout& layout) {
  const auto small = [&](std::string_view name) {
    return static_cast<uint32_t>(count_of(layout, name));
  };
  Wanted wanted{
      .vocab_size = count_of(layout, "vocab-size"),
      .vocab_multiple = count_of(layout, "make-vocab-size-divisible-by"),
      .stage_layers = {},
      .vpp = small("vpp"),
      .etp = small("etp"),
      .transformer_impl = layout.option("transformer-impl"),
      .optimizer = layout.option("optim")};
  if (const std::string list = layout.option("pp-layout"); !list.empty())
    wanted.stage_layers = parse_stage_layers(list);
  return wanted;
}

void settle_options(const Catalog&, const formats::Asked& asked,
                    Layout& layout) {
  const Wanted wanted = wanted_of(layout);
  settle_experts(asked, wanted, layout.topology);
  settle_stages(asked, wanted, layout);
}

}  // namespace ckpt::megatron
