// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/options.h"
#include "formats/megatron/state/optimizer_common.h"
#include "formats/megatron/state/optimizer_groups.h"

namespace ckpt::megatron {
namespace {

constexpr std::string_view kModelSpace = "fully_sharded_model_space";
constexpr std::string_view kBucketSpaces[] = {"dp_reshardable",
                                              "fully_sharded_bucket_space"};
constexpr std::string_view kMain = "param";
constexpr std::string_view kOldMain = "fp32_param";

enum class Form : uint8_t {
  kNone,        // no optimizer state
  kPlain,       // of a non-distributed optimizer
  kModelSpace,  // flattened, by parameter
  kFully,
  kViewed,  // flat buffers, viewed as parameters
  kRaw,     // flat buffers of unknown content
  kZero,    // one object per model-parallel rank
};

Form form_of(const Catalog& catalog, const std::string& type) {
  bool state = false;
  for (const Tensor& tensor : catalog.tensors) {
    if (is_bucket_key(tensor.name)) return Form::kRaw;
    state |= !parse_key(tensor.name).state.empty();
  }
  if (std::ranges::any_of(catalog.objects, is_state_object)) return Form::kZero;
  if (!state) return Form::kNone;
  if (std::ranges::find(kBucketSpaces, type) != std::end(kBucketSpaces))
    return Form::kViewed;
  if (type == kFullyReshardable) return Form::kFully;
  return type == kModelSpace ? Form::kModelSpace : Form::kPlain;
}

bool same_ranks(const Topology& a, const Topology& b) {
  return a.tp == b.tp && a.pp == b.pp && a.ep == b.ep;
}

// The name without a chain, with the main weights' new name.
std::string new_name(std::string_view name) {
  const Key key = parse_key(name);
  if (key.state.empty()) return std::string(name);
  return fmt::format("optimizer.state.{}.{}",
                     key.state == kOldMain ? kMain : key.state, key.model);
}

void rename_states(Catalog& catalog) {
  std::unordered_set<std::string> names;
  for (Tensor& tensor : catalog.tensors) {
    std::string name = new_name(tensor.name);
    if (!names.insert(name).second)
      throw unfaithful_error({catalog.path, tensor.name},
                             "there would be two tensors {}", name);
    tensor.name = std::move(name);
    if (tensor.state == kOldMain) tensor.state = kMain;
  }
  for (Claim& claim : catalog.claims) {
    claim.exact = new_name(claim.exact);
    claim.rounded = new_name(claim.rounded);
  }
}

// A non-distributed optimizer has no main weights of float32 parameters: they
// are their own.
void add_main_weights(Catalog& catalog) {
  std::unordered_map<std::string, size_t> models;
  std::unordered_set<std::string> with_main;
  std::vector<std::string> wanted;
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    if (tensor.kind == Kind::model) models.emplace(tensor.name, i);
    if (tensor.state == kMain) with_main.insert(tensor.param);
    if (tensor.state == "exp_avg") wanted.push_back(tensor.param);
  }
  size_t added = 0;
  for (const std::string& param : wanted) {
    if (with_main.contains(param)) continue;
    const auto model = models.find(param);
    if (model == models.end() ||
        catalog.tensors[model->second].dtype != DType::f32)
      throw unfaithful_error({catalog.path, param},
                             "has moments, but no main weight in float32")
          .with_hint("without --optim the optimizer state is written as it is");
    Tensor main = catalog.tensors[model->second];
    main.name = fmt::format("optimizer.state.{}.{}", kMain, param);
    main.kind = Kind::optim;
    main.param = param;
    main.state = kMain;
    catalog.tensors.push_back(std::move(main));
    ++added;
  }
  if (added)
    catalog.assumptions.push_back(fmt::format(
        "optimizer: {} float32 parameters are their own main weights", added));
}

void make_fully_reshardable(Catalog& catalog, Form form) {
  CommonEditor editor(catalog);
  set_optimizer(editor, catalog);
  set_content_metadata(editor);
  editor.finish();
  rename_states(catalog);
  if (form == Form::kPlain) add_main_weights(catalog);
  const auto objects = std::erase_if(catalog.objects, is_group_object);
  if (objects)
    catalog.assumptions.push_back(fmt::format(
        "optimizer: {} objects of flat buffers became entries of the common "
        "part, or describe what no longer exists",
        objects));
}

// State under unknown names would stay unconverted.
void check_no_state(const Catalog& catalog) {
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::optim)
      throw unfaithful_error({catalog.path, tensor.name},
                             "is optimizer state, but not under a sharded key "
                             "of Megatron's (optimizer.state.…): --optim "
                             "can't give it another form");
}

[[noreturn]] void refuse(const Catalog& catalog, Form form) {
  if (form == Form::kZero)
    throw unfaithful_error({catalog.path, {}},
                           "the optimizer state is one object for each "
                           "model-parallel rank (dp_zero_gather_scatter)")
        .with_hint(
            "--model-only writes the model; for the optimizer state, save it "
            "again with another sharding type");
  throw unfaithful_error({catalog.path, {}},
                         "the optimizer state is in flat buffers whose "
                         "parameters can't be told")
      .with_hint(
          "`ckpt inspect` says why; the model alone is written with "
          "--model-only, the whole for the same tp, pp and ep without --optim");
}

}  // namespace

void convert_optimizer(Catalog& catalog, const Layout& layout) {
  const std::string wanted = wanted_of(layout).optimizer;
  check_optimizer_type(wanted);
  const std::string type = sharding_type(catalog);
  const Form form = form_of(catalog, type);
  const bool asked = !wanted.empty();
  if (form == Form::kRaw || form == Form::kZero) {
    if (asked || !same_ranks(layout.topology, catalog.topology))
      refuse(catalog, form);
    return;
  }
  if (form == Form::kNone && asked) check_no_state(catalog);
  if (form == Form::kNone || form == Form::kFully) return;
  if (asked || form == Form::kViewed) {
    make_fully_reshardable(catalog, form);
    catalog.assumptions.push_back(fmt::format(
        "optimizer: written as {}, {}", kFullyReshardable,
        asked ? "as --optim says"
              : "since " + type + " belongs to the topology it was made for"));
    return;
  }
  if (form == Form::kModelSpace)
    catalog.problems.push_back(
        warning("old_optimizer", {catalog.path, {}},
                "optimizer state keeps the names of {}, which "
                "megatron-core 0.16 and later don't load; --optim {} "
                "gives it the names that they do",
                kModelSpace, kFullyReshardable));
}

bool gather_optimizer(Catalog& catalog, std::optional<bool> distributed) {
  const Form form = form_of(catalog, sharding_type(catalog));
  if (form == Form::kRaw || form == Form::kZero) refuse(catalog, form);
  if (form == Form::kNone) check_no_state(catalog);
  const bool plain = form == Form::kPlain;
  if (plain && distributed != true) {
    rename_states(catalog);
    return false;
  }
  if (form != Form::kFully) make_fully_reshardable(catalog, form);
  return plain || distributed != false;
}

}  // namespace ckpt::megatron
