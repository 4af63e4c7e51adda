// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "formats/olmo_core/names.h"
#include "formats/olmo_core/shards.h"
#include "formats/olmo_core/sidecars.h"

namespace ckpt::olmo_core {
namespace {

using dcp::PathElement;
using Path = std::vector<PathElement>;

Tensor tensor(Kind kind, std::string name, std::string param = {},
              std::string state = {}) {
  Tensor made;
  made.name = std::move(name);
  made.kind = kind;
  made.param = std::move(param);
  made.state = std::move(state);
  return made;
}

// Paths as OLMo-core 3.0.0 writes them to planner_data.
TEST_CASE("olmo_core names: keys and paths") {
  struct Row {
    Tensor tensor;
    bool flattened;
    std::string key;
    Path path;
  };
  const Row rows[] = {
      {tensor(Kind::model, "blocks.0.attention.w_q.weight"),
       true,
       "model.blocks.0.attention.w_q.weight",
       {std::string("model"), std::string("blocks.0.attention.w_q.weight")}},
      {tensor(Kind::optim, "state.a.b.exp_avg", "a.b", "exp_avg"),
       false,
       "optim.state.a.b.exp_avg",
       {std::string("optim"), std::string("state"), std::string("a.b"),
        std::string("exp_avg")}},
      {tensor(Kind::optim, "state.a.b.exp_avg", "a.b", "exp_avg"),
       true,
       "optim.state.a.b.exp_avg",
       {std::string("optim"), std::string("state.a.b.exp_avg")}},
      {tensor(Kind::optim, "param_groups.2.lr"),
       false,
       "optim.param_groups.2.lr",
       {std::string("optim"), std::string("param_groups"), int64_t{2},
        std::string("lr")}},
      {tensor(Kind::other, "rng"), false, "rng", {std::string("rng")}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.key);
    const Key key = key_of(row.tensor, row.flattened);
    CHECK(key.key == row.key);
    CHECK(key.path == row.path);
  }
}

TEST_CASE("olmo_core names: objects") {
  const Key flat = key_of_object("param_groups.blocks.0.w.lr", true);
  CHECK(flat.key == "optim.param_groups.blocks.0.w.lr");
  CHECK(flat.path ==
        Path{std::string("optim"), std::string("param_groups.blocks.0.w.lr")});
  const Key group = key_of_object("param_groups.0.params", false);
  CHECK(group.path == Path{std::string("optim"), std::string("param_groups"),
                           int64_t{0}, std::string("params")});
  CHECK(key_of_object("__moe_skip_step_losses", true).path ==
        Path{std::string("__moe_skip_step_losses")});
}

dcp::Metadata metadata(const std::vector<std::string>& tensors) {
  dcp::Metadata made;
  made.planner.emplace();
  for (const std::string& name : tensors) {
    dcp::TensorEntry& entry = made.tensors.emplace_back();
    entry.name = name;
    entry.size = {4};
    (*made.planner)[name] = {name};
  }
  return made;
}

TEST_CASE("olmo_core names: shortened only if nothing clashes") {
  struct Row {
    std::vector<std::string> keys;
    const char* dialect;
    const char* first;
  };
  const Row rows[] = {
      {{"model.w", "optim.state.w.exp_avg"}, "olmo_core", "w"},
      {{"model.w", "extra"}, "olmo_core", "w"},
      {{"model.w", "w"}, "", "model.w"},
      {{"model.state.w", "optim.state.w"}, "", "model.state.w"},
      {{"model.w", "param_groups.0.lr"}, "", "model.w"},
      {{"m.w.main", "m.w.exp_avg"}, "olmo_core_direct", "m.w.main"},
      {{"w", "b"}, "", "w"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.keys[0]);
    dcp::Metadata index = metadata(row.keys);
    CHECK(shorten(index).dialect == row.dialect);
    CHECK(index.tensors[0].name == row.first);
    CHECK(index.planner->contains(row.first));
  }
}

TEST_CASE("olmo_core shards: what tensor parallelism cuts") {
  struct Row {
    const char* name;
    TpRule rule;
  };
  const Row rows[] = {
      {"embeddings.weight", TpRule::split(0)},
      {"blocks.3.attention.w_k.weight", TpRule::split(0)},
      {"blocks.3.attention.w_out.weight", TpRule::split(1)},
      {"blocks.3.feed_forward.w2.weight", TpRule::split(1)},
      {"blocks.3.feed_forward.w2.bias", TpRule::replicated()},
      {"blocks.3.attention.q_norm.weight", TpRule::replicated()},
      {"blocks.3.feed_forward_moe.router.weight", TpRule::replicated()},
      {"blocks.3.feed_forward_moe.experts.mlp.w2", TpRule::split(0)},
      {"lm_head.w_out.weight", TpRule::split(0)},
      {"w_out.weight", TpRule::split(0)},
      {"norm.weight", TpRule::replicated()},
      {"blocks.0.weight", {}},
      {"my_attention.w_q.weight", {}},
      {"blocks.0.other.w_out.weight", {}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    CHECK(rule_of(row.name) == row.rule);
  }
}

TEST_CASE("olmo_core sidecars: ranks of the trainer's state") {
  CHECK(train_rank("train/rank0.pt") == 0u);
  CHECK(train_rank("train/rank12.pt") == 12u);
  for (const char* name : {"train/rank.pt", "train/rank-1.pt", "rank0.pt",
                           "train/rank1.pt.bak", "train/rankx.pt"}) {
    CAPTURE(name);
    CHECK(!train_rank(name));
  }
}

}  // namespace
}  // namespace ckpt::olmo_core
