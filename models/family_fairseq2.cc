// SPDX-License-Identifier: Apache-2.0
// What a family file says about fairseq2 alone: how it cuts tensors, which of
// them are buffers or the same tensor, their shapes, its defaults.

#include "ckpt/error.h"
#include "models/family_read.h"
#include "models/pattern.h"

namespace ckpt::families {
namespace {

void check_pattern(const Value& value) {
  std::string text = value.text();
  // "{global}" stands for the numbers of an index set.
  for (size_t at = 0; (at = text.find('{')) != text.npos;) {
    const size_t end = text.find('}', at);
    if (end == text.npos) value.fail("{ and } do not match");
    text.replace(at, end - at + 1, "(0)");
  }
  try {
    Pattern{text};
  } catch (const Error& error) {
    value.fail(error.problem());
  }
}

void check_if(const Value& value) {
  const auto condition = value.find("if");
  if (!condition) return;
  condition->only({"field", "equals"});
  condition->member("field").text();
  if (condition->member("equals").json().is_structured())
    condition->member("equals").fail(
        "expected true, false, null, a number or "
        "a text");
}

void check_tp_rules(const Value& rules) {
  for (const Value& rule : rules.items()) {
    rule.only({"match", "dim", "groups", "if"});
    check_pattern(rule.member("match"));
    if (!rule.member("dim").json().is_null()) rule.member("dim").number(0, 15);
    if (const auto groups = rule.find("groups"); groups && !groups->is_text())
      groups->number(1, UINT32_MAX);
    check_if(rule);
  }
}

void check_tied(const Value& sets) {
  for (const Value& set : sets.items()) {
    set.only({"keys", "hf_drops", "if", "always"});
    if (texts(set.member("keys")).size() < 2)
      set.member("keys").fail("expected two names or more");
    check_if(set);
  }
}

void check_shapes(const Value& shapes) {
  for (const Value& row : shapes.items()) {
    row.only({"name", "shape", "layers", "if", "hf", "meta", "transform"});
    row.member("name").text();
    for (const Value& size : row.member("shape").items())
      if (!size.is_text()) size.number(0, uint64_t{1} << 48);
    check_if(row);
  }
}

void check_index_sets(const Value& sets) {
  for (const auto& [name, set] : sets.members()) {
    set.only({"layers", "every", "last", "what"});
    set.member("layers").text();
    set.member("every").number(1, UINT32_MAX);
  }
}

}  // namespace

void check_fairseq2(const Value& section) {
  section.only(
      {"family",       "chosen",       "peer",           "peer_hf_config",
       "config_class", "architecture", "hf_source",      "notes",
       "ignore",       "index",        "vars",           "requires",
       "rules",        "config",       "hf_config",      "tp_rules",
       "tp_status",    "index_sets",   "buffers",        "tied",
       "export_drops", "import_drops", "drop_on_import", "derived",
       "complete",     "shapes",       "fairseq1",       "config_defaults"});
  if (const auto family = section.find("family")) family->text();
  if (!section.find("tp_rules")) {
    if (!section.find("family"))
      section.fail("\"tp_rules\" is missing",
                   "or \"family\", to name the family that has them");
    return;
  }
  check_tp_rules(section.member("tp_rules"));
  check_tied(section.member("tied"));
  for (const Value& buffer : section.member("buffers").items())
    check_pattern(buffer);
  if (!section.member("config_defaults").is_object())
    section.member("config_defaults").fail("expected an object");
  if (const auto shapes = section.find("shapes")) check_shapes(*shapes);
  if (const auto sets = section.find("index_sets")) check_index_sets(*sets);
}

}  // namespace ckpt::families
