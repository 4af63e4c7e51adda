// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/models/titan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "ckpt/error.h"
#include "formats/runs/models/own_names.h"
#include "formats/runs/models/titan_config.h"
#include "formats/runs/models/titan_names.h"
#include "formats/runs/models/titan_views.h"
#include "lib/text/format.h"
#include "models/view.h"

namespace ckpt::runs {
namespace {

using families::View;
using text::printable;
using titan::Config;

constexpr uint64_t kMostExperts = 65'536;

// What both directions share: the tensors of a catalog, one by one, become
// others; parts of one wait until all are there.
class Renaming {
 public:
  explicit Renaming(Catalog& source)
      : source_(source), config_(titan::config_of(source)) {}
  virtual ~Renaming() = default;

  void run() {
    std::vector<Tensor> before = std::move(source_.tensors);
    source_.tensors.clear();
    for (const Tensor& tensor : before) {
      if (tensor.kind == Kind::other)
        source_.tensors.push_back(tensor);
      else
        take(tensor);
    }
    join_parts();
    finish();
    source_.assumptions.push_back(fmt::format(
        "torchtitan: projections by {} and {} heads, as config.json says",
        config_.queries, config_.keys));
  }

 protected:
  // Adds what the tensor becomes.
  virtual void take(const Tensor& tensor) = 0;
  virtual View join(const std::string& whole,
                    const std::vector<View>& parts) const = 0;
  // How many parts there are to be of it; 0: any number.
  virtual size_t count_of(const std::string& whole) const = 0;
  virtual void finish() {}

  const titan::Model& model() const { return *config_.model; }
  uint64_t layers() const { return config_.layers; }

  // A view fails without saying of which tensor.
  template <typename Make>
  auto named(const std::string& name, Make make) const {
    try {
      return make();
    } catch (const Error& error) {
      throw unfaithful_error({source_.path, printable(name)}, "{}",
                             error.problem());
    }
  }

  Tensor& add(const Tensor& from, std::string name) {
    set_parameter(source_.tensors.emplace_back(from), std::move(name));
    return source_.tensors.back();
  }

  void add(const Tensor& from, const std::string& name, const View& view) {
    into(view, add(from, name));
  }

  void wait(const Tensor& part, size_t index, const std::string& whole) {
    const auto [at, fresh] =
        waiting_[{whole, part.kind, part.state}].emplace(index, part);
    if (!fresh)
      throw unfaithful_error({source_.path, printable(part.name)},
                             "is there twice, as {} too",
                             printable(at->second.name));
  }

  [[noreturn]] void refuse(const Tensor& tensor) const {
    throw unfaithful_error({source_.path, printable(parameter_of(tensor))},
                           "has no counterpart that is known between "
                           "torchtitan's {} and that of transformers",
                           model().type)
        .with_hint("lightning and accelerate keep names as they are");
  }

  View rotated(const View& view, const std::string& hf, bool to_pairs) const {
    if (!model().pairs) return view;
    const auto at = titan::in_hf_layer(hf, layers());
    if (at && at->rest == "self_attn.q_proj.weight")
      return titan::turn(view, config_.queries, to_pairs);
    if (at && at->rest == "self_attn.k_proj.weight")
      return titan::turn(view, config_.keys, to_pairs);
    return view;
  }

  // gpt_oss' weights of experts, by transformers' name.
  bool is_transposed(const std::string& hf) const {
    return model().type == "gpt_oss" &&
           (hf.ends_with(".experts.gate_up_proj") ||
            hf.ends_with(".experts.down_proj"));
  }

  Catalog& source_;
  const Config config_;

 private:
  using Whole = std::tuple<std::string, Kind, std::string>;

  void join_parts() {
    for (const auto& [key, parts] : waiting_) {
      const auto& [whole, kind, state] = key;
      const size_t count = count_of(whole);
      if (parts.rbegin()->first + 1 != parts.size() ||
          (count != 0 && parts.size() != count))
        throw unfaithful_error(
            {source_.path, printable(whole)},
            "is one of {} parts, of which {} are there{}",
            std::max(count, parts.rbegin()->first + 1), parts.size(),
            state.empty() ? "" : " with " + printable(state));
      join(whole, parts);
    }
  }

  void join(const std::string& whole, const std::map<size_t, Tensor>& parts) {
    const Tensor& first = parts.begin()->second;
    Tensor& made = add(first, whole);
    if (first.shape.empty()) {
      for (const auto& [index, part] : parts)
        if (index != 0)
          source_.redundant.push_back(
              {part,
               {},
               first,
               "they are trained in one parameter, which has one step"});
      return;
    }
    std::vector<View> views;
    for (const auto& [index, part] : parts) views.push_back(View::of(part));
    const View all = named(whole, [&] { return join(whole, views); });
    into(all, made);
  }

  std::map<Whole, std::map<size_t, Tensor>> waiting_;
};

class ToTitan : public Renaming {
 public:
  ToTitan(Catalog& source, bool fused) : Renaming(source), fused_(fused) {}

 private:
  void take(const Tensor& tensor) override {
    const std::string& name = parameter_of(tensor);
    if (fused_ && tensor.kind == Kind::optim)
      if (const auto part = titan::part_of_fused(model(), name, layers()))
        return wait(tensor, part->index, part->whole);
    if (const auto part = titan::part_of_experts(model(), name, layers())) {
      if (part->index >= kMostExperts) refuse(tensor);
      return wait(tensor, part->index, part->whole);
    }
    const auto trained = titan::parts_of_trained(model(), name, layers());
    for (size_t i = 0; i < trained.size(); ++i) {
      if (tensor.shape.empty())
        add(tensor, trained[i]);
      else
        add(tensor, trained[i],
            named(name, [&] { return titan::half(View::of(tensor), i); }));
    }
    if (!trained.empty()) return;
    const std::string other = titan::titan_name(model(), name, layers());
    if (other.empty()) refuse(tensor);
    if (tensor.shape.size() < 2) {
      add(tensor, other);
    } else if (is_transposed(name)) {
      add(tensor, other,
          named(name, [&] { return titan::transposed(View::of(tensor)); }));
    } else if (model().pairs) {
      add(tensor, other,
          named(name, [&] { return rotated(View::of(tensor), name, true); }));
    } else {
      add(tensor, other);
    }
  }

  size_t count_of(const std::string& whole) const override {
    return is_fused(whole) ? 3 : config_.experts;
  }

  View join(const std::string& whole,
            const std::vector<View>& parts) const override {
    if (!is_fused(whole)) return View::stack(parts);
    std::array<View, 3> three = {parts[0], parts[1], parts[2]};
    if (model().pairs) {
      three[0] = titan::turn(three[0], config_.queries, true);
      three[1] = titan::turn(three[1], config_.keys, true);
    }
    return titan::fused(three, config_);
  }

  static bool is_fused(const std::string& whole) {
    return whole.find(titan::kFused) != whole.npos;
  }

  // torchtitan's experts have a bias, which it moves to balance their load, and
  // where transformers has none, it is zero.
  void finish() override {
    std::set<std::string> there;
    for (const Tensor& tensor : source_.tensors) there.insert(tensor.name);
    std::vector<Tensor> made;
    for (const Tensor& tensor : source_.tensors) {
      const auto at = titan::in_titan_layer(tensor.name);
      if (tensor.kind != Kind::model || !at || at->rest != titan::kRouter ||
          tensor.shape.size() != 2)
        continue;
      std::string name = titan::in_titan(*at, titan::kExpertBias);
      if (!there.contains(name))
        made.push_back(zeros(std::move(name), tensor.shape[0]));
    }
    if (made.empty()) return;
    source_.assumptions.push_back(fmt::format(
        "torchtitan: the bias of experts is 0 in {}, as without one",
        text::counted(made.size(), "layer")));
    std::ranges::move(made, std::back_inserter(source_.tensors));
  }

  Tensor zeros(std::string name, uint64_t count) {
    Tensor made{.name = std::move(name), .dtype = DType::f32, .shape = {count}};
    made.dp_replicated = true;
    source_.files.push_back({.path = "zero biases",
                             .size = byte_size(made),
                             .codec = Codec::kFill,
                             .fill = std::string(sizeof(float), '\0')});
    Piece piece{.box = Box::whole(made.shape)};
    piece.extent.file = static_cast<uint32_t>(source_.files.size() - 1);
    made.pieces.push_back(std::move(piece));
    return made;
  }

  const bool fused_;
};

class FromTitan : public Renaming {
 public:
  using Renaming::Renaming;

 private:
  void take(const Tensor& tensor) override {
    const std::string& name = parameter_of(tensor);
    if (tensor.kind == Kind::model && is_bias_to_prove(tensor)) return;
    const auto fused = titan::parts_of_fused(model(), name, layers());
    if (!fused.empty()) return split(tensor, fused);
    if (tensor.kind == Kind::model) {
      if (const auto each = titan::each_expert(model(), name, layers()))
        return split(tensor, *each);
    } else if (const auto part =
                   titan::part_of_trained(model(), name, layers())) {
      if (part->index == 2) {
        add(tensor, part->whole);
        return;
      }
      return wait(tensor, part->index, part->whole);
    }
    const std::string other = titan::hf_name(model(), name, layers());
    if (other.empty()) refuse(tensor);
    if (tensor.shape.size() >= 2 && (is_transposed(other) || model().pairs))
      add(tensor, other, named(name, [&] { return turned(tensor, other); }));
    else
      add(tensor, other);
  }

  View turned(const Tensor& tensor, const std::string& hf) const {
    const View view = View::of(tensor);
    return is_transposed(hf) ? titan::transposed(view)
                             : rotated(view, hf, false);
  }

  // Without a bias in transformers, experts are taken by their scores alone.
  bool is_bias_to_prove(const Tensor& tensor) {
    const auto at = titan::in_titan_layer(tensor.name);
    if (model().bias || !at || at->rest != titan::kExpertBias) return false;
    source_.redundant.push_back(
        {tensor,
         0.0,
         {},
         fmt::format("transformers' {} takes experts without a bias; "
                     "with --exclude '*.{}' it will take others than "
                     "torchtitan does",
                     model().type, titan::kExpertBias)});
    return true;
  }

  void split(const Tensor& tensor, const std::vector<std::string>& parts) {
    if (tensor.shape.empty()) {
      for (const std::string& part : parts) add(tensor, part);
      return;
    }
    const auto views = named(tensor.name, [&] {
      auto three = titan::unfused(View::of(tensor), config_);
      for (size_t i = 0; i < three.size(); ++i)
        if (tensor.shape.size() == 2)
          three[i] = rotated(three[i], parts[i], false);
      return three;
    });
    for (size_t i = 0; i < views.size(); ++i) add(tensor, parts[i], views[i]);
  }

  void split(const Tensor& tensor, const titan::Each& each) {
    const uint64_t count = tensor.shape.empty() ? 0 : tensor.shape[0];
    if (tensor.shape.size() != 3 || count > kMostExperts ||
        (config_.experts != 0 && count != config_.experts))
      throw unfaithful_error({source_.path, printable(tensor.name)},
                             "has shape {}, config.json has {} experts",
                             to_string(tensor.shape), config_.experts);
    const View all = View::of(tensor);
    for (uint64_t e = 0; e < count; ++e)
      add(tensor, each.before + std::to_string(e) + each.after,
          titan::expert(all, e));
  }

  // w1 and w3 of all experts are gate_up_proj.
  size_t count_of(const std::string&) const override { return 2; }
  View join(const std::string&, const std::vector<View>& parts) const override {
    return View::concat(parts, 1);
  }

  // A tied output layer is in torchtitan's steps twice, in transformers' once.
  void finish() override {
    constexpr std::string_view kHead = "lm_head.weight";
    if (!config_.tied) return;
    const Tensor* const embedding = source_.find("model.embed_tokens.weight");
    const auto head = std::ranges::find(source_.tensors, kHead, &Tensor::name);
    const bool trained =
        std::ranges::any_of(source_.tensors, [&](const Tensor& tensor) {
          return tensor.kind == Kind::optim && tensor.param == kHead;
        });
    if (!embedding || head == source_.tensors.end() || trained) return;
    source_.redundant.push_back(
        {*head, {}, *embedding, "config.json says that they are tied"});
    source_.tensors.erase(head);
  }
};

bool any_model(const Catalog& source, std::string_view word) {
  return std::ranges::any_of(source.tensors, [&](const Tensor& tensor) {
    return tensor.kind == Kind::model &&
           tensor.name.find(word) != tensor.name.npos;
  });
}

}  // namespace

bool has_titan_names(const Catalog& source) {
  return any_model(source, ".attention.qkv_linear.wq.") ||
         any_model(source, ".attention.wkv_a.");
}

bool has_transformers_names(const Catalog& source) {
  return any_model(source, ".self_attn.q_proj.") ||
         any_model(source, ".self_attn.kv_a_proj_with_mqa.");
}

// torchtitan's other models, too, which are refused by their names; Meta's
// files have the same embeddings, and other projections.
bool is_titans(const Catalog& catalog) {
  if (has_titan_names(catalog)) return true;
  return catalog.run && catalog.run->trainer == "torchtitan" &&
         !any_model(catalog, ".attention.wq.") &&
         std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
           return tensor.name == "tok_embeddings.weight" ||
                  tensor.name == "img_in.weight";
         });
}

void check_trained(const Catalog& source) {
  for (const Tensor& tensor : source.tensors) {
    const auto at = titan::in_titan_layer(tensor.param);
    if (tensor.kind == Kind::optim && at && at->mtp)
      throw unfaithful_error({source.path, printable(tensor.name)},
                             "is of multi-token prediction, which transformers "
                             "does not train")
          .with_hint("--model-only leaves the optimizer out");
  }
}

void to_titan(Catalog& source, bool fused) { ToTitan(source, fused).run(); }
void from_titan(Catalog& source) { FromTitan(source).run(); }

}  // namespace ckpt::runs
