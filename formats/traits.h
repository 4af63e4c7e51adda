// SPDX-License-Identifier: Apache-2.0
// What a format declares about itself, so that no code above checks for it by
// name. The defaults fit a framework's format that its ranks write: a new row
// that sets nothing is refused what it does not claim, and never taken for what
// it is not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "ckpt/topology.h"
#include "lib/progress.h"

namespace ckpt::formats {

// The target sizes that were requested.
struct Asked {
  std::optional<uint32_t> tp, pp, dp, ep;

  // 1 where nothing was requested.
  Topology alone() const {
    return {.tp = tp.value_or(1),
            .pp = pp.value_or(1),
            .dp = dp.value_or(1),
            .ep = ep.value_or(1)};
  }
};

// What a checkpoint's own digests of whole files say about those files.
struct FileCheck {
  std::vector<Problem> problems;
  uint64_t bytes = 0;  // bytes read
};

struct Traits {
  // Names and arrangement of its tensors ("mcore"); "": those of whatever wrote
  // the tensors.
  std::string_view dialect = {};
  // Some of its checkpoints are in another dialect; names tell which.
  bool mixed_dialects = false;
  // The dialect that its writer is given, if not `dialect` (vLLM's fuses).
  std::string_view takes = {};
  // The way back: its dialect becomes "hf". Null: by the family's rules.
  Catalog (*unfuse)(Catalog source) = nullptr;
  // What computes rotary frequencies on loading, so they are left out; "":
  // nothing.
  std::string_view computes_rotary = {};
  // It stores a tied output layer a second time.
  bool repeats_tied_head = false;
  // It has tensors whose dtype is not the model's: a cast that loses nothing is
  // no difference.
  bool own_dtypes = false;
  // It holds a model and nothing of its training.
  bool model_alone = false;
  // In a container, its tensors may keep their names.
  bool keeps_names = true;

  // Holds any tensors by name, and files beside them; requires nothing of them.
  bool any_tensors = false;
  // The same without ranks: one file, or Hugging Face's directory.
  bool is_container = false;
  // Nothing in it says which tensors there are: a lost file leaves no gap.
  bool unlisted = false;

  // Formats of one grid adopt each other's topology; "": only those of the same
  // name do.
  std::string_view grid = {};
  enum class Ranks : uint8_t {
    kAsAsked,  // a target has the ranks requested, or the source's
    kNone,     // a target has none, whatever the source has
    kSources,  // a target has the source's, whatever its format
  };
  Ranks target_ranks = Ranks::kAsAsked;

  // What it finds in Layout::options (formats/options.h).
  std::vector<FormatOption> options = {};
  // Applies its options and the requested sizes to the layout; sizes not
  // requested are the source's or 1. Throws usage_error for a contradiction.
  // Null: nothing to apply.
  void (*settle)(const Catalog& source, const Asked& asked,
                 Layout& layout) = nullptr;

  // Globs for its own files that hold no tensors and whose contents are in the
  // catalog. Relative to the checkpoint.
  std::vector<std::string_view> own_files = {};
  // It may contain arrays that become no tensor, a folder each.
  bool leaves_arrays = false;
  // Name prefixes of objects that only describe its files.
  std::vector<std::string_view> about_files = {};
  // A step as its trainer keeps it, so that trainer reads what is carried.
  bool is_run = false;

  // File name endings that mark a file as this format.
  std::vector<std::string_view> endings = {};
  // One of its folders may be named like another format's file: last.ckpt.
  bool any_name = false;
  // What a trainer's step in it is rewritten as; "": itself.
  std::string_view rewritten_as = "run";
  // It has no place for a wrapper around all names (module., model.).
  bool unwraps_names = false;

  // Its reader takes --family and --shard-dims; else they are applied later.
  bool reads_rules = false;
  // True for names whose first dimension is layers. Null: layers are numbers
  // in names.
  bool (*stacks_layers)(std::string_view name) = nullptr;
  // Gives a source with Megatron's names one tensor per parameter and optimizer
  // state, and one step count. Throws unfaithful_error if that can't be done.
  // Null: it already has them, each with its own count.
  void (*gather_optimizer)(Catalog& source) = nullptr;
  // Each optimizer option is an object: optim.param_groups.0.lr.
  bool flat_objects = false;
  // Objects of which each rank holds a part are named key/shard_I_N.
  bool sharded_objects = false;
  // Its configuration is an instance of a class, which is written anew.
  bool typed_config = false;
  // Rows that pad a vocabulary may be added and removed.
  bool pads_rows = false;
  // Its own `unshard` writes model and optimizer separately.
  bool unshards_apart = false;
  // Checks its digests of whole files. Null: it has none.
  FileCheck (*check_files)(const std::string& directory,
                           const Progress& progress) = nullptr;
};

// The traits of a format by command-line name; the defaults for other names.
const Traits& traits_of(std::string_view format);

}  // namespace ckpt::formats
