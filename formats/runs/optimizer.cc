// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/runs/pattern.h"
#include "formats/runs/split.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using text::printable;

// States with their own shape, whatever the parameter's.
constexpr std::string_view kOwnShape[] = {
    "row",  "col",  "projector", "qmap1",    "qmap2",    "qmap",
    "max1", "max2", "new_max1",  "new_max2", "unorm_vec"};

// Adafactor's second moment: sums over rows, and over columns. torch keeps the
// summed dimension, with size 1; transformers does not.
bool is_rows(std::string_view state) {
  return state == "row_var" || state == "exp_avg_sq_row";
}
bool is_columns(std::string_view state) {
  return state == "col_var" || state == "exp_avg_sq_col";
}

Wanted from_sums(const Tensor& rows, const Tensor& columns) {
  const Shape &r = rows.shape, &c = columns.shape;
  if (r.empty() || c.empty() || r.size() != c.size()) return std::nullopt;
  const size_t last = r.size() - 1;
  const bool kept = rows.state == "row_var";
  if (kept && (last == 0 || r[last] != 1 || c[last - 1] != 1))
    return std::nullopt;
  for (size_t d = 0; d + 1 < (kept ? last : r.size()); ++d)
    if (r[d] != c[d]) return std::nullopt;
  std::vector<uint64_t> sizes(r.begin(), r.end());
  if (kept)
    sizes[last] = c[last];
  else
    sizes.push_back(c[last]);
  return Shape(sizes);
}

// bitsandbytes has a maximum for each block of an 8-bit state.
bool is_maxima(std::string_view state) {
  return state == "absmax1" || state == "absmax2" || state == "absmax";
}

bool fit_blocks(const Tensor& maxima, const Shape& whole) {
  const auto count = element_count(whole);
  if (!count || maxima.shape.size() != 1) return false;
  for (const uint64_t block : {256, 2048, 4096})
    if (maxima.shape[0] == *count / block + (*count % block != 0)) return true;
  return false;
}

bool tells_shape(const Tensor& tensor) {
  return !tensor.shape.empty() && tensor.state != "step" &&
         !is_rows(tensor.state) && !is_columns(tensor.state) &&
         !is_maxima(tensor.state) &&
         std::ranges::find(kOwnShape, tensor.state) == std::end(kOwnShape);
}

// The shapes of each number's states; `odd` is a number whose states disagree.
struct Evidence {
  std::map<uint64_t, Wanted> shapes;
  std::optional<uint64_t> odd;
};

struct Indirect {
  const Tensor* rows = nullptr;
  const Tensor* columns = nullptr;
  std::vector<const Tensor*> maxima;
};

Evidence evidence_of(const Catalog& catalog, const Range& range) {
  Evidence evidence;
  std::map<uint64_t, Indirect> indirect;
  const auto take = [&](uint64_t number, const Wanted& told) {
    Wanted& shape = evidence.shapes[number];
    if (!told || (shape && *shape != *told)) evidence.odd = number;
    if (told) shape = told;
  };
  for (size_t t = range.begin; t < range.end; ++t) {
    const Tensor& tensor = catalog.tensors[t];
    const auto number = whole_number(tensor.param);
    if (!number) continue;
    evidence.shapes.try_emplace(*number);
    if (is_rows(tensor.state)) indirect[*number].rows = &tensor;
    if (is_columns(tensor.state)) indirect[*number].columns = &tensor;
    if (is_maxima(tensor.state)) indirect[*number].maxima.push_back(&tensor);
    if (tells_shape(tensor)) take(*number, tensor.shape);
  }
  for (const auto& [number, told] : indirect) {
    if ((told.rows == nullptr) != (told.columns == nullptr))
      evidence.odd = number;
    else if (told.rows != nullptr)
      take(number, from_sums(*told.rows, *told.columns));
    const Wanted& whole = evidence.shapes[number];
    for (const Tensor* maxima : told.maxima)
      if (!whole || !fit_blocks(*maxima, *whole)) evidence.odd = number;
  }
  return evidence;
}

bool by_decay(size_t group, const Parameter& parameter) {
  return (group == 0) == parameter.decays;
}

}  // namespace

std::optional<Groups> read_groups(const Document& document, Id optimizer,
                                  const std::string& path) {
  const Id groups = document.find(optimizer, "param_groups");
  if (!document.is(groups, Type::kList)) return std::nullopt;
  Groups result;
  std::set<uint64_t> seen;
  for (const Id group : document.items(groups)) {
    const Id params = document.find(group, "params");
    if (!document.is(params, Type::kList))
      throw input_error({path, {}}, "param_groups: a group without params");
    auto& numbers = result.emplace_back();
    for (const Id param : document.items(params)) {
      const auto number = document.as_int(param);
      if (!number) return std::nullopt;  // names
      if (*number < 0 || !seen.insert(static_cast<uint64_t>(*number)).second)
        throw input_error({path, {}}, "param_groups: parameter {} twice",
                          *number);
      numbers.push_back(static_cast<uint64_t>(*number));
    }
  }
  return result;
}

Names name_parameters(const Catalog& catalog, const Range& range,
                      const Groups& groups, const std::string& rule,
                      const std::optional<ParameterOrder>& order,
                      const std::string& why_not) {
  Names names{.groups = groups, .parameters = {}, .why = {}, .why_not = {}};
  const auto refuse = [&](std::string why) {
    names.why_not = std::move(why);
    return names;
  };
  if (!order) return refuse(why_not);
  const Evidence evidence = evidence_of(catalog, range);
  if (evidence.odd)
    return refuse(fmt::format("the states of parameter {} have unlike shapes",
                              *evidence.odd));
  std::vector<std::vector<Wanted>> wanted;
  size_t count = 0;
  for (const auto& group : groups) {
    auto& shapes = wanted.emplace_back();
    for (const uint64_t number : group) {
      const auto found = evidence.shapes.find(number);
      shapes.push_back(found == evidence.shapes.end() ? std::nullopt
                                                      : found->second);
    }
    count += group.size();
  }
  const bool decay = rule == "decay";
  if (decay && groups.size() != 2)
    return refuse(
        fmt::format("{} groups of parameters, the Trainer's own "
                    "optimizer has 2",
                    groups.size()));
  const Split split =
      only_split(order->parameters, wanted, decay ? by_decay : nullptr);
  switch (split.ways) {
    case Ways::kOne:
      break;
    case Ways::kNone:
      return refuse(
          fmt::format("its {} parameters do not fit {} ({} parameters)", count,
                      order->why, order->parameters.size()));
    case Ways::kMany:
      return refuse(fmt::format("its {} parameters fit {} in more than one way",
                                count, order->why));
    case Ways::kTooMany:
      return refuse("there are too many ways to look at");
  }
  for (const auto& group : split.groups) {
    auto& parameters = names.parameters.emplace_back();
    for (const size_t p : group) parameters.push_back(order->parameters[p]);
  }
  names.why = order->why;
  if (decay) names.why += ", in two groups by weight decay";
  return names;
}

Asked asked_order(const std::string& text,
                  std::span<const Tensor* const> model) {
  constexpr uint64_t kMaxFile = uint64_t{64} << 20;
  Asked asked{.rule = text, .order = stored_order(model)};
  asked.order.why = "the order that --assume-order says";
  if (text == "module" || text == "decay") return asked;
  if (!io::is_file(text))
    throw usage_error({text, {}}, "--assume-order: neither a rule nor a file")
        .with_hint("module, decay, or a file with a name on each line");
  asked.rule = "module";
  std::map<std::string, Parameter> known;
  for (const Parameter& one : asked.order.parameters) known[one.name] = one;
  asked.order.parameters.clear();
  const std::string all = io::read_file(text, kMaxFile);
  for (size_t at = 0; at < all.size();) {
    size_t end = std::min(all.find('\n', at), all.size());
    std::string name = all.substr(at, end - at);
    at = end + 1;
    while (!name.empty() && (name.back() == '\r' || name.back() == ' '))
      name.pop_back();
    if (name.empty()) continue;
    const auto found = known.find(name);
    if (found == known.end())
      throw usage_error(
          {text, printable(name)},
          "--assume-order: the model doesn't have this parameter");
    asked.order.parameters.push_back(found->second);
  }
  return asked;
}

namespace {

// Replaces the groups' numbers by the names that they stand for.
void name_groups(Catalog& catalog, const Names& names,
                 const std::string& prefix, const std::string& word) {
  using pickle::Type;
  const auto object =
      std::ranges::find(catalog.objects, word + "param_groups", &Object::name);
  if (object == catalog.objects.end() || !object->document) return;
  const pickle::Document& from = *object->document;
  if (!from.is(object->node, Type::kList) ||
      from.items(object->node).size() != names.parameters.size())
    return;
  auto document = std::make_shared<pickle::Document>();
  std::unordered_map<pickle::Id, pickle::Id> substitutes;
  for (size_t g = 0; g < names.parameters.size(); ++g) {
    const pickle::Id numbers = from.find(from.items(object->node)[g], "params");
    if (numbers == pickle::kNoId) return;
    const pickle::Id list = document->add_container(Type::kList);
    for (const Parameter& one : names.parameters[g])
      document->append(list, document->add_string(prefix + one.name));
    substitutes[numbers] = list;
  }
  object->node = document->import(from, object->node, substitutes);
  object->document = std::move(document);
}

}  // namespace

void apply(Catalog& catalog, const Range& range, const Names& names,
           const std::string& prefix, const std::string& word) {
  name_groups(catalog, names, prefix, word);
  std::map<uint64_t, const Parameter*> by_number;
  for (size_t g = 0; g < names.parameters.size(); ++g)
    for (size_t i = 0; i < names.parameters[g].size(); ++i)
      by_number[names.groups[g][i]] = &names.parameters[g][i];
  for (size_t t = range.begin; t < range.end; ++t) {
    Tensor& tensor = catalog.tensors[t];
    tensor.kind = Kind::optim;
    const auto number = whole_number(tensor.param);
    const auto found = number ? by_number.find(*number) : by_number.end();
    if (found == by_number.end()) {
      tensor.name = word + tensor.name;
      continue;
    }
    tensor.param = prefix + found->second->name;
    tensor.name = tensor.param + "." + tensor.state;
  }
}

void number_again(Catalog& catalog, size_t begin, const std::string& prefix,
                  const std::string& word, const std::string& path) {
  std::set<std::string_view> model;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model) model.insert(tensor.name);
  bool any = false;
  for (size_t t = begin; t < catalog.tensors.size(); ++t) {
    Tensor& tensor = catalog.tensors[t];
    if (tensor.kind != Kind::optim || !tensor.param.starts_with(prefix) ||
        model.contains(tensor.param))
      continue;
    const std::string number = tensor.param.substr(prefix.size());
    if (!whole_number(number)) continue;
    tensor.param = number;
    tensor.name = word + "state." + number + "." + tensor.state;
    any = true;
  }
  if (any)
    catalog.problems.push_back(
        warning("numbered_state", {path, {}},
                "the optimizer's state stays by the numbers of parameters: "
                "DCP keeps no order of the model's"));
}

void leave_numbered(Catalog& catalog, const Range& range,
                    const std::string& word, const std::string& file,
                    const std::string& why) {
  for (size_t t = range.begin; t < range.end; ++t) {
    Tensor& tensor = catalog.tensors[t];
    tensor.kind = Kind::optim;
    tensor.name = word + tensor.name;
  }
  if (range.begin == range.end) return;
  catalog.problems.push_back(
      warning("numbered_state", {file, {}},
              "the optimizer's state stays by the numbers of parameters: "
              "{}",
              why));
}

Names named(const Catalog& catalog, const Range& range, const Groups& groups,
            const std::string& rule, std::span<const Tensor* const> model,
            bool pickled, const ModelFacts& facts,
            const formats::ReadOptions& options, const std::string& path) {
  if (!options.assume_order.empty()) {
    const Asked asked = asked_order(options.assume_order, model);
    Names names =
        name_parameters(catalog, range, groups, asked.rule, asked.order, {});
    if (!names.why_not.empty())
      throw usage_error({path, {}}, "--assume-order {}: {}",
                        options.assume_order, names.why_not);
    return names;
  }
  std::string why_not;
  std::optional<ParameterOrder> order;
  if (pickled)
    order = stored_order(model);
  else
    order = family_order(model, facts, why_not);
  return name_parameters(catalog, range, groups, rule, order, why_not);
}

}  // namespace ckpt::runs
