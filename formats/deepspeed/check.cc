// SPDX-License-Identifier: Apache-2.0
// Checks the partitions of one model-parallel rank against its model states.
#include <algorithm>

#include "ckpt/error.h"
#include "formats/deepspeed/assemble.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::deepspeed {
namespace {

using text::printable;

uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

void check_counts(const Column& column) {
  const uint64_t ranks = column.optims.size();
  for (const OptimRank& rank : column.optims) {
    for (const uint64_t count : rank.partition_counts)
      if (count != ranks)
        throw input_error({rank.path, {}},
                          "partition_count is {}, there are files of {} "
                          "partitions",
                          count, ranks)
            .with_hint("fetch the files that are missing");
    if (rank.stage / 3 != column.optims[0].stage / 3)
      throw input_error({rank.path, {}}, "zero_stage {}, in rank 0's file {}",
                        rank.stage, column.optims[0].stage);
    if (rank.groups.size() != column.optims[0].groups.size())
      throw input_error({rank.path, {}},
                        "{} groups of partitions, in rank 0's file {}",
                        rank.groups.size(), column.optims[0].groups.size());
  }
}

// ZeRO 1 and 2: every rank's vectors hold all of the group that its partition
// has, plus at most the padding.
void check_lengths(const Column& column, size_t g, uint64_t part,
                   uint64_t total) {
  for (size_t r = 0; r < column.optims.size(); ++r) {
    const OptimRank& rank = column.optims[r];
    const uint64_t need = std::min(part, total - std::min(total, r * part));
    const auto check = [&](const std::string& what, const Flat& flat) {
      if (flat.numel < need || flat.numel > part)
        throw input_error({rank.path, {}},
                          "{} of group {} has {} elements, partition {} of {} "
                          "has {} of the group's {}",
                          printable(what), g, flat.numel, r,
                          column.optims.size(), need, total);
    };
    check("fp32", rank.groups[g].fp32);
    for (const auto& [key, flat] : rank.groups[g].states) check(key, flat);
  }
}

// Compares where rank r says its fragments are with where they must be.
void check_mapping(const Column& column, size_t g, uint64_t part) {
  for (size_t r = 0; r < column.optims.size(); ++r) {
    const OptimRank& rank = column.optims[r];
    if (rank.mappings.empty()) continue;
    const auto& stored = rank.mappings[g];
    uint64_t at = 0;
    size_t found = 0;
    for (const NamedShape& entry : column.model().groups[g]) {
      const uint64_t begin = std::max(at, r * part);
      const uint64_t end = std::min(at + entry.numel, (r + 1) * part);
      at += entry.numel;
      if (begin >= end) continue;
      const Fragment want{begin - r * part, end - begin};
      const auto it = stored.find(entry.name);
      if (it == stored.end())
        throw input_error({rank.path, printable(entry.name)},
                          "partition {} has {} of its elements, "
                          "param_slice_mappings says none",
                          r, want.numel)
            .with_hint("this file is another rank's, or of another save");
      if (it->second != want)
        throw input_error({rank.path, printable(entry.name)},
                          "param_slice_mappings says {} elements from {} on, "
                          "in partition {} it has {} from {} on",
                          it->second.numel, it->second.start, r, want.numel,
                          want.start)
            .with_hint("this file is another rank's, or of another save");
      ++found;
    }
    if (found != stored.size())
      throw input_error({rank.path, {}},
                        "param_slice_mappings of group {} lists {} parameters, "
                        "partition {} has {}",
                        g, stored.size(), r, found)
          .with_hint("this file is another rank's, or of another save");
  }
}

void check_flat(const Column& column) {
  const auto& groups = column.model().groups;
  const std::vector<OptimRank>& ranks = column.optims;
  if (groups.size() != ranks[0].groups.size())
    throw input_error({ranks[0].path, {}},
                      "{} groups of partitions, param_shapes of {} has {}",
                      ranks[0].groups.size(),
                      printable(io::base_name(column.model().path)),
                      groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    uint64_t total = 0;
    for (const NamedShape& entry : groups[g]) {
      const auto sum = checked_add(total, entry.numel);
      if (!sum || *sum > (uint64_t{1} << 60))
        throw input_error({column.model().path, {}},
                          "param_shapes of group {} overflows", g);
      total = *sum;
    }
    const uint64_t part = partition_size(column, g);
    const uint64_t unit = 2 * ranks.size();
    const auto all = checked_mul(part, ranks.size());
    if (!all || *all > (uint64_t{1} << 60) || *all < total ||
        round_up(*all, unit) != round_up(total, unit))
      throw input_error({ranks[0].path, {}},
                        "{} partitions of {} elements; the parameters of "
                        "group {} have {}",
                        ranks.size(), part, g, total);
    check_lengths(column, g, part, total);
    check_mapping(column, g, part);
  }
}

void check_third(const Column& column) {
  uint64_t total = 0;
  for (const auto& group : column.model().groups)
    for (const NamedShape& entry : group) {
      const uint64_t part =
          (entry.numel + column.optims.size() - 1) / column.optims.size();
      const auto sum = checked_add(total, part);
      if (!sum)
        throw input_error({column.model().path, {}}, "param_shapes overflows");
      total = *sum;
    }
  for (const OptimRank& rank : column.optims) {
    uint64_t have = 0;
    for (size_t g = 0; g < rank.groups.size(); ++g) {
      const Group& group = rank.groups[g];
      have += group.fp32.numel;
      for (const auto& [key, flat] : group.states)
        if (flat.numel != group.fp32.numel)
          throw input_error({rank.path, {}},
                            "{} of sub-group {} has {} elements, fp32 {}",
                            printable(key), g, flat.numel, group.fp32.numel);
    }
    if (have != total)
      throw input_error({rank.path, {}},
                        "fp32_flat_groups have {} elements, the parts of all "
                        "parameters {}",
                        have, total);
  }
}

}  // namespace

uint64_t partition_size(const Column& column, size_t g) {
  uint64_t part = 0;
  for (const OptimRank& rank : column.optims) {
    part = std::max(part, rank.groups[g].fp32.numel);
    for (const auto& [key, flat] : rank.groups[g].states)
      part = std::max(part, flat.numel);
  }
  return part;
}

void check_column(const Column& column) {
  if (column.optims.empty()) return;
  if (!column.model().has_shapes)
    throw input_error({column.model().path, {}},
                      "has no param_shapes; {} can't be cut without",
                      printable(io::base_name(column.optims[0].path)));
  check_counts(column);
  if (column.optims[0].stage == 3)
    check_third(column);
  else
    check_flat(column);
}

}  // namespace ckpt::deepspeed
