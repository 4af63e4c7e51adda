// SPDX-License-Identifier: Apache-2.0
// What a family file says about ModelOpt: "modelopt".
#include "ckpt/error.h"
#include "models/family_read.h"

namespace ckpt::families {
namespace {

std::vector<std::string> names_of(const Value& list) {
  for (const Value& name : list.items())
    if (name.text().empty()) name.fail("an empty name");
  if (list.items().empty()) list.fail("no name");
  return texts(list);
}

std::vector<text::Glob> patterns_of(const Value& list) {
  std::vector<text::Glob> result;
  for (const Value& pattern : list.items()) try {
      result.emplace_back(pattern.text());
    } catch (const Error& error) {
      pattern.fail(error.problem(), error.hint());
    }
  if (result.empty()) list.fail("no pattern");
  return result;
}

}  // namespace

ModeloptSection read_modelopt(const Value& section) {
  section.only({"also", "layers", "embedding", "norm", "head", "attention",
                "ffn", "groups", "shared", "order"});
  ModeloptSection modelopt;
  if (const auto also = section.find("also")) modelopt.also = names_of(*also);
  const Value layers = section.member("layers");
  modelopt.layers = layers.text();
  if (!modelopt.layers.ends_with('.')) layers.fail("expected a final dot");
  modelopt.embedding = names_of(section.member("embedding"));
  modelopt.norm = names_of(section.member("norm"));
  modelopt.head = names_of(section.member("head"));
  modelopt.attention = patterns_of(section.member("attention"));
  modelopt.ffn = patterns_of(section.member("ffn"));
  if (const auto groups = section.find("groups"))
    for (const auto& [group, patterns] : groups->members())
      modelopt.groups.emplace_back(group, patterns_of(patterns));
  if (const auto shared = section.find("shared"))
    modelopt.shared = shared->text();
  modelopt.order = names_of(section.member("order"));
  return modelopt;
}

}  // namespace ckpt::families
