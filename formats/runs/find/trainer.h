// SPDX-License-Identifier: Apache-2.0
// Trainers as data: what each leaves in a step's folder, and how a step is
// written as one of its own. They are in trainers.json and in the files that a
// user adds (docs/formats/runs.md has a table of the fields); nothing here
// looks at a step's files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::runs {

inline constexpr std::string_view kRunFormat = "run";

// The format's option: the trainer whose step to write; if unset, the source's.
inline constexpr std::string_view kTrainer = "trainer";
// Whether torchtitan's job that continues trains queries, keys and values as
// one: true (if unset) or false.
inline constexpr std::string_view kFuseQkv = "fuse-qkv";

// A container of tensors in the folder.
struct Source {
  std::string file;  // a pattern: the source exists if this does
  std::string at;    // what is opened; "": the folder itself
  std::string read;  // a format's name, "ranks", "parts" or "nanotron"
  // "parts": the family and the dialect that say how ranks share tensors
  // ("llama.internevo"), the file with the numbers for that, and where in an
  // object of the files the number of ranks is.
  std::string rules, config, world;
  std::string refused;  // not "": why such files are not read …
  std::string hint;     // … and what to do instead
  // How an optimizer's numbers become names: "names", "decay", "module".
  std::string order;
  // Prefixes of names, in the order they are tried. Model tensors: what is
  // left is the parameter's name; an optimizer's: <parameter>.<state>.
  std::vector<std::string> prefixes;
  std::vector<std::string> optimizers;
  std::vector<std::string> others;  // of neither
  std::string key;  // where in a pickle the optimizer's state dict is
  // A number in it that is the step's plus one; with any other it is from
  // another save.
  std::string next_step;
  // For a model: saved in another arrangement and under other names than in
  // training. Its optimizer's numbers don't number these parameters.
  bool arranged = false;
};

// A file that holds values.
struct Part {
  std::string file;      // a pattern; {r}: one per rank
  std::string part;      // file_list's word for it
  bool carried = false;  // the model's: checked here, read as a sidecar
  bool above = false;    // in the folder above the role's
  // "optimizer", or a pattern: what is not loaded without this file.
  std::string with;
  std::string instead;  // a pattern: what serves as well
  // The consequence of loading without it; "" if there is none.
  std::string without;
  // "trainer_state.json stateful_callbacks": a file, and a key in it, left by
  // writers that always write this one together with the optimizer; "": none
  // always do.
  std::string proof;
  // For rank files, if the number of ranks changes. False: they are left out
  // and start afresh. True: the loader demands one per rank, and new ranks get
  // the old ranks' files in turn.
  bool demanded = false;
  bool fails = false;  // `without` is a loader error
  // The name of a value that is None if the trainer writes this file.
  std::string none;
  std::string world;  // a JSON file: this key holds the number of ranks
  std::string
      count;  // where in it a scheduler's count of steps is; "": nowhere
};

// A whole step in one container, which its own reader reads.
struct Sole {
  struct More {
    std::string at;    // a folder with a container of its own
    std::string part;  // file_list's word for it
  };
  std::string format;      // "": the trainer has parts instead
  std::string at;          // a pattern: the container's folder in the step
  std::vector<More> more;  // what may be beside it, the optimizer last
  std::string weights;     // a folder with the model, if no container has one
  std::string list;        // a JSON file: "contents" has the parts' "path"s
};

// A whole step in one torch.save file.
struct Pickled {
  // An object that such a file has, "a|b": one of the two; "": no such files.
  std::string sign;
  std::string model;       // prefix of the model's names
  std::string optimizers;  // keys of a list or dict of state dicts, "a.b"
  std::string ending;      // of files' names; "": those of `steps` and `last`
};

// A folder of several models, each with its own configuration.
struct Components {
  std::string file;  // the JSON file that lists them; "": there are none
  // Name endings of classes that have weights; none: all with a config.json.
  std::vector<std::string> weighted;
};

// What the counts of steps in a step's files have to do with each other.
struct Counts {
  // Each step of the trainer is one of its optimizer, and of its scheduler if a
  // part has a `count`.
  bool each = false;
  // Values that are true if the optimizer may have skipped some …
  std::vector<std::string> skips;
  std::string said_in;  // … or if this one is missing; "": it need not be there
  std::string scheduler;  // an object with the scheduler's count; "": in a part
};

// What a step is that lacks one file of its signature.
struct WithoutSign {
  std::string file;       // "": the trainer resumes no step without any of them
  std::string text;       // what it does without this one
  bool is_whole = false;  // some steps have none
};

// Into which groups a trainer's optimizer puts parameters.
enum class Grouping : uint8_t {
  kSource,  // the user's own, as the source has it
  kDecay,   // two: what decays; biases and norms
  kOne,
  kEach,  // options per parameter, no groups
};

// What a user of the written step has to know. {step} in the text is its
// number.
struct Said {
  std::string kind;  // of a warning; "": an assumption
  std::string text;
  bool of_others = false;  // only where the source is not the trainer's own
};

// One of the folders, or files, in which a trainer accepts model and optimizer.
struct Form {
  std::string trainer;
  bool sharded = false;  // DCP for any number of ranks, state by name
  // One file per rank, in the model's order; all parameters are numbered, with
  // or without state.
  bool rank_files = false;
  // Everything in one pickle, which is DST itself.
  bool one_file = false;
  std::string model_at;  // the DCP folder, or a pattern of ranks' files
  std::string model_key;
  std::string optimizer_at;  // the DCP folder, the file, or such a pattern
  std::string optimizer_key;
  Grouping grouping = Grouping::kSource;
  std::string home;  // the folder of config.json and tokenizer
  std::vector<Said> says;

  // It has what the module's state_dict() has: tied tensors under each name,
  // experts as they are trained.
  bool is_state_dict() const { return sharded || rank_files || one_file; }
};

// A file of values that the trainer reads beside model and optimizer, or, in
// DCP and in a single file, values among theirs. The value is JSON in which
// these texts stand for what only the step says:
//
//   "$step"       how many steps the optimizer took; 0 if nothing says it
//   "$position"   how many the scheduler took
//   "$ranks"      for how many ranks the step is written
//   "$scheduler"  the scheduler's state dict; null if there is none
//
// An entry of "$step?" and the like is left out where that is not known.
struct WrittenValue {
  std::string file;  // a pattern of {r} and {W}; "": among the tensors'
  bool own = false;  // a source of the same trainer keeps its own value
  nlohmann::json value;
};

// How a step becomes the trainer's. No forms: ckpt writes none of its steps but
// for other numbers of ranks.
struct Writes {
  std::vector<Form> forms;
  std::vector<WrittenValue> values;
  std::vector<Said> says;
  // The scheduler's state dict stays as the source has it, if it is for as many
  // groups. Else it is LambdaLR's, whose rule is that of the job that goes on.
  bool scheduler_kept = false;
  std::string names;           // the dialect of the model's names: "torchtitan"
  bool has_scheduler = false;  // some value is, or has, "$scheduler"
  bool has_step = false;       // something says which step it is
};

struct Trainer {
  std::string name;
  std::string what;
  // Patterns, all of which must exist. "a|b": one of the two.
  std::vector<std::string> signature;
  // Not empty: each role's folder must have these, and `signature` applies to
  // the step only.
  std::vector<std::string> role_signature;
  // Patterns of what shows whose a step is if its signature is not whole. None:
  // its optimizers, its parts and what is left of the signature do.
  std::vector<std::string> traces;
  WithoutSign without_sign;
  // Not empty: the container must hold an object with each of these prefixes.
  // "a|b": one of the two.
  std::vector<std::string> objects;
  // A last step may be the model alone: in the container, without `objects`, or
  // under transformers' names, with this file instead of the signature. "":
  // each step is whole.
  std::string exported;
  std::vector<std::string> steps;  // patterns of a root's folders (and files)
  std::vector<std::string> last;   // names that take precedence over numbers
  std::string tracker;             // a file of the root that has the number
  std::string without_tracker;     // what the trainer does without it
  // A link of the root to its newest step, or NAME.txt with that step's name.
  // "NAME.symlink": a file with it in place of a link NAME.
  std::string pointer;
  // Files that are there while a step is saved: in its folder, or beside it
  // ("../*-unfinished", the star being the step's name).
  std::vector<std::string> unfinished;
  std::vector<std::string> drafts;  // patterns: a step's name until it is whole
  std::vector<std::string> roles;   // sub-folders, each with its own model
  std::vector<std::string> homes;   // sub-folders with config and tokenizer
  bool weights_beside = false;      // the root may hold a final model
  bool one_model = false;           // a second one is from another save
  // What becomes of a step without its optimizer; "": nobody misses it.
  std::string without_optimizer;
  bool step_in_name = false;          // the folder's number is the step's
  std::vector<std::string> of_ranks;  // objects that depend on the rank count
  std::string reset_hint;             // what to do without them
  std::string step_file;              // where the step's number is …
  std::string step_key;               // … a path in it, "a.b"
  std::string step_object;            // or an object of the container
  Counts counts;
  Sole sole;
  Pickled pickled;
  Components components;
  std::vector<Source> models;  // the first that exists
  std::vector<Source> optimizers;
  std::vector<Part> parts;
  Writes writes;
};

// The user's, then ckpt's own. Throws usage_error "FILE:LINE:COLUMN: …" for a
// bad file of the user's, and for a name that two have.
const std::vector<Trainer>& trainers();

// Finds a trainer by name; throws usage_error with a suggestion.
const Trainer& find_trainer(const std::string& name);

}  // namespace ckpt::runs
