// SPDX-License-Identifier: Apache-2.0
// What a format says of itself, so that nobody above asks for it by name. The
// defaults are those of a framework's format whose ranks write it: a new row
// without them is refused what it does not claim, never taken for what it is
// not.
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

// Sizes of the target that were asked for.
struct Asked {
  std::optional<uint32_t> tp, pp, dp, ep;

  // 1 where nothing was asked for.
  Topology alone() const {
    return {.tp = tp.value_or(1),
            .pp = pp.value_or(1),
            .dp = dp.value_or(1),
            .ep = ep.value_or(1)};
  }
};

// What a checkpoint's own digests of whole files say of them.
struct FileCheck {
  std::vector<Problem> problems;
  uint64_t bytes = 0;  // that were read
};

struct Traits {
  // Names and arrangement of its tensors ("mcore"); "": as whoever wrote the
  // tensors has them.
  std::string_view dialect = {};
  // Some of its checkpoints have another dialect: names tell which.
  bool mixed_dialects = false;
  // What its writer is given, where that is not `dialect` (vLLM's fuses).
  std::string_view takes = {};
  // The way back: its dialect becomes "hf". Null: by the family's rules.
  Catalog (*unfuse)(Catalog source) = nullptr;
  // Who makes rotary frequencies when it loads: they are left out. "" if none.
  std::string_view computes_rotary = {};
  // A tied output layer stands in it a second time.
  bool repeats_tied_head = false;
  // In a container its tensors may keep the names that they have.
  bool keeps_names = true;

  // Any tensors by their names, files beside them; nothing is asked of them.
  bool any_tensors = false;
  // Such a thing without ranks: one file, or Hugging Face's directory.
  bool is_container = false;

  // Formats of one grid take over each other's topology; "": those of the same
  // name alone.
  std::string_view grid = {};
  enum class Ranks : uint8_t {
    kAsAsked,  // a target has those that are asked for, or the source's
    kNone,     // a target has none, whatever the source has
    kSources,  // a target has the source's, whatever format that is
  };
  Ranks target_ranks = Ranks::kAsAsked;

  // What it finds in Layout::options (formats/options.h).
  std::vector<FormatOption> options = {};
  // What its options and the sizes that were asked for make of the layout; the
  // sizes that were not are the source's or 1. Throws a usage_error for a
  // contradiction. Null: nothing.
  void (*settle)(const Catalog& source, const Asked& asked,
                 Layout& layout) = nullptr;

  // Globs of the names by which it finds files of its own that hold no tensors;
  // what they say is in the catalog. Relative to the checkpoint.
  std::vector<std::string_view> own_files = {};
  // Arrays of which no tensor is made may lie in it, a folder each.
  bool leaves_arrays = false;
  // Beginnings of the names of objects that tell about its files alone.
  std::vector<std::string_view> about_files = {};
  // A step as its trainer keeps it: that trainer reads what is carried.
  bool is_run = false;

  // Endings of a file's name that say that the file is of this format.
  std::vector<std::string_view> endings = {};
  // A folder of it may be named like a file of another: last.ckpt.
  bool any_name = false;
  // What a trainer's step of it is rewritten as; "": as itself.
  std::string_view rewritten_as = "run";
  // In it a wrapper around all names has no place (module., model.).
  bool unwraps_names = false;

  // Its reader takes --family and --shard-dims; else they are applied later.
  bool reads_rules = false;
  // True for names whose first dimension is layers. Null: layers are numbers
  // in names.
  bool (*stacks_layers)(std::string_view name) = nullptr;
  // Gives a source with Megatron's names one tensor for each parameter and
  // state of its optimizer, and one count of steps. Throws unfaithful_error
  // where that can't be done. Null: it has them so, each with its count.
  void (*gather_optimizer)(Catalog& source) = nullptr;
  // Options of an optimizer are an object each: optim.param_groups.0.lr.
  bool flat_objects = false;
  // Objects that ranks hold a part of each are named key/shard_I_N.
  bool sharded_objects = false;
  // Its configuration is an object of a class, which is written anew.
  bool typed_config = false;
  // Rows that pad a vocabulary come and go.
  bool pads_rows = false;
  // Its own `unshard` writes model and optimizer apart.
  bool unshards_apart = false;
  // Digests of whole files in it. Null: there are none.
  FileCheck (*check_files)(const std::string& directory,
                           const Progress& progress) = nullptr;
};

// Of a format by its command-line name; the defaults for other names.
const Traits& traits_of(std::string_view format);

}  // namespace ckpt::formats
