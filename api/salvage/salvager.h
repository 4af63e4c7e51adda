// SPDX-License-Identifier: Apache-2.0
// The steps of salvage_checkpoint, and what they share.
//
//   salvage.cc          opens what is left, proves it, publishes it
//   items.cc            records and items of archives: frames, checksums
//   elements.cc         elements that are gone, and where a copy is
//   optimizer_shift.cc  optimizer states that were saved shifted
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/salvage/files.h"
#include "api/salvage/gone.h"
#include "api/salvage/salvage.h"
#include "api/salvage/shift.h"
#include "api/write/prepared.h"
#include "ckpt/error.h"
#include "containers/sums/sums.h"
#include "lib/manifest.h"
#include "reshard/engine.h"

namespace ckpt::library {

class Salvager {
 public:
  Salvager(const std::string& source, const std::string& target,
           const SalvageOptions& options, const Progress& progress);
  Salvaged run();

 private:
  using Elements = std::vector<FlatRange>;

  // salvage.cc
  void work();
  std::string shown(std::string text) const;
  Error of_source(const Error& error) const;
  std::string first_lost() const;
  std::string next_step() const;
  void open();
  void check_names();
  std::vector<sums::Sum> sums_of_source() const;
  void verify_result();
  void check_model();
  void prove();
  void seal();
  void mark_lost(library::Prepared& prepared);
  void plan_copies(library::Prepared& prepared) const;
  void finish();

  // items.cc
  void locate_all();
  void check_objects();
  void replace_object(const Object& object, const Error& error);
  void rebuild_item(const Tensor& tensor, Piece& piece, const Error& error);
  void check_crcs();
  void remember_crc(const std::string& file, const StoredCrc& crc);

  // elements.cc
  const std::vector<salvage::Range>& gone_of(const Piece& piece) const;
  void find_gone();
  void put(const Tensor& tensor, const Piece& piece, const Elements& elements,
           const std::function<std::string(uint64_t, uint64_t)>& bytes);
  void from_replicas();
  void copy_replica(size_t t, size_t a, size_t b);
  const Manifest* manifest();
  const Manifest::Entry* entry_of(const Tensor& tensor);
  Digest digest_of(const Catalog& catalog, Tensor tensor);
  void check_digests();
  void from_tied();
  void from_like();
  bool take_same(const Catalog& from, const Tensor& other, size_t t);
  void take_piece(const Catalog& from, const Tensor& other, size_t t, size_t p);
  void list_gone();
  void list_lost_values();
  void list(const Tensor& tensor, const Piece& piece, const Elements& elements);
  bool is_gone(size_t t) const;

  // optimizer_shift.cc
  using Tensors = std::map<uint32_t, uint32_t>;
  void undo_shift();
  void move_back(const ShiftSearch::Found& found);
  void move_run(const ShiftSearch& states, const Tensors& tensors,
                const megatron::JobBuffer& buffer,
                const megatron::MovedRun& run);
  void lose_run(const ShiftSearch& states, const std::string& state,
                const Tensors& tensors, const megatron::JobBuffer& buffer,
                const megatron::ParamRun& run);
  void write_stored(const StoredRun& run, std::string_view bytes);
  void renew_checksums();
  bool is_shifted_file(const std::string& path) const;

  // The name of a catalog's file, if bytes of it can be given up.
  std::string file_of(uint32_t index) const;

  static Catalog catalog_without_tensors(const Catalog& catalog);
  bool writes() const {
    return report_.whole() || options_.fill != Fill::kRefuse;
  }

  const std::string& source_;
  const std::string& target_;
  const SalvageOptions& options_;
  const Progress& progress_;
  Salvaged report_;
  SalvageFiles files_;
  Catalog catalog_;
  reshard::RunOptions run_;
  std::vector<std::vector<Elements>> gone_;  // by tensor, by piece
  std::optional<Manifest> manifest_;
  bool looked_ = false;
  // What was moved: its digests and checksums were those of other elements.
  std::set<std::string, std::less<>> shifted_;          // names
  std::set<std::pair<uint32_t, uint64_t>> shifted_at_;  // file, extent
  std::set<uint64_t> widened_;  // main weights whose gaps have the weights
  Manifest proven_;             // of DST
};

// True for an error that a file may cause: another file may have it right.
inline bool is_answer(const Error& error) {
  return error.code() == ExitCode::kDamaged ||
         error.code() == ExitCode::kUnfaithful;
}

}  // namespace ckpt::library
