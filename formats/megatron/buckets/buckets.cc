// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/buckets/buckets.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/megatron/buckets/fit.h"
#include "formats/megatron/buckets/locate.h"
#include "formats/megatron/model/keys.h"

namespace ckpt::megatron {
namespace {

constexpr std::string_view kMain = "param";

// The parameters of one state, by the model's tensor.
class Builder {
 public:
  Builder(const Catalog& catalog, const Fit& fit, const Groups& groups)
      : catalog_(catalog), fit_(fit), groups_(groups) {
    for (const auto& [id, buffers] : groups)
      for (const Buffer& buffer : buffers)
        for (const Bucket& bucket : buffer.buckets)
          for (const auto& [state, tensor] : bucket.states)
            chunks_.add(catalog, catalog.tensors[tensor]);
  }

  std::vector<Tensor> build() {
    for (const FittedBuffer& buffer : fit_.buffers)
      for (size_t i = 0; i < buffer.params.size(); ++i)
        add(buffer, buffer.params[i], buffer.layout.slots[i]);
    std::vector<Tensor> all;
    for (const std::string& state : order_)
      for (auto& [tensor, built] : states_[state])
        all.push_back(std::move(built));
    return all;
  }

  BucketChunks&& chunks() && { return std::move(chunks_); }
  size_t skipped() const { return skipped_; }

 private:
  void add(const FittedBuffer& buffer, const RankParam& param,
           const BufferSlot& slot) {
    const Bucket& bucket =
        groups_.at(buffer.group)[buffer.buffer].buckets[slot.bucket];
    for (const auto& [state, bucket_tensor] : bucket.states) {
      const Tensor& source = catalog_.tensors[bucket_tensor];
      uint64_t begin = slot.begin;
      for (const ParamPart& part : param.parts) {
        const uint64_t end = begin + volume(part.box);
        add_part(state, source, part, begin, end);
        begin = end;
      }
    }
  }

  void add_part(const std::string& state, const Tensor& source,
                const ParamPart& part, uint64_t begin, uint64_t end) {
    Tensor& tensor = target(state, source, part.tensor);
    std::vector<Piece> pieces;
    for (BucketChunks::Cut& cut : chunks_.cut(source, begin, end)) {
      Piece piece{part.box,
                  FlatRange{cut.range.begin - begin, cut.range.end - begin},
                  std::move(cut.extent), cut.transform};
      if (piece.flat->begin == 0 && piece.flat->end == end - begin)
        piece.flat.reset();
      pieces.push_back(std::move(piece));
    }
    add_pieces(tensor, std::move(pieces));
  }

  // Of what every tensor-parallel rank holds, takes the first rank's pieces;
  // others are replicas if they are cut alike.
  void add_pieces(Tensor& tensor, std::vector<Piece> pieces) {
    if (pieces.empty()) return;
    auto& ranges = held_[&tensor][pieces.front().box.offset];
    std::vector<FlatRange> mine;
    for (const Piece& piece : pieces)
      mine.push_back(piece.flat.value_or(FlatRange{0, volume(piece.box)}));
    if (ranges.empty()) ranges = mine;
    if (ranges != mine) {
      ++skipped_;
      return;
    }
    std::ranges::move(pieces, std::back_inserter(tensor.pieces));
  }

  Tensor& target(const std::string& state, const Tensor& source,
                 uint32_t model) {
    if (std::ranges::find(order_, state) == order_.end())
      order_.push_back(state);
    auto [at, fresh] = states_[state].try_emplace(model);
    const Tensor& param = catalog_.tensors[model];
    Tensor& tensor = at->second;
    if (fresh) {
      tensor.name = fmt::format("optimizer.state.{}.{}", state, param.name);
      tensor.dtype = source.dtype;
      tensor.shape = param.shape;
      tensor.kind = Kind::optim;
      tensor.param = param.name;
      tensor.state = state;
      tensor.tp = param.tp;
    }
    if (tensor.dtype != source.dtype)
      throw unfaithful_error({{}, source.name}, "is {}, other buckets are {}",
                             name(source.dtype), name(tensor.dtype));
    return tensor;
  }

  const Catalog& catalog_;
  const Fit& fit_;
  const Groups& groups_;
  BucketChunks chunks_;
  std::vector<std::string> order_;  // of the states
  std::map<std::string, std::map<uint32_t, Tensor>> states_;
  std::map<const Tensor*, std::map<Dims, std::vector<FlatRange>>> held_;
  size_t skipped_ = 0;
};

void keep_raw(Catalog& catalog, const std::string& why) {
  catalog.problems.push_back(
      warning("bucket_space", {catalog.path, {}},
              "optimizer state stays in flat buffers, whose parameters "
              "can't be told: {}",
              why));
}

void add_claims(Catalog& catalog, const std::vector<Tensor>& built) {
  for (const Tensor& tensor : built)
    if (tensor.state == kMain && tensor.dtype == DType::f32)
      catalog.claims.push_back(
          {tensor.name, tensor.param,
           "where it stands in the optimizer's flat buffers is inferred"});
}

// If nothing proves the state, at least its edges must be stored.
void check_proof(const Catalog& catalog, const std::vector<Tensor>& built) {
  const bool proof = std::ranges::any_of(built, [](const Tensor& tensor) {
    return tensor.state == kMain && tensor.dtype == DType::f32;
  });
  if (!proof && catalog.format == "megatron_zarr")
    throw unfaithful_error({}, "there are no float32 main weights to prove it");
}

}  // namespace

void view_buckets(Catalog& catalog, const Facts& facts) {
  std::string why;
  const auto groups = find_groups(catalog, why);
  if (!groups) return keep_raw(catalog, why);
  if (groups->empty()) return;
  try {
    const Fit fit = fit_buckets(catalog, *groups, facts);
    Builder builder(catalog, fit, *groups);
    std::vector<Tensor> built = builder.build();
    check_proof(catalog, built);
    if (builder.skipped())
      catalog.assumptions.push_back(fmt::format(
          "optimizer state: {} copies of replicated parameters are cut in "
          "another way and were not compared",
          builder.skipped()));
    catalog.assumptions.push_back(fmt::format(
        "optimizer state: {} flat buffers are seen as {} tensors; the order of "
        "their parameters is inferred ({}) and proven by the main weights",
        fit.buffers.size(), built.size(), fit.how));
    add_claims(catalog, built);
    std::erase_if(catalog.tensors, [](const Tensor& tensor) {
      return parse_bucket_key(tensor.name).has_value();
    });
    std::ranges::move(built, std::back_inserter(catalog.tensors));
    std::move(builder).chunks().install(catalog);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    keep_raw(catalog, error.what());
  }
}

}  // namespace ckpt::megatron
