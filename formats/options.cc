// SPDX-License-Identifier: Apache-2.0
#include "formats/options.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "ckpt/error.h"
#include "formats/format.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::formats {
namespace {

const FormatOption* find(const Traits& traits, std::string_view name) {
  const auto found =
      std::ranges::find(traits.options, name, &FormatOption::name);
  return found == traits.options.end() ? nullptr : &*found;
}

[[noreturn]] void refuse(const Layout& layout, const std::string& name) {
  std::vector<std::string_view> with;
  for (const Format& format : all_formats())
    if (find(format.traits, name)) with.push_back(format.name);
  throw usage_error({}, "--{}: {} doesn't have this option",
                    text::printable(name), layout.format)
      .with_hint(with.empty() ? "no format has it"
                              : fmt::format("formats that have it: {}",
                                            fmt::join(with, ", ")));
}

}  // namespace

std::vector<const FormatOption*> all_options() {
  std::vector<const FormatOption*> all;
  for (const Format& format : all_formats())
    for (const FormatOption& option : format.traits.options)
      if (std::ranges::find(all, option.name, &FormatOption::name) == all.end())
        all.push_back(&option);
  return all;
}

bool takes(std::string_view format, std::string_view option) {
  return find(traits_of(format), option) != nullptr;
}

std::string_view format_of_name(std::string_view path) {
  for (const Format& format : all_formats())
    for (const std::string_view ending : format.traits.endings)
      if (path.ends_with(ending)) return format.name;
  return {};
}

std::string_view usual_container() {
  const auto found = std::ranges::find_if(
      all_formats(), [](const Format& one) { return one.traits.is_container; });
  if (found == all_formats().end()) throw bug_error({}, "no container");
  return found->name;
}

void check_options(const Layout& layout) {
  const Traits& traits = find_format(layout.format).traits;
  for (const auto& [name, text] : layout.options) {
    const FormatOption* option = find(traits, name);
    if (!option) refuse(layout, name);
    if (option->check) option->check(*option, text);
  }
}

void check_count(const FormatOption& option, const std::string& text) {
  constexpr uint64_t kMost = uint64_t{1} << 30;
  const auto count = text::number(text, kMost);
  if (!count || *count == 0)
    throw usage_error({}, "--{} '{}': expected 1 to {}", option.name,
                      text::printable(text), kMost);
}

void check_flag(const FormatOption& option, const std::string& text) {
  if (text != kSet)
    throw usage_error({}, "--{} '{}': expected {}", option.name,
                      text::printable(text), kSet);
}

}  // namespace ckpt::formats
