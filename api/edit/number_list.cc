// SPDX-License-Identifier: Apache-2.0
#include "api/edit/number_list.h"

#include <fmt/format.h>

#include "ckpt/error.h"
#include "lib/text/number.h"

namespace ckpt::library {
namespace {

uint64_t listed_number(const NumberList& list, const std::string& text,
                       std::string_view item) {
  const auto number = text::number(item);
  if (number && *number < list.limit) return *number;
  const std::string problem =
      item.empty() ? fmt::format("{} is missing", list.what)
                   : fmt::format("'{}' is not {}", item, list.what);
  throw usage_error({}, "{} {}: {}", list.option, text.empty() ? "''" : text,
                    problem)
      .with_hint(fmt::format("numbers and ranges, as in {} {}", list.option,
                             list.example));
}

}  // namespace

std::vector<uint64_t> parse_numbers(const NumberList& list,
                                    const std::string& text) {
  std::vector<uint64_t> numbers;
  std::string_view rest = text;
  while (true) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t dash = item.find('-');
    const uint64_t first = listed_number(list, text, item.substr(0, dash));
    const uint64_t last =
        dash == item.npos ? first
                          : listed_number(list, text, item.substr(dash + 1));
    if (last < first)
      throw usage_error({}, "{} {}: {} comes before {}", list.option, text,
                        last, first);
    if (numbers.size() + (last - first) >= list.limit)
      throw usage_error({}, "{} {}: more than {} {}", list.option, text,
                        list.limit, list.plural);
    for (uint64_t number = first; number <= last; ++number)
      numbers.push_back(number);
    if (comma == rest.npos) return numbers;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace ckpt::library
