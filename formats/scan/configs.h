// SPDX-License-Identifier: Apache-2.0
// What the loaders of configurations import and call. A configuration is no
// pickle, but some of its strings are as good as one:
//
//   _target_, target, class_path, _component_   Hydra, NeMo, Lightning,
//   torchtune
//   !!python/…                                  yaml.load without a safe loader
//   auto_map                                    transformers, with remote code
//   parent_library, type of a module            peft, sentence-transformers
//   class_name, module                          Keras
//   chat_template                               Jinja, outside of a sandbox
//   expr_str                                    torch.export: sympy evaluates
//   it
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::scan {

// Something that a loader would run because of a configuration.
struct Call {
  std::string loader;  // "hydra.utils.instantiate"
  std::string name;    // "os.system"
  std::string where;   // the key's path: "tokenizer._target_"
  bool asked = false;  // the loader has to be told to
};

struct ConfigCalls {
  std::vector<Call> calls;
  std::string problem;  // a part that can't be followed
};

// Which rules hold, besides those for any configuration.
struct Surroundings {
  bool keras = false;  // a record of a .keras archive
  bool nemo = false;   // a member of a .nemo archive
  // The Python files beside it, without their ending.
  std::vector<std::string> modules = {};
};

// Looks into a configuration's tree.
ConfigCalls look_into_config(const nlohmann::json& root,
                             const Surroundings& around);

// A document of YAML as JSON, with the text of every scalar. Anchors of scalars
// are followed; a tag of Python's becomes a member "!!python". Throws
// input_error for what is no YAML or too large.
nlohmann::json read_yaml(const std::string& text, const std::string& path);

// Such a document of settings, of which nothing may be overlooked: a key that
// is there twice, an alias, a tag and a second document are input_errors, too.
// `lines`: where each key or item is, by those above: "/models/0/model".
struct Settings {
  nlohmann::json tree;
  std::map<std::string, uint64_t> lines;
};
Settings read_settings(const std::string& text, const std::string& path);

// True if what a Python path names is a class or a function of a framework that
// builds models. Others may be anything: os.system, numpy.load.
bool is_framework_call(std::string_view target);

// The part of a Jinja template that reaches for Python's internals, or that
// computes a name to look up; "" if there is none.
std::string reaching_out(std::string_view source);

// The operator of TorchScript's code that writes or maps a file; "" if none.
std::string file_operator(std::string_view code);

// True if sympy makes nothing but numbers and symbols of it: it evaluates
// everything else as Python.
bool is_plain_expression(std::string_view text);

}  // namespace ckpt::scan
