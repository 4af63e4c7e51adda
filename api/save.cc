// SPDX-License-Identifier: Apache-2.0
#include "api/engine.h"
#include "api/memory.h"
#include "api/saver.h"
#include "api/write/naming.h"
#include "api/write/write.h"
#include "ckpt/ckpt.h"
#include "formats/fairseq2/layout.h"
#include "formats/format.h"
#include "lib/session.h"
#include "reshard/plan/planner.h"

namespace ckpt {
namespace {

using library::add_memory;

Preview preview_of(library::Prepared prepared, const SaveOptions& options) {
  Preview preview;
  preview.bytes_read = prepared.plan.bytes_read;
  preview.bytes_written = prepared.file_bytes();
  preview.peak_memory = library::peak_memory(prepared, options);
  preview.target = std::move(prepared.target);
  return preview;
}

library::Prepared prepare(const Catalog& source, Layout layout,
                          const std::string& path, const SaveOptions& options) {
  library::check_catalog(source);
  if (source.tensors.empty() && source.objects.empty())
    throw usage_error({path, {}}, "no tensors to write");
  Naming naming = options.naming;
  if (!naming.dtype) naming.dtype = options.dtype;
  Catalog named = library::into_dialect(source, naming, layout.format);
  return library::prepare(std::move(named), std::move(layout), path, options);
}

// The shape of the whole tensor, from its shards.
Shape global_shape(std::span<const TensorData> shards, const Topology& source,
                   const TpRule& rule) {
  Shape local = shards[0].shape;
  if (!local.empty()) {
    local[0] = 0;
    for (uint32_t d = 0; d < source.dp; ++d)
      local[0] += shards[d].shape.empty() ? 0 : shards[d].shape[0];
  }
  const auto global = fairseq2::tp_global(local, rule, source.tp);
  if (!global)
    throw unfaithful_error({}, "{} over {} ranks is not a shape",
                           to_string(local), source.tp);
  return *global;
}

void check_reshard(std::span<const TensorData> shards, const Topology& source,
                   const Topology& target, const TpRule& rule) {
  if (source.pp != 1 || source.ep != 1 || target.pp != 1 || target.ep != 1)
    throw usage_error({}, "reshard_tensor works over tp and dp");
  if (shards.size() != size_t{source.tp} * source.dp || shards.empty())
    throw usage_error({}, "{} shards for tp={} dp={}", shards.size(), source.tp,
                      source.dp);
  for (const TensorData& shard : shards) {
    const bool rank_differs = shard.shape.size() != shards[0].shape.size();
    if (rank_differs || shard.dtype != shards[0].dtype)
      throw unfaithful_error({}, "one shard is {} {}, another {} {}",
                             name(shards[0].dtype), to_string(shards[0].shape),
                             name(shard.dtype), to_string(shard.shape));
    if (byte_size(shard.dtype, shard.shape) != shard.bytes.size())
      throw usage_error({}, "a shard of {} {} has {} bytes", name(shard.dtype),
                        to_string(shard.shape), shard.bytes.size());
  }
  if (rule.state == TpRule::State::kSplit && rule.dim >= shards[0].shape.size())
    throw usage_error({}, "no dimension {} in {}", rule.dim,
                      to_string(shards[0].shape));
  if (rule.state == TpRule::State::kSplit && rule.groups == 0)
    throw usage_error({}, "a dimension of no groups");
  if (rule.state == TpRule::State::kUnknown && (source.tp > 1 || target.tp > 1))
    throw unfaithful_error({},
                           "split over tp or replicated? the rule says "
                           "neither");
}

}  // namespace

Catalog into_dialect(Catalog source, const std::string& format,
                     const Naming& naming) {
  formats::find_format(format);  // or says which there are
  library::check_catalog(source);
  return library::into_dialect(std::move(source), naming, format);
}

Preview plan(const Catalog& source, Layout layout, const std::string& path,
             const SaveOptions& options) {
  library::Prepared prepared =
      prepare(source, std::move(layout), path, options);
  library::prove(prepared, options, {});
  return preview_of(std::move(prepared), options);
}

Preview library::run(const Catalog& source, Layout layout,
                     const std::string& path, const SaveOptions& asked,
                     const std::function<void(const Target& target)>& look) {
  const SaveOptions options = told_outside(asked);
  const Session::Own session;
  Session::current()->watch.begin();
  Prepared prepared = ckpt::prepare(source, std::move(layout), path, options);
  if (look) look(prepared.target);
  library::prove(prepared, options, {});
  library::execute(
      prepared, options,
      options.progress ? library::stages_told(options.progress) : Progress{});
  return preview_of(std::move(prepared), options);
}

Preview run(const Catalog& source, Layout layout, const std::string& path,
            const SaveOptions& options) {
  return library::run(source, std::move(layout), path, options, {});
}

Preview save(std::span<const ShardedTensor> shards, Layout layout,
             const std::string& path, const SaveOptions& options) {
  if (shards.empty()) throw usage_error({path, {}}, "no tensors to save");
  SaveOptions as_named = options;
  as_named.naming = {.dialect = "keep"};
  return run(library::catalog_of(shards), std::move(layout), path, as_named);
}

std::future<Preview> save_async(std::vector<ShardedTensor> shards,
                                Layout layout, std::string path,
                                SaveOptions options) {
  return std::async(std::launch::async,
                    [shards = std::move(shards), layout = std::move(layout),
                     path = std::move(path), options = std::move(options)] {
                      return save(shards, layout, path, options);
                    });
}

TensorData reshard_tensor(std::span<const TensorData> shards,
                          const Topology& source, const Topology& target,
                          const Rank& rank, const TpRule& rule) {
  check_reshard(shards, source, target, rule);
  Catalog catalog;
  catalog.path = "(memory)";
  Tensor tensor{.name = "tensor",
                .dtype = shards[0].dtype,
                .shape = global_shape(shards, source, rule),
                .tp = rule};
  const Shape local = fairseq2::tp_local(tensor.shape, rule, source.tp);
  for (uint32_t t = 0; t < source.tp; ++t) {
    fairseq2::Rows rows;
    for (uint32_t d = 0; d < source.dp; ++d) {
      const TensorData& shard = shards[t * source.dp + d];
      rows = {rows.end, rows.end + (local.empty() ? 1 : shard.shape[0])};
      Shape expected = local;
      if (!expected.empty()) expected[0] = rows.count();
      if (shard.shape != expected)
        throw unfaithful_error({},
                               "shard tp={} dp={} has shape {}, expected "
                               "{}",
                               t, d, to_string(shard.shape),
                               to_string(expected));
      const uint32_t file = add_memory(catalog, shard.bytes);
      const Dims strides = row_major_strides(shard.shape);
      const uint64_t element = element_size(shard.dtype);
      for (const cuts::Part& part :
           fairseq2::place(tensor.shape, rule, source.tp, t, rows)) {
        Piece piece{.box = part.box,
                    .flat = {},
                    .extent = {.offset = 0, .strides = {}, .file = file}};
        for (size_t k = 0; k < strides.size(); ++k) {
          piece.extent.strides.push_back(strides[k] * element);
          piece.extent.offset += part.at[k] * strides[k] * element;
        }
        tensor.pieces.push_back(std::move(piece));
      }
    }
    if (!local.empty() && rows.end != local[0])
      throw unfaithful_error({},
                             "the shards of tp={} hold {} rows, those of "
                             "tp=0 {}",
                             t, rows.end, local[0]);
  }
  catalog.tensors.push_back(std::move(tensor));
  if (rule.state != TpRule::State::kSplit && source.tp > 1) {
    const reshard::Plan copies = reshard::make_read_plan(catalog, true);
    reshard::Output nowhere;
    reshard::check_replicas(copies, reshard::run(copies, catalog, nowhere, {}),
                            catalog);
  }
  return Checkpoint(std::move(catalog)).lazy_load(target, rank).next()->second;
}

}  // namespace ckpt
