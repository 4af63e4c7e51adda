// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/buckets/shift.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "ckpt/error.h"
#include "formats/megatron/model/facts.h"
#include "formats/megatron/model/rules.h"
#include "formats/megatron/state/common.h"

namespace ckpt::megatron {
namespace {

// More than any job has: a hostile file's number is not tried one by one.
constexpr uint64_t kMostJobLayers = 4096;
constexpr uint64_t kMostJobRanks = uint64_t{1} << 16;
// Of unknown jobs, bucket ends are tried for up to that many ranks.
constexpr uint64_t kTriedRanks = 64;

struct JobSizes {
  uint64_t tp = 1, ep = 1, etp = 1;
  uint64_t dp = 0, expert_dp = 0;  // 0: unknown
  bool apart = false;              // experts have buffers of their own
  bool single = true;              // pipeline stage
  uint64_t first = 0, last = 0;    // layers of the first and last chunk
};

void add_by_dtype(std::vector<RankParam> params, JobBuffers& group) {
  std::map<DType, JobBuffer> by_dtype;
  for (RankParam& param : params)
    by_dtype[param.dtype].params.push_back(std::move(param));
  for (auto& [dtype, buffer] : by_dtype)
    group.buffers.push_back(std::move(buffer));
}

class JobBuilder {
 public:
  JobBuilder(const ModelParams& model, const JobSizes& sizes)
      : model_(model), sizes_(sizes) {}

  Job build() {
    const Chunk first{0, sizes_.first, true, sizes_.single};
    Job job;
    job.groups.push_back(dense(first, true));
    if (sizes_.apart) job.groups.push_back(experts(first));
    if (sizes_.last != 0) {
      const uint64_t layers = model_.layers();
      job.groups.push_back(
          dense({layers - sizes_.last, layers, false, true}, false));
    }
    for (JobBuffers& group : job.groups) mark_saved(group);
    return job;
  }

 private:
  JobBuffers dense(const Chunk& chunk, bool bucketed) const {
    JobBuffers group{.buffers = {}, .ranks = sizes_.dp, .bucketed = bucketed};
    const Experts which = sizes_.apart ? Experts::kNone : Experts::kToo;
    for (uint64_t t = 0; t < sizes_.tp; ++t)
      add_by_dtype(model_.of(chunk, {t, sizes_.tp, 0, 1}, which), group);
    return group;
  }

  JobBuffers experts(const Chunk& chunk) const {
    JobBuffers group{
        .buffers = {}, .ranks = sizes_.expert_dp, .bucketed = true};
    for (uint64_t e = 0; e < sizes_.ep; ++e)
      for (uint64_t x = 0; x < sizes_.etp; ++x)
        add_by_dtype(
            model_.of(chunk, {x, sizes_.etp, e, sizes_.ep}, Experts::kOnly),
            group);
    return group;
  }

  // Of what several ranks hold, the first one's is saved.
  void mark_saved(JobBuffers& group) {
    for (JobBuffer& buffer : group.buffers)
      for (const RankParam& param : buffer.params)
        buffer.saved.push_back(
            held_.emplace(param.parts[0].tensor, param.parts[0].box.offset)
                .second);
  }

  const ModelParams& model_;
  const JobSizes& sizes_;
  std::set<std::pair<uint32_t, Dims>> held_;
};

// How many layers the first chunk may have: the even share of the stages that
// args name, or any number.
std::vector<JobSizes> stages(const JobSizes& sizes, const Facts& facts,
                             const ModelParams& model, bool shared) {
  std::vector<JobSizes> all;
  const uint64_t layers = model.layers();
  const auto add = [&](uint64_t first, uint64_t last) {
    all.push_back(sizes);
    all.back().single = false;
    all.back().first = first;
    all.back().last = shared ? last : 0;
  };
  if (facts.pp.value_or(1) == 1 && facts.vpp.value_or(1) == 1) {
    all.push_back(sizes);
    all.back().first = layers;
  }
  if (facts.pp == 1) return all;
  const auto chunks = checked_mul(facts.pp.value_or(0), facts.vpp.value_or(1));
  if (facts.pp && chunks && *chunks != 0 && layers % *chunks == 0) {
    add(layers / *chunks, layers / *chunks);
    if (shared) return all;  // too many pairs to try
  }
  for (uint64_t first = 0; first <= layers; ++first)
    for (uint64_t last = shared ? 1 : 0; last <= (shared ? layers - first : 0);
         ++last)
      add(first, last);
  return all;
}

std::vector<JobSizes> expert_sizes(JobSizes sizes, const Facts& facts,
                                   const ModelParams& model, uint64_t experts) {
  if (!model.has_experts()) return {sizes};
  std::vector<JobSizes> all;
  if (facts.ep.value_or(1) == 1 && facts.etp.value_or(sizes.tp) == sizes.tp)
    all.push_back(sizes);
  sizes.apart = true;
  for (uint64_t ep = 1; ep <= experts; ++ep) {
    if (experts % ep || (facts.ep && *facts.ep != ep)) continue;
    sizes.ep = ep;
    const uint64_t width = sizes.etp * ep * facts.pp.value_or(1);
    sizes.expert_dp =
        facts.world_size && facts.pp ? *facts.world_size / width : 0;
    all.push_back(sizes);
  }
  return all;
}

JobSizes sizes_of_job(const Catalog& catalog, const Facts& facts) {
  JobSizes sizes;
  sizes.tp = facts.tp.value_or(std::max<uint64_t>(1, catalog.topology.tp));
  sizes.etp = facts.etp.value_or(sizes.tp);
  if (sizes.tp > kMostJobRanks || sizes.etp > kMostJobRanks ||
      facts.ep.value_or(1) > kMostJobRanks ||
      facts.pp.value_or(1) > kMostJobRanks || sizes.tp == 0 || sizes.etp == 0 ||
      facts.ep == 0 || facts.pp == 0)
    throw unfaithful_error({}, "the args name impossible numbers of ranks");
  if (facts.dp)
    sizes.dp = checked_mul(*facts.dp, facts.cp.value_or(1)).value_or(0);
  return sizes;
}

uint64_t experts_of_model(const Facts& facts) {
  return std::min<uint64_t>(facts.num_experts.value_or(1), kMostJobRanks);
}

bool has_shared_embedding(const Catalog& catalog) {
  bool output = false, prediction = false;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::model) continue;
    output |= tensor.name.ends_with("output_layer.weight");
    prediction |= tensor.name.starts_with("mtp.");
  }
  return !output || prediction;
}

}  // namespace

void each_job(const Catalog& catalog,
              const std::function<void(const Job&)>& each) {
  Facts facts = facts_of(catalog);
  infer_facts(catalog.tensors, facts);
  const JobSizes known = sizes_of_job(catalog, facts);
  const bool shared = has_shared_embedding(catalog);
  size_t possible = 0;
  std::string why = "no parameters are known";
  const auto build = [&](const ModelParams& model, const JobSizes& sizes) {
    Job job;
    try {
      job = JobBuilder(model, sizes).build();
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUnfaithful) throw;
      why = error.what();
      return;
    }
    ++possible;
    each(job);
  };
  for (const bool fused : {true, false})
    for (const bool grouped : {true, false}) {
      const ModelParams model(catalog, {fused, grouped});
      if ((!fused && !model.has_norms()) || (!grouped && !model.has_experts()))
        continue;
      if (model.layers() > kMostJobLayers)
        throw unfaithful_error({}, "{} layers", model.layers());
      for (const JobSizes& with :
           expert_sizes(known, facts, model, experts_of_model(facts)))
        for (const JobSizes& sizes : stages(with, facts, model, shared))
          build(model, sizes);
    }
  if (possible == 0) throw unfaithful_error({}, "{}", why);
}

std::vector<uint64_t> divisors_of(uint64_t ranks) {
  std::vector<uint64_t> all;
  const auto add = [&](uint64_t n) {
    for (const bool high_bandwidth : {false, true}) {
      const uint64_t divisor = bucket_divisor(n, high_bandwidth);
      if (divisor != 0 && std::ranges::find(all, divisor) == all.end())
        all.push_back(divisor);
    }
  };
  if (ranks != 0) add(ranks);
  for (uint64_t n = 1; ranks == 0 && n <= kTriedRanks; ++n) add(n);
  return all;
}

BufferLayout lay_out(const JobBuffer& buffer, const BufferRules& rules) {
  std::vector<BufferParam> params;
  for (const RankParam& param : buffer.params)
    params.push_back({param.numel, param.shared_embedding});
  return lay_out_buffer(params, rules);
}

Shift shift_of(const JobBuffer& buffer, const BufferLayout& layout) {
  std::vector<uint64_t> padded(layout.buckets.size());  // where each begins
  for (size_t b = 1; b < padded.size(); ++b)
    padded[b] = padded[b - 1] + layout.buckets[b - 1].padded;
  const auto cut_at = [&](uint32_t p) {
    return padded[layout.slots[p].bucket] + layout.slots[p].begin;
  };
  Shift shift;
  const auto count = static_cast<uint32_t>(buffer.params.size());
  uint32_t from = count;  // parameters from - 1, from - 2, … are ahead
  std::vector<uint64_t> told(count);  // elements of each that are in a run
  for (uint32_t to = count; to-- > 0;) {
    const uint64_t numel = buffer.params[to].numel;
    uint64_t at = 0;
    const uint64_t begin = layout.joined(layout.slots[to]);
    while (from > 0 &&
           cut_at(from - 1) + buffer.params[from - 1].numel <= begin)
      --from;
    for (uint32_t f = from; f-- > 0 && cut_at(f) < begin + numel;) {
      const uint64_t a = std::max(begin, cut_at(f));
      const uint64_t b =
          std::min(begin + numel, cut_at(f) + buffer.params[f].numel);
      const uint64_t from_begin = a - cut_at(f);
      if (from_begin > told[f] && buffer.saved[f])
        shift.zeros.push_back({f, told[f], from_begin});
      told[f] = b - cut_at(f);
      if (!buffer.saved[to] || !buffer.saved[f]) continue;
      if (a - begin > at) shift.lost.push_back({to, at, a - begin});
      shift.runs.push_back({to, a - begin, f, from_begin, b - a});
      at = b - begin;
    }
    if (buffer.saved[to] && at < numel) shift.lost.push_back({to, at, numel});
  }
  for (uint32_t f = 0; f < count; ++f)
    if (buffer.saved[f] && told[f] < buffer.params[f].numel)
      shift.zeros.push_back({f, told[f], buffer.params[f].numel});
  return shift;
}

}  // namespace ckpt::megatron
