// SPDX-License-Identifier: Apache-2.0
#include "api/write/unproven.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "api/check/compare.h"
#include "api/check/sums.h"
#include "api/write/manifests.h"
#include "ckpt/error.h"
#include "reshard/run/crc_check.h"

namespace ckpt::library {
namespace {

// The part of a tensor that a file holds a copy of, as a tensor of its own.
std::optional<Catalog> copy_in(const Catalog& source, const Tensor& tensor,
                               uint32_t file, const Box* box) {
  for (const Piece& piece : tensor.pieces) {
    if (piece.extent.file != file || piece.flat) continue;
    if (box && piece.box != *box) continue;
    Catalog copy;
    copy.path = source.path;
    copy.files = source.files;
    Tensor alone = tensor;
    alone.shape = piece.box.shape;
    alone.pieces = {piece};
    alone.pieces[0].box = Box::whole(alone.shape);
    copy.tensors.push_back(std::move(alone));
    return copy;
  }
  return std::nullopt;
}

const Piece* piece_in(const Tensor& tensor, uint32_t file) {
  for (const Piece& piece : tensor.pieces)
    if (piece.extent.file == file) return &piece;
  return nullptr;
}

// "its copies differ, by at most 0.5 in 3 of 64 elements"
std::string difference_of(const Prepared& prepared,
                          const reshard::ReplicaCheck& check,
                          const SaveOptions& options) {
  const std::string plain = "its copies differ";
  const std::string& name = prepared.plan.tensors[check.tensor].name;
  const auto& tensors = prepared.source.tensors;
  const auto tensor = std::ranges::find(tensors, name, &Tensor::name);
  if (tensor == tensors.end()) return plain;
  const Piece* first = piece_in(*tensor, check.first_file);
  if (!first) return plain;
  const Box box = first->box;
  auto a = copy_in(prepared.source, *tensor, check.first_file, &box);
  auto b = copy_in(prepared.source, *tensor, check.second_file, &box);
  if (!a || !b) return plain;  // of large plans the pieces are gone
  const Engine engine{.threads = options.threads, .max_mem = options.max_mem};
  const ckpt::Comparison found =
      compare(std::move(*a), std::move(*b), {.describe = true}, engine);
  for (const Difference& one : found.differences)
    if (const auto& far = one.distance)
      return fmt::format("{}, by at most {:.4g} in {} of {} elements", plain,
                         far->max_abs, far->differing, far->elements);
  return plain;
}

Error contradicted(const Problem& problem) {
  return input_error({problem.file, problem.tensor}, "{}", problem.message)
      .with_hint(
          "`ckpt verify` lists all; --ignore-checksums copies what is there");
}

reshard::RunOptions run_of(const Engine& engine) {
  reshard::RunOptions run;
  run.threads = engine.threads;
  run.max_mem = engine.max_mem / 2;
  return run;
}

// The target's tensors of which anything is read from these files. Those that
// are computed (merge) have no places of their own: all of them.
std::set<uint32_t> tensors_of(const Prepared& prepared,
                              const std::set<std::string>& files) {
  Catalog places;
  std::vector<uint32_t> which;
  for (uint32_t i = 0; i < prepared.source.files.size(); ++i)
    if (files.contains(prepared.source.files[i].path)) {
      which.push_back(static_cast<uint32_t>(which.size()));
      places.crcs.push_back(
          {.file = i, .begin = 0, .end = std::numeric_limits<uint64_t>::max()});
    }
  std::set<uint32_t> tensors =
      reshard::tensors_of(prepared.plan, places, which);
  if (tensors.empty())
    for (uint32_t i = 0; i < prepared.target.catalog.tensors.size(); ++i)
      tensors.insert(i);
  return tensors;
}

}  // namespace

void need_crcs(const Catalog& source, const Engine& engine) {
  if (source.crcs.empty()) return;
  if (const auto wrong = reshard::check_crcs(source, run_of(engine));
      !wrong.empty())
    throw contradicted(wrong.front());
}

void need_stored(const Catalog& source, const Engine& engine) {
  if (const auto wrong = wrong_sums(source, engine, false); !wrong.empty())
    throw contradicted(wrong.front());
  need_crcs(source, engine);
  check_against_manifest(source, run_of(engine));
}

void check_lists(Prepared& prepared, const SaveOptions& options) {
  const std::vector<Problem> wrong = wrong_sums(
      prepared.source, {.threads = options.threads, .max_mem = options.max_mem},
      prepared.sums);
  if (wrong.empty()) return;
  if (!options.ignore_checksums) throw contradicted(wrong.front());
  std::set<std::string> files;
  for (const Problem& problem : wrong) files.insert(problem.file);
  for (const uint32_t tensor : tensors_of(prepared, files))
    prepared.unproven.tensors.try_emplace(
        prepared.target.catalog.tensors.at(tensor).name,
        "a list of checksums contradicts the file that it was read from");
}

void check_copies(Prepared& prepared, const reshard::RunResult& result,
                  const SaveOptions& options) {
  if (!options.allow_replica_mismatch)
    return reshard::check_replicas(prepared.plan, result, prepared.source);
  for (const reshard::ReplicaCheck& check : prepared.plan.replicas) {
    if (result.source[check.first] == result.source[check.second]) continue;
    const std::string& name =
        prepared.target.catalog.tensors.at(check.tensor).name;
    if (prepared.unproven.tensors.contains(name)) continue;
    std::string why = difference_of(prepared, check, options);
    if (options.note)
      options.note(fmt::format("{}: {}; the one in {} is written, unproven",
                               name, why,
                               prepared.source.files[check.first_file].path));
    prepared.unproven.tensors.emplace(name, std::move(why));
  }
}

void check_read(Prepared& prepared, const reshard::RunResult& result,
                const reshard::RunOptions& run, const SaveOptions& options) {
  const auto note = [&](size_t tensor, const std::string& why) {
    prepared.unproven.tensors.try_emplace(
        prepared.target.catalog.tensors.at(tensor).name, why);
  };
  check_copies(prepared, result, options);
  if (options.ignore_checksums) {
    for (const uint32_t tensor :
         reshard::tensors_of(prepared.plan, prepared.source, result.wrong_crcs))
      note(tensor, "a record that it was read from has another CRC-32");
  } else {
    reshard::check_crcs(result, prepared.plan, prepared.source);
  }
  each_unproven(prepared, note);
  if (options.ignore_checksums && !run.digest) return;
  check_source_manifest(prepared, result, run,
                        [&](size_t tensor, const Error& error) {
                          if (!options.ignore_checksums) throw error;
                          note(tensor, error.problem());
                        });
}

void check_copied(Prepared& prepared, const TargetFile& file,
                  const SaveOptions& options,
                  const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged || !options.ignore_checksums) throw;
    prepared.unproven.files.try_emplace(file.path, error.problem());
  }
}

}  // namespace ckpt::library
