// SPDX-License-Identifier: Apache-2.0
// Names as in vLLM's ShardedStateLoader (model-rank-{rank}-part-{part}) and
// SGLang's.
#include "formats/vllm/locate.h"

#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "tests/support/temp_file.h"

namespace ckpt::vllm {
namespace {

// Returns "rank: names of its parts" for what is found, or the message.
std::string located(const std::vector<std::string>& names) {
  const test::TempDir dir;
  for (const std::string& name : names) dir.write(name, "");
  try {
    std::string text;
    for (const auto& parts : locate(dir.path)) {
      text += text.empty() ? "" : " | ";
      for (const Part& part : parts)
        text += std::to_string(part.stage) + ":" + part.name + " ";
    }
    return text;
  } catch (const Error& error) {
    return error.problem();
  }
}

std::string file(const std::string& stem) { return stem + ".safetensors"; }

}  // namespace

TEST_CASE("vllm: parts of ranks, in order") {
  CHECK(located({file("model-rank-1-part-0"), file("model-rank-0-part-1"),
                 file("model-rank-0-part-0")}) ==
        "0:model-rank-0-part-0.safetensors 0:model-rank-0-part-1.safetensors "
        " | 0:model-rank-1-part-0.safetensors ");
  std::vector<std::string> many;
  for (int part = 0; part < 12; ++part)
    many.push_back(file("model-rank-0-part-" + std::to_string(part)));
  CHECK(
      located(many).ends_with("part-9.safetensors 0:model-rank-0-part-10."
                              "safetensors 0:model-rank-0-part-11."
                              "safetensors "));
}

TEST_CASE("vllm: stages of pipelines, vLLM's and SGLang's") {
  for (const std::string word : {"tp", "rank"}) {
    CAPTURE(word);
    const std::string zero = file("model-pp-0-" + word + "-0-part-0");
    const std::string one = file("model-pp-1-" + word + "-0-part-0");
    CHECK(located({one, zero}) == "0:" + zero + " 1:" + one + " ");
    CHECK(located({one}).find(zero) != std::string::npos);  // is missing
  }
  CHECK(located(
            {file("model-pp-0-tp-0-part-0"), file("model-pp-0-rank-0-part-0")})
            .find("two checkpoints") != std::string::npos);
}

TEST_CASE("vllm: what is missing is named; what isn't a name is not one") {
  CHECK(located({file("model-rank-1-part-0")}).find("model-rank-0-part-0") !=
        std::string::npos);
  CHECK(located({file("model-rank-0-part-1")}).find("model-rank-0-part-0") !=
        std::string::npos);
  for (const char* stem :
       {"model-rank-00-part-0", "model-rank-+0-part-0", "model-rank--part-0",
        "model-rank-0-part-", "model-rank-99999999999-part-0",
        "model-rank-0-part-0-x", "model-rank-0", "model"}) {
    CAPTURE(stem);
    CHECK(located({file(stem)}).starts_with("no model-rank-0-part-0"));
  }
}

}  // namespace ckpt::vllm
