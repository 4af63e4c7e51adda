// SPDX-License-Identifier: Apache-2.0
// Formats describe themselves: a row added a moment ago is served like any
// other, and is not mistaken for another.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "api/write/write.h"
#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "formats/format.h"
#include "formats/options.h"
#include "formats/runs/find/trainer.h"
#include "models/family.h"
#include "tests/support/fake_format.h"
#include "tests/support/golden.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

const bool kRegistered = test::register_fakes();

Catalog rows(uint64_t count) {
  Catalog catalog;
  catalog.format = "safetensors";
  catalog.files.push_back({.path = "/dev/null", .size = 64});
  catalog.tensors.push_back(
      {.name = "w",
       .dtype = DType::u8,
       .shape = {count, 2},
       .pieces = {{.box = Box::whole({count, 2}),
                   .flat = {},
                   .extent = {.offset = 0, .strides = {}, .file = 0}}}});
  return catalog;
}

// Returns the message and the hint, or "" if it is accepted.
std::string refusal(const Layout& layout, ExitCode code) {
  try {
    library::prepare(rows(4), layout, "/nonexistent/out", {},
                     library::Use::kShow);
    return {};
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return std::string(error.what()) + "\n" + error.hint();
  }
}

TEST_CASE("strategies by action, backend and version") {
  REQUIRE(kRegistered);
  CHECK(find_strategy("save_sharded", "fake", 2).format == "fake");
  CHECK(find_strategy("load_sharded", "torch_dist").format ==
        "megatron_torch_dist");
  CHECK_THROWS_WITH_AS(find_strategy("save_sharded", "fake", 1),
                       doctest::Contains("no way to save_sharded"), Error);
  CHECK_THROWS_WITH_AS(find_strategy("load_sharded", "fake", 2),
                       doctest::Contains("no way to load_sharded"), Error);
  const std::vector<Strategy> all = strategies();
  CHECK(std::ranges::count(all, std::string("fake"), &Strategy::backend) == 1);
  CHECK(std::ranges::count(all, std::string("zarr"), &Strategy::backend) == 2);
  CHECK_THROWS_WITH_AS(register_strategy({"load_sharded", "late", 1, "fake"}),
                       doctest::Contains("after the formats were used"), Error);
  CHECK_THROWS_WITH_AS(register_strategy({"load_common", "late", 1, "fake"}),
                       doctest::Contains("no strategies are registered"),
                       Error);
}

TEST_CASE("a family that a program brings is found by its model_type") {
  REQUIRE(kRegistered);
  const auto found = families::Family::for_config(
      families::Json{{"model_type", "fake_llama"}});
  REQUIRE(found);
  CHECK(found->name() == "fake_llama");
  CHECK_THROWS_WITH_AS(register_family("late", "{}"),
                       doctest::Contains("after families were used"), Error);
  CHECK_THROWS_WITH_AS(register_family("a/b", "{}"),
                       doctest::Contains("a family is named"), Error);
}

TEST_CASE("trainers are registered before the first is looked for") {
  REQUIRE(kRegistered);
  runs::trainers();
  CHECK_THROWS_WITH_AS(register_trainers("late.json"),
                       doctest::Contains("after trainers were used"), Error);
}

TEST_CASE("a new format with ranks: as asked, or refused") {
  REQUIRE(kRegistered);
  const library::Prepared prepared =
      library::prepare(rows(4), {.format = "fake", .topology = {.tp = 2}},
                       "/nonexistent/out", {}, library::Use::kShow);
  CHECK(prepared.target.files.size() == 2);
  CHECK(prepared.target.files[1].size == 4);
  CHECK(
      refusal({.format = "fake", .topology = {.tp = 3}}, ExitCode::kUnfaithful)
          .find("does not divide") != std::string::npos);
  // A writer that ignores what it was asked for.
  CHECK(refusal({.format = "fake_flat"}, ExitCode::kDone).empty());
  CHECK(refusal({.format = "fake_flat", .topology = {.tp = 2}},
                ExitCode::kUnfaithful)
            .find("format fake_flat can't hold tp=2") != std::string::npos);
}

TEST_CASE("a new format's option: its own, checked, and nobody else's") {
  Layout layout{.format = "fake", .topology = {.tp = 2}};
  layout.options["fake-pad"] = "8";
  const library::Prepared prepared = library::prepare(
      rows(4), layout, "/nonexistent/out", {}, library::Use::kShow);
  CHECK(prepared.target.files[0].size == 12);

  layout.options["fake-pad"] = "-8";
  CHECK(refusal(layout, ExitCode::kUsage).starts_with("--fake-pad '-8'"));
  layout = {.format = "fake_flat"};
  layout.options["fake-pad"] = "8";
  CHECK(refusal(layout, ExitCode::kUsage) ==
        "--fake-pad: fake_flat doesn't have this option\n"
        "formats that have it: fake");
  layout.options = {{"fake-pat", "8"}};
  CHECK(refusal(layout, ExitCode::kUsage).ends_with("\nno format has it"));
}

TEST_CASE("every option is refused by every format that lacks it") {
  size_t refused = 0;
  for (const FormatOption* option : formats::all_options()) {
    std::string with;
    for (const formats::Format& format : formats::all_formats())
      if (formats::takes(format.name, option->name))
        with += (with.empty() ? "" : ", ") + std::string(format.name);
    CAPTURE(option->name);
    CHECK(!with.empty());
    for (const formats::Format& format : formats::all_formats()) {
      if (formats::takes(format.name, option->name)) continue;
      CAPTURE(format.name);
      Layout layout{.format = std::string(format.name)};
      layout.options[option->name] = "1";
      try {
        formats::check_options(layout);
        FAIL("taken");
      } catch (const Error& error) {
        CHECK(error.code() == ExitCode::kUsage);
        CHECK(error.hint() == "formats that have it: " + with);
        ++refused;
      }
    }
  }
  CHECK(refused > 100);
}

TEST_CASE("options of one name are one option") {
  for (const FormatOption* option : formats::all_options())
    for (const formats::Format& format : formats::all_formats())
      for (const FormatOption& other : format.traits.options) {
        if (other.name != option->name) continue;
        CAPTURE(option->name);
        CAPTURE(format.name);
        CHECK(other.type == option->type);
        CHECK(other.help == option->help);
        CHECK(other.group == option->group);
      }
}

TEST_CASE("values of options: what isn't one is refused before anything") {
  struct Row {
    const char* format;
    const char* name;
    const char* text;
    const char* why;  // "": accepted
  };
  const Row table[] = {
      {"megatron_legacy", "vpp", "2", ""},
      {"megatron_torch_dist", "vpp", "1", ""},
      {"megatron_torch_dist", "vpp", "2", "have no virtual stages"},
      {"megatron_zarr", "vpp", "2", "have no virtual stages"},
      {"megatron_legacy", "etp", "0", "expected 1 to"},
      {"megatron_legacy", "etp", "+1", "expected 1 to"},
      {"megatron_legacy", "etp", "99999999999999999999", "expected 1 to"},
      {"megatron_legacy", "pp-layout", "9,8,8,7", ""},
      {"megatron_legacy", "pp-layout", "9,,8", "not a list of layers"},
      {"megatron_legacy", "pp-layout", "9,8,", "not a list of layers"},
      {"megatron_legacy", "pp-layout", "9,0", "not a list of layers"},
      {"megatron_legacy", "pp-layout", "-1", "not a list of layers"},
      {"megatron_legacy", "pp-layout", "", "not a list of layers"},
      {"megatron_zarr", "transformer-impl", "local", ""},
      {"megatron_zarr", "transformer-impl", "TE", "transformer_engine or"},
      {"megatron_zarr", "optim", "fully_reshardable", ""},
      {"megatron_zarr", "optim", "flat", "only fully_reshardable"},
      {"megatron_legacy", "optim", "fully_reshardable",
       "megatron_legacy doesn't have this option"},
      {"modelopt", "blocks", "0-3,8/4-7", ""},
      {"modelopt", "blocks", "x", "--blocks"},
      {"modelopt", "block-files", "yes", ""},
      {"modelopt", "block-files", "no", "expected yes"},
      {"modelopt", "form", "shards", ""},
      {"modelopt", "form", "files", "expected shards or blocks"},
      {"torch", "split", "files", ""},
      {"safetensors", "split", "shards", "expected files, tensors or chunks"},
      {"run", "trainer", "lightning", ""},
      {"run", "trainer", "lightening", "lightening"},
  };
  for (const Row& row : table) {
    CAPTURE(row.format);
    CAPTURE(row.name);
    CAPTURE(row.text);
    Layout layout{.format = row.format};
    layout.options[row.name] = row.text;
    if (*row.why == '\0')
      CHECK_NOTHROW(formats::check_options(layout));
    else
      CHECK_THROWS_WITH_AS(formats::check_options(layout),
                           doctest::Contains(row.why), Error);
  }
}

}  // namespace
}  // namespace ckpt
