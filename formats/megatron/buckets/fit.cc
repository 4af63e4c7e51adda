// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/buckets/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "ckpt/error.h"
#include "formats/megatron/buckets/buffer.h"
#include "formats/megatron/state/common.h"
#include "formats/megatron/state/optimizer_groups.h"

namespace ckpt::megatron {
namespace {

struct Candidate {
  OrderStyle style;
  bool experts_apart = false;  // in the last of the chained optimizers
  bool ep_outermost = false;   // cores before expert tensor parallelism
  bool expected = true;        // nothing in the args contradicts it

  std::string text(bool has_experts) const {
    std::string text = style.fused_norms ? "transformer_engine" : "local";
    text += " layers";
    if (has_experts)
      text +=
          style.grouped_experts ? ", grouped experts" : ", experts one by one";
    return text;
  }
};

struct Sizes {
  uint64_t tp = 1, pp = 1, vpp = 1, ep = 1, etp = 1;
  uint64_t dp = 0, expert_dp = 0;  // ranks that share a buffer; 0: unknown
};

// More layers than any model has: a hostile file's number is not tried one by
// one.
constexpr uint64_t kMostLayers = 4096;

// Tries one candidate, buffer by buffer.
class Attempt {
 public:
  Attempt(BufferFitter& fitter, const Groups& groups, const Sizes& sizes,
          const Candidate& candidate, const ModelParams& model);

  Fit run();

 private:
  std::vector<BufferRef> dense_buffers(uint64_t rank) const;
  void dense();
  void experts();
  uint64_t end_of(Chunk chunk, uint64_t guess, uint64_t limit);
  bool take(const std::vector<RankParam>& params,
            const std::vector<BufferRef>& buffers, size_t& next, uint64_t ranks,
            std::vector<FittedBuffer>* out);
  void must_take(const std::vector<RankParam>& params,
                 const std::vector<BufferRef>& buffers, size_t& next,
                 uint64_t ranks);
  [[noreturn]] void fail(const std::string& why) const {
    throw unfaithful_error({}, "{}", why);
  }

  BufferFitter& fitter_;
  const Groups& groups_;
  const Sizes& sizes_;
  const Candidate& candidate_;
  const ModelParams& model_;
  std::set<std::optional<uint64_t>> chains_;
  std::vector<Chunk> chunks_;  // chunk v of stage p at v * pp + p
  Fit fit_;
  std::string why_;
};

Attempt::Attempt(BufferFitter& fitter, const Groups& groups, const Sizes& sizes,
                 const Candidate& candidate, const ModelParams& model)
    : fitter_(fitter),
      groups_(groups),
      sizes_(sizes),
      candidate_(candidate),
      model_(model) {
  for (const auto& [id, buffers] : groups) chains_.insert(id.chain);
}

Fit Attempt::run() {
  dense();
  if (candidate_.experts_apart) experts();
  size_t buffers = 0;
  for (const auto& [id, all] : groups_) buffers += all.size();
  if (fit_.buffers.size() != buffers)
    fail(
        fmt::format("the model's parameters are in {} gradient buffers, there "
                    "are {}",
                    fit_.buffers.size(), buffers));
  fit_.how = candidate_.text(model_.has_experts());
  return std::move(fit_);
}

// The dense optimizer's buffers; there are two such optimizers if the first
// chunk's parameters are gathered while the others step.
std::vector<BufferRef> Attempt::dense_buffers(uint64_t rank) const {
  std::vector<BufferRef> all;
  for (const auto& chain : chains_) {
    if (candidate_.experts_apart && chain && chain == *chains_.rbegin())
      continue;
    const auto group = groups_.find({chain, rank});
    if (group == groups_.end()) continue;
    for (uint32_t i = 0; i < group->second.size(); ++i)
      all.push_back({group->first, i});
  }
  return all;
}

void Attempt::dense() {
  const Experts experts =
      candidate_.experts_apart ? Experts::kNone : Experts::kToo;
  std::vector<std::vector<BufferRef>> buffers;
  for (uint64_t rank = 0; rank < sizes_.tp * sizes_.pp; ++rank)
    buffers.push_back(dense_buffers(rank));
  std::vector<size_t> next(buffers.size());
  const uint64_t chunks = sizes_.pp * sizes_.vpp;
  uint64_t layer = 0;
  for (uint64_t c = 0; c < chunks; ++c) {
    const uint64_t left = model_.layers() - layer;
    Chunk chunk{layer, layer, c == 0, c + 1 == chunks};
    const uint64_t stage = c % sizes_.pp;
    const auto takes = [&](uint64_t count) {
      chunk.end_layer = layer + count;
      size_t at = next[stage * sizes_.tp];
      return take(model_.of(chunk, {0, sizes_.tp, 0, 1}, experts),
                  buffers[stage * sizes_.tp], at, sizes_.dp, nullptr);
    };
    uint64_t count = left / (chunks - c);
    if (!takes(count)) {
      const std::string why = fitter_.why();
      const auto whole = [&] { return chunk.last ? left : uint64_t{0}; };
      for (count = whole(); count <= left && !takes(count); ++count) {
      }
      if (count > left) fail(why.empty() ? why_ : why);
    }
    chunk.end_layer = layer + count;
    for (uint64_t t = 0; t < sizes_.tp; ++t) {
      const uint64_t rank = t + sizes_.tp * stage;
      must_take(model_.of(chunk, {t, sizes_.tp, 0, 1}, experts), buffers[rank],
                next[rank], sizes_.dp);
    }
    chunks_.push_back(chunk);
    layer += count;
  }
  if (layer != model_.layers())
    fail(fmt::format("the gradient buffers hold {} of {} layers", layer,
                     model_.layers()));
}

void Attempt::experts() {
  const uint64_t width = sizes_.etp * sizes_.ep;
  for (uint64_t rank = 0; rank < width * sizes_.pp; ++rank) {
    uint64_t x, e, p;
    if (candidate_.ep_outermost) {
      x = rank % sizes_.etp;
      p = rank / sizes_.etp % sizes_.pp;
      e = rank / sizes_.etp / sizes_.pp;
    } else {
      x = rank % sizes_.etp;
      e = rank / sizes_.etp % sizes_.ep;
      p = rank / width;
    }
    const auto group = groups_.find({*chains_.rbegin(), rank});
    std::vector<BufferRef> buffers;
    if (group != groups_.end())
      for (uint32_t i = 0; i < group->second.size(); ++i)
        buffers.push_back({group->first, i});
    size_t next = 0;
    for (uint64_t v = 0; v < sizes_.vpp; ++v)
      must_take(model_.of(chunks_[v * sizes_.pp + p],
                          {x, sizes_.etp, e, sizes_.ep}, Experts::kOnly),
                buffers, next, sizes_.expert_dp);
  }
}

// Takes one chunk's parameters: a buffer for each dtype, in order of
// appearance.
bool Attempt::take(const std::vector<RankParam>& params,
                   const std::vector<BufferRef>& buffers, size_t& next,
                   uint64_t ranks, std::vector<FittedBuffer>* out) {
  std::vector<std::pair<DType, std::vector<RankParam>>> by_dtype;
  for (const RankParam& param : params) {
    auto at = std::ranges::find(by_dtype, param.dtype,
                                [](const auto& pair) { return pair.first; });
    if (at == by_dtype.end()) {
      by_dtype.push_back({param.dtype, {}});
      at = by_dtype.end() - 1;
    }
    at->second.push_back(param);
  }
  for (auto& [dtype, members] : by_dtype) {
    if (next == buffers.size()) {
      why_ = fmt::format("no gradient buffer for {} {} parameters",
                         members.size(), name(dtype));
      return false;
    }
    const BufferRef& ref = buffers[next++];
    if (fitter_.buffer(ref).dtype != dtype) {
      why_ = fmt::format("{}gbuf_idx_{} is not of {} parameters",
                         object_prefix(ref.group), ref.index, name(dtype));
      return false;
    }
    auto layout = fitter_.fit(ref, members, ranks);
    if (!layout) {
      why_ = fitter_.why();
      return false;
    }
    if (out)
      out->push_back(
          {ref.group, ref.index, std::move(members), std::move(*layout)});
  }
  return true;
}

void Attempt::must_take(const std::vector<RankParam>& params,
                        const std::vector<BufferRef>& buffers, size_t& next,
                        uint64_t ranks) {
  if (!take(params, buffers, next, ranks, &fit_.buffers)) fail(why_);
}

// What else the args say.
struct Args {
  std::optional<bool> grouped;  // moe_grouped_gemm
  bool transposed = false;      // moe_use_legacy_grouped_gemm
  // Ranks of experts: cores with expert tensor parallelism (0.11) have it
  // inside the pipeline, older ones have ep outside it.
  bool new_ranks = false;
  bool old_ranks = false;
};

Args read_args(const Catalog& catalog) {
  Args args;
  args.new_ranks = sharding_type(catalog) == "dp_reshardable";
  for (const Object& object : catalog.objects) {
    args.new_ranks |= object.name == "content_metadata";  // 0.13
    if (object.name != kArgs || !object.document) continue;
    const pickle::Document& document = *object.document;
    const pickle::Id dict = args_dict(document, object.node);
    const pickle::Id grouped = document.find(dict, "moe_grouped_gemm");
    if (document.is(grouped, pickle::Type::kBool))
      args.grouped = document.boolean(grouped);
    const pickle::Id legacy =
        document.find(dict, "moe_use_legacy_grouped_gemm");
    args.transposed = args.grouped == true &&
                      document.is(legacy, pickle::Type::kBool) &&
                      document.boolean(legacy);
    const bool knows =
        document.find(dict, "expert_tensor_parallel_size") != pickle::kNoId;
    args.new_ranks |= knows;
    args.old_ranks = !knows;
  }
  args.old_ranks &= !args.new_ranks;
  return args;
}

Sizes sizes_of(const Catalog& catalog, const Groups& groups,
               const Facts& facts) {
  Sizes sizes;
  const Topology& found = catalog.topology;
  sizes.tp = facts.tp.value_or(found.tp);
  sizes.pp = facts.pp.value_or(found.pp);
  sizes.ep = facts.ep.value_or(found.ep);
  sizes.etp = facts.etp.value_or(sizes.tp);
  const auto over = [&](uint64_t a, uint64_t b) {
    const auto product = checked_mul(a, b);
    return !product || *product > groups.size();
  };
  if (sizes.tp == 0 || sizes.pp == 0 || sizes.ep == 0 || sizes.etp == 0 ||
      over(sizes.tp, sizes.pp) || over(sizes.ep, sizes.etp))
    throw unfaithful_error({},
                           "tp {} x pp {} ranks, ep {} x etp {} of experts; "
                           "but {} have gradient buffers",
                           sizes.tp, sizes.pp, sizes.ep, sizes.etp,
                           groups.size());
  const std::vector<Buffer>& first = groups.begin()->second;
  sizes.vpp = facts.vpp.value_or(static_cast<uint64_t>(
      std::ranges::count(first, first.front().dtype, &Buffer::dtype)));
  if (sizes.vpp == 0 || sizes.vpp > kMostLayers)
    throw unfaithful_error({}, "{} virtual pipeline stages", sizes.vpp);
  const auto ranks = [](std::optional<uint64_t> n, uint64_t factor) {
    return checked_mul(n.value_or(0), factor).value_or(0);
  };
  sizes.dp = ranks(facts.dp, facts.cp.value_or(1));
  const uint64_t width = sizes.etp * sizes.ep * sizes.pp;
  if (facts.world_size) sizes.expert_dp = *facts.world_size / width;
  return sizes;
}

std::vector<Candidate> candidates(const ModelParams& model,
                                  const Groups& groups, const Sizes& sizes,
                                  const Facts& facts, const Args& args) {
  const bool chained = groups.rbegin()->first.chain.has_value();
  std::vector<Candidate> all;
  for (const bool fused : {true, false}) {
    if (!fused && !model.has_norms()) continue;
    for (const bool grouped : {true, false}) {
      if (!grouped && !model.has_experts()) continue;
      for (const bool apart : {true, false}) {
        if (apart && (!model.has_experts() || !chained)) continue;
        if (!apart && model.has_experts() && sizes.ep > 1) continue;
        for (const bool outermost : {false, true}) {
          // Without these sizes both kinds of expert ranks are the same.
          if (outermost && (!apart || sizes.ep == 1 || sizes.pp == 1 ||
                            facts.etp || args.new_ranks))
            continue;
          Candidate one{{fused, grouped}, apart, outermost};
          one.expected &= outermost || !args.old_ranks || !apart;
          if (facts.local_spec && model.has_norms())
            one.expected &= *facts.local_spec != fused;
          if (args.grouped && model.has_experts())
            one.expected &= *args.grouped == grouped;
          all.push_back(one);
        }
      }
    }
  }
  return all;
}

// True if both put every parameter in the same place.
bool same_places(const Fit& a, const Fit& b) {
  const auto places = [](const Fit& fit) {
    std::vector<
        std::tuple<GroupId, uint32_t, uint32_t, uint64_t, uint32_t, Dims>>
        all;
    for (const FittedBuffer& buffer : fit.buffers)
      for (size_t i = 0; i < buffer.params.size(); ++i) {
        const BufferSlot& slot = buffer.layout.slots[i];
        const ParamPart& part = buffer.params[i].parts.front();
        all.emplace_back(buffer.group, buffer.buffer, slot.bucket, slot.begin,
                         part.tensor, part.box.offset);
      }
    std::ranges::sort(all);
    return all;
  };
  return places(a) == places(b);
}

}  // namespace

Fit fit_buckets(const Catalog& catalog, const Groups& groups,
                const Facts& facts) {
  const Sizes sizes = sizes_of(catalog, groups, facts);
  BufferFitter fitter(catalog, groups);
  struct Found {
    Fit fit;
    bool expected = false;
  };
  std::vector<Found> found;
  std::string why;
  const Args args = read_args(catalog);
  if (args.transposed)
    throw unfaithful_error({},
                           "experts of the old fused kind are transposed in "
                           "their buffers");
  const auto all =
      candidates(ModelParams(catalog, {}), groups, sizes, facts, args);
  for (const Candidate& candidate : all) {
    const ModelParams model(catalog, candidate.style);
    if (model.layers() > kMostLayers)
      throw unfaithful_error({}, "{} layers", model.layers());
    try {
      Fit fit = Attempt(fitter, groups, sizes, candidate, model).run();
      const auto same = std::ranges::find_if(found, [&](const Found& other) {
        return same_places(other.fit, fit);
      });
      if (same == found.end())
        found.push_back({std::move(fit), candidate.expected});
      else
        same->expected |= candidate.expected;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUnfaithful) throw;
      if (why.empty() || candidate.expected) why = error.what();
    }
  }
  if (found.empty()) throw unfaithful_error({}, "{}", why);
  // The args decide between arrangements that the files can't tell apart.
  if (found.size() > 1)
    std::erase_if(found, [](const Found& one) { return !one.expected; });
  if (found.size() != 1)
    throw unfaithful_error({},
                           "several orders of the parameters fit the gradient "
                           "buffers, and no args say which it was");
  return std::move(found.front().fit);
}

}  // namespace ckpt::megatron
