// SPDX-License-Identifier: Apache-2.0
// File names as DeepSpeed's engine makes them (engine.py: _get_ckpt_name,
// _get_zero_ckpt_name; pipe/module.py: ckpt_layer_path).
#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "formats/deepspeed/locate.h"
#include "formats/deepspeed/rules.h"
#include "tests/support/temp_file.h"

namespace ckpt::deepspeed {

TEST_CASE("deepspeed: names of files") {
  struct Row {
    const char* name;
    FileKind kind;
    std::optional<uint32_t> dp;
    uint32_t mp, layer, expert = 0;
  };
  const Row rows[] = {
      {"mp_rank_00_model_states.pt", FileKind::kModel, {}, 0, 0},
      {"mp_rank_07_model_states.pt", FileKind::kModel, {}, 7, 0},
      {"zero_pp_rank_3_mp_rank_00_model_states.pt", FileKind::kModel, 3, 0, 0},
      {"zero_pp_rank_0_mp_rank_01_optim_states.pt", FileKind::kOptim, 0, 1, 0},
      {"bf16_zero_pp_rank_12_mp_rank_00_optim_states.pt", FileKind::kOptim, 12,
       0, 0},
      {"fp16_zero_pp_rank_1_mp_rank_00_optim_states.pt", FileKind::kOptim, 1, 0,
       0},
      {"zero_pp_rank_0_mp_rank_00optim_states.pt", FileKind::kOptim, 0, 0, 0},
      {"layer_03-model_01-model_states.pt", FileKind::kLayer, {}, 1, 3},
      {"layer_0_expert_3_mp_rank_00_model_states.pt",
       FileKind::kExpert,
       {},
       0,
       0,
       3},
      {"layer_12_expert_7_mp_rank_01_model_states.pt",
       FileKind::kExpert,
       {},
       1,
       12,
       7},
      {"expert_5_mp_rank_00_model_states.pt", FileKind::kExpert, {}, 0, 0, 5},
      {"expp_rank_2_mp_rank_00_optim_states.pt", FileKind::kExpertOptim, 2, 0,
       0},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const auto name = parse_name(row.name);
    REQUIRE(name);
    CHECK(name->kind == row.kind);
    CHECK(name->name == row.name);
    CHECK(name->dp == row.dp);
    CHECK(name->mp == row.mp);
    CHECK(name->layer == row.layer);
    CHECK(name->expert == row.expert);
  }
  for (const char* name :
       {"", "model_states.pt", "mp_rank_00_model_states.pt.tmp",
        "mp_rank__model_states.pt", "mp_rank_-1_model_states.pt",
        "mp_rank_99999999999_model_states.pt", "mp_rank_00_optim_states.pt",
        "zero_pp_rank_mp_rank_00_optim_states.pt",
        "layer_-model_00-model_states.pt", "mp_rank_00model_states.pt",
        "layer_0_expert_mp_rank_00_model_states.pt",
        "layer_0_expert_1_model_states.pt", "expp_rank_0_optim_states.pt"}) {
    CAPTURE(name);
    CHECK_FALSE(parse_name(name));
  }
}

TEST_CASE("deepspeed: two files of one rank are refused") {
  const test::TempDir dir;
  dir.write("mp_rank_00_model_states.pt", "");
  dir.write("mp_rank_01_model_states.pt", "");
  dir.write("notes.txt", "");
  const auto files = list_files(dir.path);
  REQUIRE(files.size() == 2);
  CHECK(files[1].mp == 1);
  dir.write("mp_rank_0_model_states.pt", "");
  CHECK_THROWS_AS(list_files(dir.path), Error);
}

TEST_CASE("deepspeed: `latest` names a tag of the folder, and no other place") {
  const test::TempDir dir;
  dir.write("global_step5/mp_rank_00_model_states.pt", "");
  CHECK(locate(dir.file("global_step5")).yes);
  dir.write("latest", "global_step5\n");
  const Found found = locate(dir.path);
  CHECK(found.yes);
  CHECK(found.tag == "global_step5");
  for (const char* tag : {"../elsewhere", "/etc", "..", "a/b"}) {
    CAPTURE(tag);
    dir.write("latest", tag);
    CHECK(locate(dir.path).directory.empty());
  }
}

TEST_CASE("deepspeed: slices of several ranks need rules") {
  const Rules rules;
  const Joined one = rules.join("w", {{4, 2}});
  CHECK(one.shape == Shape{4, 2});
  CHECK_FALSE(rules.names("w"));
  try {
    rules.join("w", {{4, 2}, {4, 2}});
    FAIL("joined");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUnfaithful);
  }
}

}  // namespace ckpt::deepspeed
