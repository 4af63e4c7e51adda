// SPDX-License-Identifier: Apache-2.0
// Malformed and hostile files: each has the outcome that EXPECT.tsv asks for,
// quickly and without a crash.
#include <doctest/doctest.h>

#include <filesystem>

#include "ckpt/error.h"
#include "formats/format.h"
#include "formats/torch/torch.h"
#include "lib/pickle/json.h"
#include "tests/support/golden.h"
#include "tests/support/processor.h"

namespace ckpt {
namespace {

struct Outcome {
  bool accepted = false;
  bool warned = false;
  ExitCode code = ExitCode::kDone;
  std::string message;
};

// Does what `inspect` does: lists, and shows every object.
Outcome inspect(const std::string& path) {
  try {
    const Catalog catalog = torch::make_reader()->read_catalog(path, {});
    for (const Object& object : catalog.objects)
      pickle::to_json(*object.document, object.node, 10'000);
    bool warned = false;
    for (const Problem& problem : catalog.problems)
      warned |= problem.severity != Problem::Severity::kNote;
    return {true, warned, ExitCode::kDone, {}};
  } catch (const Error& error) {
    return {false, false, error.code(), error.what()};
  }
}

void check_row(test::Bad row) {
  // "as deep_lists.pt": see there.
  if (row.outcome.starts_with("as ")) row.outcome = "ACCEPT or REJECT";
  CAPTURE(row.file);
  CAPTURE(row.what);
  const double start = test::processor_seconds();
  const Outcome outcome = inspect(test::data("bad/" + row.file));
  const double taken = test::processor_seconds() - start;
  CAPTURE(outcome.message);
  CHECK(taken < 4);

  const bool must_accept =
      !row.may("REJECT") && (row.may("ACCEPT") || row.may("OPAQUE"));
  const bool must_reject = !row.may("ACCEPT") && !row.may("OPAQUE");
  if (must_accept) CHECK(outcome.accepted);
  if (must_reject) CHECK_FALSE(outcome.accepted);
  if (row.may("ACCEPT_WARN") && outcome.accepted) CHECK(outcome.warned);
  if (!outcome.accepted) {
    CHECK((outcome.code == ExitCode::kDamaged ||
           outcome.code == ExitCode::kUnsafe));
    CHECK(outcome.message.find(row.file) != std::string::npos);
  }
}

TEST_CASE("torch: malformed files") {
  for (const char* set : {"torch_pt/", "pickle/", "torch_legacy/"}) {
    const auto rows = test::bad_rows(set);
    CHECK(rows.size() > 10);
    for (const test::Bad& row : rows) check_row(row);
  }
  CHECK_FALSE(std::filesystem::exists("PWNED"));
}

TEST_CASE("torch: hostile objects leave the tensors readable") {
  for (const test::Bad& row : test::bad_rows("pickle/")) {
    if (!row.outcome.starts_with("OPAQUE")) continue;
    CAPTURE(row.file);
    const std::string path = test::data("bad/" + row.file);
    if (!inspect(path).accepted) continue;  // allowed, as row.outcome says
    const Catalog catalog = torch::make_reader()->read_catalog(path, {});
    // The one file that was made without a tensor.
    const bool has_tensor = row.file != "pickle/stack_global.pt";
    CHECK((catalog.find("w") != nullptr) == has_tensor);
    const bool shown = std::ranges::any_of(
        catalog.objects,
        [](const Object& object) { return object.name == "evil"; });
    CHECK(shown);
  }
}

TEST_CASE("torch: messages name the numbers") {
  struct Row {
    const char* file;
    const char* why;
  };
  const Row rows[] = {
      {"torch_pt/storage_too_short.pt", "holds 12 bytes, its storage 16"},
      {"torch_pt/view_out_of_bounds.pt", "reach byte 20 of a storage of 16"},
      {"torch_pt/missing_storage.pt", "data/0 is missing"},
      {"torch_pt/rank_mismatch.pt", "2 sizes and 1 strides"},
      {"torch_pt/huge_rank.pt", "rank 5000 is too large"},
      {"torch_pt/version_99.pt", "archive version 99"},
      {"torch_pt/same_storage_two_sizes.pt", "declared with 16 bytes and with"},
      {"torch_legacy/size_field_smaller.pt", "8 bytes, its tensors say 16"},
      {"torch_legacy/tar_symlink.tar", "is not a plain file"},
      {"pickle/rebuild_too_few_args.pt", "_rebuild_tensor_v2: 0 arguments"},
      {"pickle/orderedddict_bad_items.pt", "a dict of pairs holds a int"},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.file));
    const Outcome outcome = inspect(test::data(std::string("bad/") + row.file));
    CHECK_FALSE(outcome.accepted);
    CAPTURE(outcome.message);
    CHECK(outcome.message.find(row.why) != std::string::npos);
  }
}

TEST_CASE("torch: an expanded tensor of terabytes is not written") {
  const Catalog catalog = torch::make_reader()->read_catalog(
      test::data("bad/torch_pt/expand_bomb.pt"), {});
  const Layout layout{.format = "torch",
                      .topology = {},
                      .max_shard_size = 0,
                      .single_file = true,
                      .name = "x.pt"};
  CHECK_THROWS_WITH_AS(torch::make_writer()->lay_out(catalog, layout),
                       doctest::Contains("expands"), Error);
}

}  // namespace
}  // namespace ckpt
