// SPDX-License-Identifier: Apache-2.0
// What a family file says about vLLM: "vllm".
#include <fmt/format.h>

#include <array>

#include "lib/text/format.h"
#include "models/family_read.h"

namespace ckpt::families {
namespace {

// vLLM's modules that join others of transformers', and how many.
struct Joined {
  std::string_view name;
  size_t parts;
};
constexpr std::array<Joined, 3> kJoined = {
    {{"qkv_proj", 3}, {"gate_up_proj", 2}, {"fused_qkv_a_proj", 2}}};

const std::string& some_text(const Value& value) {
  if (value.text().empty()) value.fail("an empty name");
  return value.text();
}

VllmSection::Fusion read_fusion(const std::string& name, const Value& value) {
  std::vector<std::string> known;
  for (const Joined& joined : kJoined) {
    known.emplace_back(joined.name);
    if (joined.name != name) continue;
    for (const Value& part : value.items()) some_text(part);
    VllmSection::Fusion fusion{name, texts(value)};
    if (fusion.from.size() != joined.parts)
      value.fail(fmt::format("expected {} names", joined.parts));
    return fusion;
  }
  value.fail("vLLM has no module \"" + text::printable(name) + "\"",
             known_names(name, known));
}

// "to", or {"to": …, "how": "turned"}.
VllmSection::Renaming read_renaming(const std::string& hf, const Value& value) {
  VllmSection::Renaming renaming{.hf = hf};
  if (hf.empty()) value.fail("an empty name");
  if (value.is_object()) {
    value.only({"to", "how"});
    renaming.vllm = some_text(value.member("to"));
    const Value how = value.member("how");
    if (how.text() == "turned")
      renaming.how = VllmSection::Renaming::kTurned;
    else if (how.text() == "row")
      renaming.how = VllmSection::Renaming::kRow;
    else
      how.fail("expected \"turned\" or \"row\"");
  } else {
    renaming.vllm = some_text(value);
  }
  // "a.b." is the beginning of names, "a.b" is the end of one.
  if (hf.ends_with('.') != renaming.vllm.ends_with('.'))
    value.fail("one of the two names ends in a dot, the other doesn't");
  return renaming;
}

}  // namespace

VllmSection read_vllm(const Value& section) {
  section.only(
      {"fused", "names", "experts", "head", "tied", "needs", "paired"});
  VllmSection vllm;
  if (const auto fused = section.find("fused"))
    for (const auto& [name, parts] : fused->members())
      vllm.fusions.push_back(read_fusion(name, parts));
  if (const auto names = section.find("names"))
    for (const auto& [hf, name] : names->members())
      vllm.renamings.push_back(read_renaming(hf, name));
  if (const auto experts = section.find("experts")) {
    experts->only({"gate", "up", "down"});
    vllm.experts = {some_text(experts->member("gate")),
                    some_text(experts->member("up")),
                    some_text(experts->member("down"))};
  }
  if (const auto head = section.find("head")) vllm.head = head->flag();
  if (const auto tied = section.find("tied")) vllm.tied = tied->flag();
  if (const auto needs = section.find("needs")) vllm.needs = some_text(*needs);
  if (const auto paired = section.find("paired")) vllm.paired = paired->flag();
  return vllm;
}

}  // namespace ckpt::families
