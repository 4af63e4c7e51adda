// SPDX-License-Identifier: Apache-2.0
#include "api/edit/select.h"

#include <doctest/doctest.h>

#include "api/edit/layers.h"
#include "ckpt/error.h"
#include "tests/support/catalogs.h"

namespace ckpt::library {
namespace {

using test::tensor;
using Names = std::vector<std::string>;

Tensor state(const std::string& param, const std::string& which) {
  Tensor made = tensor(param + "." + which, {4});
  made.kind = Kind::optim;
  made.param = param;
  made.state = which;
  return made;
}

// Optimizer state whose own name has no layer in it.
Tensor nameless_state() {
  Tensor made = tensor("state.17", {4});
  made.kind = Kind::optim;
  made.param = "layers.1.w";
  return made;
}

Catalog sample() {
  return test::catalog({
      tensor("embed.weight", {8}),
      tensor("layers.0.w", {8}),
      tensor("layers.0.norm", {2}),
      tensor("layers.1.w", {8}),
      state("layers.0.w", "exp_avg"),
      nameless_state(),
  });
}

}  // namespace

TEST_CASE("select: keeps what the options ask for") {
  struct Row {
    const char* what;
    Selection options;
    Names kept;
  };
  const Row rows[] = {
      {"nothing asked",
       {},
       {"embed.weight", "layers.0.w", "layers.0.norm", "layers.1.w",
        "layers.0.w.exp_avg", "state.17"}},
      {"keys",
       {.keys = {"*.w", "embed*"}},
       {"embed.weight", "layers.0.w", "layers.1.w"}},
      {"keys and exclude",
       {.keys = {"layers.*"}, .exclude = {"*norm", "*.w"}},
       {"layers.0.w.exp_avg"}},
      {"layers: what is in none stays; optimizer state follows its parameter",
       {.layers = "1"},
       {"embed.weight", "layers.1.w", "state.17"}},
      {"model only",
       {.model_only = true},
       {"embed.weight", "layers.0.w", "layers.0.norm", "layers.1.w"}},
      {"optimizer only",
       {.optim_only = true},
       {"layers.0.w.exp_avg", "state.17"}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    Catalog made = sample();
    const Chosen selection = choose(made, row.options);
    CHECK(test::names(made) == row.kept);
    CHECK(selection.kept == row.kept.size());
    CHECK(selection.dropped == 6 - row.kept.size());
    CHECK(made.assumptions == selection.notes);
  }
}

TEST_CASE("select: says what it left out") {
  Catalog made = sample();
  const Chosen selection =
      choose(made, {.exclude = {"*norm", "embed*"}, .model_only = true});
  CHECK(selection.notes ==
        Names{"--model-only: 2 of 6 tensors (16 B) left out",
              "--exclude *norm embed*: 2 of 6 tensors (20 B) left out"});
  CHECK(selection.dropped_bytes == 36);
}

TEST_CASE("select: refuses what matches nothing, and says what is there") {
  struct Row {
    Selection options;
    ExitCode code;
    const char* why;
    const char* hint;
  };
  const Row rows[] = {
      {{.keys = {"layers.0.nor"}},
       ExitCode::kUnfaithful,
       "--keys 'layers.0.nor' matches none of the 6 tensors",
       "did you mean 'layers.0.norm'?"},
      {{.keys = {"*.emded.weight", "embd.*"}},
       ExitCode::kUnfaithful,
       "--keys '*.emded.weight' matches none of the 6 tensors",
       "a name here: embed.weight"},
      {{.keys = {"embd.*"}},
       ExitCode::kUnfaithful,
       "--keys 'embd.*' matches none",
       "did you mean 'embed.*'?"},
      {{.exclude = {"*", "bias"}},
       ExitCode::kUnfaithful,
       "--exclude 'bias' matches none of the 6 tensors",
       "embed.weight"},
      {{.exclude = {"*"}},
       ExitCode::kUnfaithful,
       "the selection leaves none of the 6 tensors",
       "--exclude *: 6 of 6"},
      {{.layers = "0-2"},
       ExitCode::kUnfaithful,
       "--layers 0-2: there is no layer 2; the source has 2 layers, 0 to 1",
       ""},
      {{.keys = {"[a"}}, ExitCode::kUsage, "[a", ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    Catalog made = sample();
    try {
      select(made, row.options);
      FAIL("selected");
    } catch (const Error& error) {
      CHECK(error.code() == row.code);
      CHECK(error.what() == doctest::Contains(row.why));
      CHECK(error.hint().find(row.hint) != std::string::npos);
    }
  }
}

TEST_CASE("select: the layer of a name") {
  struct Row {
    const char* name;
    std::optional<uint32_t> layer;
  };
  const Row rows[] = {
      {"model.layers.12.mlp.w", 12},
      {"transformer.h.3.attn.c_attn.weight", 3},
      {"blocks.0.w", 0},
      {"decoder.layers.self_attn", {}},
      {"layers.1x.w", {}},
      {"layers.-1.w", {}},
      {"layers", {}},
      {"embed.0.weight", {}},
      {"sublayers.0.w", {}},
      {"layers.99999999999999999999.w", {}},
      {"layers.4.experts.7.w", 4},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    CHECK(layer_of(row.name) == row.layer);
  }
}

TEST_CASE("select: lists of layers") {
  using Layers = std::vector<uint32_t>;
  CHECK(parse_layer_order("0-2,7") == Layers{0, 1, 2, 7});
  CHECK(parse_layer_order("5") == Layers{5});
  for (const char* wrong : {"", "x", "1-", "-1", "1,,2", "3-1", "0x1", "1 ",
                            "4294967296", "0-4000000000"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_layer_order(wrong), Error);
  }
}

}  // namespace ckpt::library
