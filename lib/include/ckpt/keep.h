// SPDX-License-Identifier: Apache-2.0
// Keeps the folder of a training run in order.
//
//   ckpt::Pruned what = ckpt::prune("run", {.keep_last = 3});
//   for (const ckpt::PrunedStep& step : what.steps)
//     if (step.goes) …                     // nothing was deleted yet
//   ckpt::prune("run", {.keep_last = 3, .remove = true});
//
//   ckpt::watch("run", {.command = {"cp", "-r", "{step}", "out"}});
//
// Every function throws ckpt::Error (error.h). Nothing prints.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/ckpt.h"

namespace ckpt {

// At least one of the first three rules. A step stays if any rule keeps it.
struct PruneOptions {
  uint64_t keep_last = 0;   // the newest complete ones
  uint64_t keep_every = 0;  // those whose number it divides
  // A metric of trainer_state.json, "eval_loss" or "eval_accuracy:max". Without
  // ":min" or ":max" less is better if the name ends in "loss", as in Hugging
  // Face's Trainer.
  std::string keep_best;
  bool remove = false;  // otherwise the answer says what would go
  OpenOptions open = {};
  std::string trainer;  // whose root it is; "": detected
  // Called after each step that was deleted.
  std::function<void(const std::string& name)> removed = {};
};

struct PrunedStep {
  std::string name;  // relative to the root
  std::string path;
  std::optional<uint64_t> number;
  uint64_t bytes = 0;
  bool complete = false;
  bool goes = false;
  bool gone = false;             // deleted by this call
  std::vector<std::string> why;  // it stays
};

struct Pruned {
  std::vector<PrunedStep> steps;  // from old to new
  // Bytes that deletion frees: a file with a hard link elsewhere frees none.
  uint64_t bytes = 0;
  // What an earlier run had begun to delete, finished by this one or, without
  // `remove`, still there.
  std::vector<std::string> unfinished;
};

// Thins out the steps of a training root. These stay in any case:
//   - the newest complete step of each kind (step-N, epoch-N);
//   - a step that is not complete, or whose headers can't be read;
//   - a step to which a symbolic link of the root, of the directory above it or
//     of a step that stays leads, or which a file of the root names (`latest`,
//     latest_checkpointed_iteration.txt), or trainer_state.json as the best;
//   - a step that is a link itself, and what is not a step of this root.
// A step is renamed to .NAME.ckpt-pruned, which no reader takes for a step, and
// then removed; a later call finishes what a killed one began. Throws
// usage_error without a rule, for what is not a root, and for a metric that no
// step has.
Pruned prune(const std::string& root, const PruneOptions& options);

struct WatchOptions {
  // What is done with each step, word by word, without a shell: {step} is the
  // step's path, {name} its own name, {root} the root's path.
  std::vector<std::string> command;
  // Where it is noted what was done; "": default_watch_state().
  std::string state;
  bool once = false;         // do what is there, and return
  bool deep = false;         // read all of a step before, not only its headers
  bool dry_run = false;      // start nothing, write nothing
  bool keep_stdout = false;  // what the command prints goes to stderr
  double interval = 30;      // seconds from one look to the next, at most
  double settle = 5;         // seconds for which no file of a step has changed
  uint32_t tries = 3;        // of a command that fails, one a round
  OpenOptions open = {};
  std::string trainer;  // whose root it is; "": detected
  // Called with what became of a step, as it happens, and with what the user
  // should know, one sentence at a time.
  std::function<void(const struct WatchedStep& step)> done = {};
  std::function<void(const std::string& line)> note = {};
};

enum class Watched : uint8_t {
  kDone,         // the command ended with status 0
  kFailed,       // it did not, and is tried again
  kGivenUp,      // it did not, too often
  kNotVerified,  // the step is not as it should be; looked at again
  kWouldRun,     // a dry run
};
// "done", "failed", "given_up", "not_verified", "would_run"
std::string_view name(Watched result);

struct WatchedStep {
  std::string name;  // relative to the root
  std::string path;
  std::optional<uint64_t> number;
  Watched result = Watched::kDone;
  int status = 0;  // of the command, 128 and more for a signal
  uint32_t tries = 0;
  double seconds = 0;
  std::string why;                   // it failed, or is not verified
  std::vector<std::string> command;  // with the step's names in it
};

// A file in the user's state directory (XDG_STATE_HOME, ~/.local/state), one
// for each root and command. Throws usage_error if there is no such directory.
std::string default_watch_state(const std::string& root,
                                const std::vector<std::string>& command);

// Runs a command once for each complete step of a root, from old to new, once
// the step has settled and is verified. With `once` it returns what became of
// the steps that are there and not yet done; else it looks again whenever
// something changes, until a signal, and throws Interrupted.
//
// Kills lose and repeat nothing: the command runs under a process of its own,
// which outlives this one and notes how the command ended. The next call waits
// for it. A command is run again only if that process was killed, too. Only
// steps with a number are taken: `last` is another one every time. Throws
// usage_error for a command that does not exist, kIo if another call works with
// the same state.
std::vector<WatchedStep> watch(const std::string& root,
                               const WatchOptions& options);

struct SyncOptions {
  std::vector<std::string> include;  // globs; none: all files
  std::vector<std::string> exclude;
  bool delete_extra = false;  // what the target has alone, on this machine
  bool dry_run = false;       // only compare
  bool sync = true;           // wait for the disk
  // Progress in bytes, from any thread. Each stage counts from zero.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
  // Called with what the user should know, one sentence at a time.
  std::function<void(const std::string& line)> note = {};
};

enum class SyncFate : uint8_t {
  kSame,      // and not touched
  kNew,       // copied, or with `dry_run` to be copied
  kReplaced,  // likewise
  kExtra,     // in the target alone, and stays
  kDeleted,
  kLeftOut,  // not copied
};
// "same", "new", "replaced", "extra", "deleted", "left_out"
std::string_view name(SyncFate fate);

struct SyncedFile {
  std::string path;  // below the source and the target
  uint64_t bytes = 0;
  SyncFate fate = SyncFate::kSame;
  std::string why;  // it is left out
};

struct Synced {
  std::vector<SyncedFile> files;  // by path
  uint64_t bytes = 0;             // of all files of the source
  uint64_t bytes_differ = 0;      // of those that are new or replaced
  // False if something is left out whose content the target lacks: a link out
  // of the source or to nowhere, a pipe, a socket.
  bool complete = true;
};

// Copies each file of `source`, a directory, a file or a URL, that differs in
// `target`, a directory or a URL of s3:// or gs://, or that it lacks. Files are
// compared by bytes, or by a checksum that stands for them. A step of a run
// that the target lacks appears when it is whole; after a kill the same call
// goes on. Nothing is written through a link of the target.
//
// Throws usage_error for places that can't be meant, missing_error if nothing
// is there or wanted, unfaithful_error for what stands in the way, input_error
// if what came is not what was promised.
Synced sync(const std::string& source, const std::string& target,
            const SyncOptions& options);

struct EditOptions {
  std::vector<std::string> set;    // "KEY=VALUE", of GGUF also "KEY:TYPE=VALUE"
  std::vector<std::string> unset;  // keys; one that is not there is no error
  bool dry_run = false;
  bool sync = true;  // wait for the disk
  OpenOptions open = {};
  // Called with what the user should know, one sentence at a time.
  std::function<void(const std::string& line)> note = {};
};

struct Edited {
  struct Change {
    std::string key;
    std::optional<std::string> before, after;  // none: it is not there
  };
  struct OneFile {
    std::string path;
    uint64_t bytes = 0;  // with the changes
    std::vector<Change> changes;
    bool written = false;
  };
  std::string step;  // of a root: which one, relative to it
  std::vector<OneFile> files;
  std::vector<std::pair<std::string, uint64_t>> manifests;  // path, bytes
};

// Changes the metadata in the header of a safetensors or GGUF file, or in each
// safetensors file of a model's folder. Values of safetensors are text; a key
// of GGUF keeps its type, and a new one needs `KEY:TYPE=VALUE` (u32, f32, bool,
// str, arr:str with a JSON list …). A file is staged with the tensors' bytes as
// they are (shared blocks where the file system can) and then takes the old
// one's place. Manifests that cover it follow: until all is in place they say
// that the headers are unproven, and after a kill the same call goes on.
//
// Throws usage_error for what is not a value of its type and for a key that the
// reader lives by, input_error for a header that its manifest contradicts,
// unfaithful_error for a link, and for a header that could not be written back
// as it is.
Edited edit(const std::string& path, const EditOptions& options);

}  // namespace ckpt
