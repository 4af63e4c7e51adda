// SPDX-License-Identifier: Apache-2.0
#include "formats/fsdp/flat_params.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/other_json.h"

namespace ckpt::fsdp {
namespace {

using Json = nlohmann::ordered_json;
using text::printable;

constexpr uint64_t kMaxFile = uint64_t{256} << 20;
// FSDP1 aligns to this many bytes of the dtype that it computes in, which may
// be narrower than the stored one.
constexpr uint64_t kAlignedBytes = 16;

[[noreturn]] void refuse(const std::string& path, const std::string& key,
                         const std::string& why) {
  throw usage_error({path, {}}, "{}: {}", printable(key), why)
      .with_hint(
          "a flat parameter is a list of {\"name\": …, \"shape\": […]}, or "
          "an object with that list as \"parameters\", with \"alignment\" "
          "and \"padding\" in elements");
}

uint64_t count_of(const Json& value, const std::string& path,
                  const std::string& key) {
  if (!value.is_number_unsigned()) refuse(path, key, "expected a count");
  return value.get<uint64_t>();
}

Parameter parameter_of(const Json& value, const std::string& path,
                       const std::string& key) {
  if (!value.is_object() || !value.contains("name") ||
      !value.contains("shape") || !value["name"].is_string() ||
      !value["shape"].is_array())
    refuse(path, key, "a parameter without a name and a shape");
  Parameter parameter{.name = value["name"].get<std::string>(), .shape = {}};
  if (parameter.name.empty()) refuse(path, key, "a parameter's name is empty");
  if (value["shape"].size() > kMaxRank)
    refuse(path, key, "a shape of too many dimensions");
  for (const Json& size : value["shape"])
    parameter.shape.push_back(count_of(size, path, key));
  if (!element_count(parameter.shape)) refuse(path, key, "a shape overflows");
  return parameter;
}

FlatParameter flat_of(const Json& value, const std::string& path,
                      const std::string& key) {
  const size_t dot = key.rfind('.');
  FlatParameter flat{
      .key = key,
      .leaf = dot == key.npos ? key : key.substr(dot + 1),
      .parameters = {},
      .alignment = {},
      .padding = {},
  };
  const Json* list = &value;
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) {
      if (name == "parameters")
        list = &member;
      else if (name == "alignment")
        flat.alignment = std::max<uint64_t>(1, count_of(member, path, key));
      else if (name == "padding")
        flat.padding = count_of(member, path, key);
      else
        refuse(path, key, "unknown member " + printable(name));
    }
  }
  if (!list->is_array() || list->empty())
    refuse(path, key, "expected a list of parameters");
  for (const Json& item : *list)
    flat.parameters.push_back(parameter_of(item, path, key));
  return flat;
}

// Where parameters with that alignment begin, and finally the end; nothing on
// overflow.
std::optional<std::vector<uint64_t>> aligned(const FlatParameter& flat,
                                             uint64_t alignment) {
  std::vector<uint64_t> at{0};
  for (const Parameter& parameter : flat.parameters) {
    const uint64_t gap = (alignment - at.back() % alignment) % alignment;
    const auto begin = checked_add(at.back(), gap);
    const auto elements = element_count(parameter.shape);
    if (!begin || !elements) return std::nullopt;
    const auto end = checked_add(*begin, *elements);
    if (!end) return std::nullopt;
    at.back() = *begin;
    at.push_back(*end);
  }
  return at;
}

// True if parameters that end at `end` make a tensor of that length.
bool fits(uint64_t end, uint64_t alignment, const FlatParameter& flat,
          const FlatTensor& tensor) {
  if (end > tensor.length) return false;
  const uint64_t rest = tensor.length - end;
  if (flat.padding && rest == *flat.padding) return true;
  if (alignment == 1 && rest == 0) return true;
  if (alignment == 1 && !tensor.padded) return false;
  return rest < tensor.ranks && tensor.length % tensor.ranks == 0;
}

Error complaint(const FlatParameters& all, const FlatTensor& tensor,
                const std::string& why) {
  const Where where{all.source, printable(tensor.name)};
  return all.from_user ? usage_error(where, "{}", why)
                       : input_error(where, "{}", why);
}

}  // namespace

bool is_flat_leaf(std::string_view leaf) {
  if (leaf.starts_with('_')) return leaf == "_flat_param";
  if (!leaf.starts_with("flat_param")) return false;
  leaf.remove_prefix(std::string_view("flat_param").size());
  return leaf.empty() || (leaf.size() > 1 && leaf[0] == '_' &&
                          leaf.find_first_not_of("0123456789", 1) == leaf.npos);
}

FlatParameters read_flat_params(const std::string& path) {
  const std::string text = io::read_file(path, kMaxFile);
  if (!text::parse_json(text, path).is_object())
    throw usage_error({path, {}}, "expected an object of flat parameters");
  FlatParameters all{.source = path, .from_user = true, .all = {}};
  // Parse again, for the order of the file.
  const auto json = text::parse_or_discard<Json>(text);
  for (const auto& [key, value] : json.items())
    all.all.push_back(flat_of(value, path, key));
  return all;
}

std::vector<uint64_t> begins(const FlatParameters& all,
                             const FlatParameter& flat,
                             const FlatTensor& tensor) {
  std::set<uint64_t> alignments{1};
  for (uint64_t size = 1; size <= tensor.itemsize; size *= 2)
    alignments.insert(kAlignedBytes / size);
  if (flat.alignment) alignments = {*flat.alignment};
  std::set<std::vector<uint64_t>> found;
  uint64_t least = 0;
  for (const uint64_t alignment : alignments) {
    auto at = aligned(flat, alignment);
    if (!at) continue;
    if (alignment == *alignments.begin()) least = at->back();
    if (fits(at->back(), alignment, flat, tensor)) found.insert(*std::move(at));
  }
  if (found.empty())
    throw complaint(
        all, tensor,
        fmt::format("its {} parameters have {} elements, the flat tensor of {} "
                    "ranks {}",
                    flat.parameters.size(), least, tensor.ranks, tensor.length))
        .with_hint(
            "every parameter of the module must be there, in the order of "
            "named_modules(), shared ones once; \"alignment\" and \"padding\" "
            "count elements");
  if (found.size() > 1)
    throw complaint(all, tensor,
                    "parameters with and without gaps between them both have "
                    "its length")
        .with_hint(
            "say the \"alignment\" in elements: 16 bytes with "
            "use_orig_params=True, else 1");
  std::vector<uint64_t> at = *found.begin();
  at.pop_back();
  return at;
}

}  // namespace ckpt::fsdp
