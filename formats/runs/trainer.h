// SPDX-License-Identifier: Apache-2.0
// Trainers as data: what each leaves in the folder of a step. trainers.json
// has them (docs/formats/runs.md says what its fields mean); nothing here
// looks at a file.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::runs {

// A container of tensors in the folder.
struct Source {
  std::string file;  // a pattern: it is there if this is
  std::string at;    // what is opened; "": the folder itself
  std::string read;  // a format's name, "ranks" or "nanotron"
  // How an optimizer's numbers become names: "names", "decay", "module".
  std::string order;
  // Prefixes of names, in the order they are tried. Model tensors: what is
  // left is the parameter's name; an optimizer's: <parameter>.<state>.
  std::vector<std::string> prefixes;
  std::vector<std::string> optimizers;
  std::vector<std::string> others;  // of neither
  std::string key;  // where in a pickle the optimizer's state dict is
  // A number in it that is the step's plus one; any other is of another save.
  std::string next_step;
  // A model's: in another arrangement and under other names than it is trained
  // in. Numbers of its optimizer are not those of its parameters.
  bool arranged = false;
};

// A file that holds values.
struct Part {
  std::string file;      // a pattern; {r}: one for each rank
  std::string part;      // file_list's word for it
  bool carried = false;  // the model's: looked for here, read as a sidecar
  bool above = false;    // in the folder above that of the role
  // "optimizer", or a pattern: what is not loaded without this file.
  std::string with;
  std::string instead;  // a pattern: what does as well
  // Its loader does without it, and what comes of that; "" if nothing does.
  std::string without;
  // "trainer_state.json stateful_callbacks": a file, and a key of it, of those
  // who always write this one together with the optimizer; "": nobody always.
  std::string proof;
  // Of files of ranks, when the number of ranks changes: false: they are left
  // out and start afresh; true: the loader demands one for each rank, and new
  // ranks get those of the old ones in turn.
  bool demanded = false;
  bool fails = false;  // `without` is an error of the loader's
  // The name of a value that is None where the trainer writes this file.
  std::string none;
  std::string world;  // a JSON file: this key holds the number of ranks
};

// Everything of a step in one container, which its own reader reads whole.
struct Sole {
  struct More {
    std::string at;    // a folder with a container of its own
    std::string part;  // file_list's word for it
  };
  std::string format;      // "": the trainer has parts instead
  std::string at;          // a pattern: the container's folder in the step
  std::vector<More> more;  // what may lie beside it, the optimizer last
  std::string weights;     // a folder with the model, if no container has one
  std::string list;        // a JSON file: "contents" has the parts' "path"s
};

// Everything of a step in one file of torch.save.
struct Pickled {
  std::string sign;        // an object that such a file has; "": no such files
  std::string model;       // the beginning of the model's names
  std::string optimizers;  // keys of a list or dict of state dicts, "a.b"
  std::string ending;      // of files' names; "": those of `steps` and `last`
};

// A folder of models beside each other, each with a configuration of its own.
struct Components {
  std::string file;  // the JSON file that lists them; "": there are none
  // Ends of classes that have weights; none: all that have a config.json.
  std::vector<std::string> weighted;
};

struct Trainer {
  std::string name;
  std::string what;
  // Patterns; all of them are there. "a|b": one of the two.
  std::vector<std::string> signature;
  // Not empty: of each role's folder, `signature` is of the step alone.
  std::vector<std::string> role_signature;
  // Not empty: an object of one of these beginnings has to be in the container.
  std::vector<std::string> objects;
  std::vector<std::string> steps;  // patterns of a root's folders (and files)
  std::vector<std::string> last;   // names that win over numbers
  std::string tracker;             // a file of the root that has the number
  std::string without_tracker;     // what the trainer does without that
  std::vector<std::string> roles;  // sub-folders, each with a model of its own
  std::vector<std::string> homes;  // sub-folders with config and tokenizer
  bool weights_beside = false;     // the root may hold a final model
  bool one_model = false;          // a second one is of another save
  bool step_in_name = false;       // the folder's number is the step's
  std::vector<std::string> of_ranks;  // objects that are of so many ranks
  std::string reset_hint;             // what to do without them
  std::string step_file;              // where the step's number is …
  std::string step_key;               // … a path in it, "a.b"
  std::string step_object;            // or an object of the container
  Sole sole;
  Pickled pickled;
  Components components;
  std::vector<Source> models;  // the first that is there
  std::vector<Source> optimizers;
  std::vector<Part> parts;
};

const std::vector<Trainer>& trainers();

// By name; throws usage_error with a suggestion.
const Trainer& find_trainer(const std::string& name);

}  // namespace ckpt::runs
