// SPDX-License-Identifier: Apache-2.0
// Shows values: a tensor's as NumPy prints them, an object's as YAML.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/commands/source.h"
#include "app/commands/within.h"
#include "app/options/slice.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/report.h"
#include "app/print/value_text.h"
#include "ckpt/ckpt.h"
#include "lib/heap.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"
#include "lib/text/suggest.h"
#include "reshard/numbers/values.h"
#include "reshard/run/read.h"

namespace ckpt::app {
namespace {

constexpr uint64_t kMostValues = 1'000'000;  // of a JSON document
constexpr uint64_t kMostShown = 1'000;       // more are abridged
constexpr uint64_t kEdge = 3;  // then elements shown at either end

template <class T>
T read_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::string float_text(double value, bool wide) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = wide ? fmt::format("{}", value)
                          : fmt::format("{}", static_cast<float>(value));
  if (text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

// One element; exact, even for 64-bit integers.
std::string element_text(DType dtype, const std::byte* at) {
  if (dtype == DType::i64) return std::to_string(read_as<int64_t>(at));
  if (dtype == DType::u64) return std::to_string(read_as<uint64_t>(at));
  if (dtype == DType::bool_)
    return read_as<uint8_t>(at) == 0 ? "false" : "true";
  double values[2] = {};
  reshard::to_doubles(dtype, at, 1, values);
  const bool wide = dtype == DType::f64 || dtype == DType::c128;
  if (reshard::doubles_of(dtype) == 2)
    return fmt::format("{}{}{}j", float_text(values[0], wide),
                       values[1] < 0 ? "" : "+", float_text(values[1], wide));
  const bool whole = name(dtype)[0] != 'f' && name(dtype)[0] != 'b';
  return whole ? fmt::format("{:.0f}", values[0]) : float_text(values[0], wide);
}

// The elements of a tensor selected by ranges, row-major.
class Values {
 public:
  Values(const Catalog& catalog, const Tensor& tensor,
         const EngineOptions& engine)
      : catalog_(catalog), tensor_(tensor) {
    run_.threads = engine.threads;
    run_.max_mem = engine.max_mem;
    run_.io = engine.io;
    run_.digest = false;
  }

  // Appends the bytes of the elements. In the last dimension with a step, reads
  // what is between them, too.
  std::vector<std::byte> read(const std::vector<Range>& ranges) const {
    std::vector<std::byte> out;
    std::vector<uint64_t> at(ranges.size(), 0);
    take(ranges, 0, at, out);
    return out;
  }

 private:
  // Dimensions with a step, except the last one, are read index by index.
  void take(const std::vector<Range>& ranges, size_t d,
            std::vector<uint64_t>& at, std::vector<std::byte>& out) const {
    bool plain = true;
    for (size_t i = d; i < ranges.size(); ++i)
      plain &= ranges[i].step == 1 || i + 1 == ranges.size();
    if (!plain) {
      for (uint64_t i = 0; i < ranges[d].count; ++i) {
        at[d] = ranges[d].begin + i * ranges[d].step;
        take(ranges, d + 1, at, out);
      }
      return;
    }
    Box box;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const Range& range = ranges[i];
      if (range.count == 0) return;
      box.offset.push_back(i < d ? at[i] : range.begin);
      box.shape.push_back(i < d ? 1 : (range.count - 1) * range.step + 1);
    }
    const std::vector<std::byte> bytes =
        reshard::read_box(catalog_, tensor_, box, run_);
    const uint64_t step = ranges.empty() ? 1 : ranges.back().step;
    const uint64_t size = element_size(tensor_.dtype);
    if (step == 1) {
      out.insert(out.end(), bytes.begin(), bytes.end());
      return;
    }
    const uint64_t row = box.shape.back();
    for (uint64_t begin = 0; begin * size < bytes.size(); begin += row)
      for (uint64_t i = 0; i < row; i += step) {
        const auto from =
            bytes.begin() + static_cast<std::ptrdiff_t>((begin + i) * size);
        out.insert(out.end(), from, from + static_cast<std::ptrdiff_t>(size));
      }
  }

  const Catalog& catalog_;
  const Tensor& tensor_;
  reshard::RunOptions run_;
};

// Keeps only the ends of long dimensions; `abridged` says of which.
std::vector<Range> ends_of(const Range& range) {
  Range first = range, last = range;
  first.count = last.count = kEdge;
  last.begin += (range.count - kEdge) * range.step;
  return {first, last};
}

// "[[1, 2, ..., 5],\n [3, 4, ..., 6]]" from texts in row-major order.
class Printer {
 public:
  explicit Printer(const std::vector<Range>& ranges, bool abridge)
      : ranges_(ranges) {
    for (const Range& range : ranges)
      abridged_.push_back(abridge && range.count > 2 * kEdge);
  }
  bool abridged(size_t d) const { return abridged_[d]; }

  // `element` gives the text of an element by its indexes in the ranges.
  std::string text(
      const std::function<std::string(const std::vector<uint64_t>&)>& element) {
    std::vector<uint64_t> at(ranges_.size(), 0);
    std::string out;
    dim(0, 0, at, element, out);
    return out;
  }

 private:
  void dim(
      size_t d, size_t depth, std::vector<uint64_t>& at,
      const std::function<std::string(const std::vector<uint64_t>&)>& element,
      std::string& out) {
    while (d < ranges_.size() && ranges_[d].single) ++d;
    if (d == ranges_.size()) {
      out += element(at);
      return;
    }
    size_t inner = d + 1;
    while (inner < ranges_.size() && ranges_[inner].single) ++inner;
    const bool rows = inner < ranges_.size();
    const std::string between =
        rows ? ",\n" + std::string(depth + 1, ' ') : ", ";
    out += '[';
    const uint64_t count = ranges_[d].count;
    for (uint64_t i = 0; i < count; ++i) {
      if (i > 0) out += between;
      if (abridged_[d] && i == kEdge) {
        out += "..." + between;
        i = count - kEdge;
      }
      at[d] = i;
      dim(d + 1, depth + 1, at, element, out);
    }
    at[d] = 0;
    out += ']';
  }

  const std::vector<Range>& ranges_;
  std::vector<bool> abridged_;
};

// The value at a dotted path inside an object's, if there is one.
const nlohmann::ordered_json* inside(const nlohmann::ordered_json& value,
                                     std::string_view path) {
  const nlohmann::ordered_json* at = &value;
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    const std::string key(path.substr(0, dot));
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &(*at)[key];
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return at;
}

class Show : public Command {
 public:
  std::string_view name() const override { return "show"; }
  std::string_view help() const override {
    return "print values: of a tensor or a part of it, or of an object";
  }
  std::string_view examples() const override {
    return "ckpt show step_5000 'model.norm.weight[:8]'\n"
           "ckpt show step_5000 'layers.0.w1[0:4,-8:]' --json\n"
           "ckpt show iter_0001000 args           # an object, as YAML";
  }
  void add_options(CLI::App& app) override {
    app.add_option("PATH", path_, "The checkpoint")
        ->required()
        ->group("Arguments");
    app.add_option("NAME", what_,
                   "A tensor, NAME[SLICE] with a slice as in NumPy, or an "
                   "object")
        ->required()
        ->group("Arguments");
    add_source_options(app, source_);
    add_engine_options(app, engine_);
  }
  ExitCode run() override;

 private:
  ExitCode look();
  bool show_tensor(Catalog& catalog);
  bool show_object(Catalog& catalog);
  void print_values(const Catalog& catalog, const Tensor& tensor,
                    const std::vector<Range>& ranges) const;
  void print_json(const Catalog& catalog, const Tensor& tensor,
                  const std::vector<Range>& ranges) const;

  std::string path_, what_;
  SourceOptions source_;
  EngineOptions engine_;
};

uint64_t count_of(const std::vector<Range>& ranges) {
  uint64_t count = 1;
  for (const Range& range : ranges)
    count = checked_mul(count, range.count).value_or(UINT64_MAX);
  return count;
}

void Show::print_values(const Catalog& catalog, const Tensor& tensor,
                        const std::vector<Range>& ranges) const {
  const Values values(catalog, tensor, engine_);
  const uint64_t size = element_size(tensor.dtype);
  Printer printer(ranges, count_of(ranges) > kMostShown);
  // Reads the first and last elements of a long dimension, each with those of
  // the other dimensions: at most 2^dimensions boxes.
  std::vector<std::vector<Range>> parts{{}};
  for (size_t d = 0; d < ranges.size(); ++d) {
    const std::vector<Range> ends = printer.abridged(d)
                                        ? ends_of(ranges[d])
                                        : std::vector<Range>{ranges[d]};
    std::vector<std::vector<Range>> longer;
    for (const auto& part : parts)
      for (const Range& end : ends) {
        longer.push_back(part);
        longer.back().push_back(end);
      }
    parts = std::move(longer);
  }
  if (parts.size() > 4096)
    throw usage_error({path_, tensor.name}, "too many dimensions to abridge")
        .with_hint("take a part of it: NAME[SLICE]");
  std::vector<std::vector<std::byte>> bytes;
  for (const auto& part : parts) bytes.push_back(values.read(part));
  const auto element = [&](const std::vector<uint64_t>& at) {
    size_t part = 0;
    uint64_t index = 0;
    for (size_t d = 0; d < ranges.size(); ++d) {
      const bool tail = printer.abridged(d) && at[d] >= ranges[d].count - kEdge;
      if (printer.abridged(d)) part = 2 * part + tail;
      const uint64_t length = printer.abridged(d) ? kEdge : ranges[d].count;
      index =
          index * length + (tail ? at[d] - (ranges[d].count - kEdge) : at[d]);
    }
    return element_text(tensor.dtype, bytes[part].data() + index * size);
  };
  print_folded(printer.text(element) + "\n");
}

void Show::print_json(const Catalog& catalog, const Tensor& tensor,
                      const std::vector<Range>& ranges) const {
  const uint64_t count = count_of(ranges);
  if (count > kMostValues)
    throw usage_error({path_, tensor.name},
                      "{} values in a JSON document, at most {}", count,
                      kMostValues)
        .with_hint("take a part of it: NAME[SLICE]");
  const std::vector<std::byte> bytes =
      Values(catalog, tensor, engine_).read(ranges);
  const uint64_t size = element_size(tensor.dtype);
  JsonWriter json;
  json.begin_document("show").member("name", tensor.name);
  json.member("dtype", ckpt::name(tensor.dtype)).key("shape").begin_array();
  for (const Range& range : ranges)
    if (!range.single) json.value(range.count);
  json.end_array().key("values").begin_array();
  double values[2];
  for (uint64_t i = 0; i < count; ++i) {
    const std::byte* at = bytes.data() + i * size;
    if (tensor.dtype == DType::i64) {
      json.value(read_as<int64_t>(at));
    } else if (tensor.dtype == DType::u64) {
      json.value(read_as<uint64_t>(at));
    } else if (tensor.dtype == DType::bool_) {
      json.value(read_as<uint8_t>(at) != 0);
    } else {
      reshard::to_doubles(tensor.dtype, at, 1, values);
      if (reshard::doubles_of(tensor.dtype) == 2)
        json.begin_array().value(values[0]).value(values[1]).end_array();
      else
        json.value(values[0]);
    }
  }
  json.end_array().end_object();
  print(std::move(json).text());
}

bool Show::show_tensor(Catalog& catalog) {
  std::string name = what_;
  std::string slice;
  const Tensor* tensor = catalog.find(name);
  if (!tensor && what_.ends_with(']')) {
    const size_t open = what_.rfind('[');
    if (open == what_.npos) return false;
    name = what_.substr(0, open);
    slice = what_.substr(open + 1, what_.size() - open - 2);
    tensor = catalog.find(name);
  }
  if (!tensor) return false;
  if (!reshard::has_values(tensor->dtype))
    throw unfaithful_error({path_, name}, "elements of {} have no values",
                           ckpt::name(tensor->dtype));
  const std::vector<Range> ranges = parse_slice(slice, tensor->shape, name);
  Catalog one = std::move(catalog);
  std::vector<Tensor> kept{*tensor};
  one.tensors = std::move(kept);
  locate(one);
  const heap::Unbounded values;  // a part of --max-mem
  if (output.json)
    print_json(one, one.tensors[0], ranges);
  else
    print_values(one, one.tensors[0], ranges);
  return true;
}

bool Show::show_object(Catalog& catalog) {
  load_objects(catalog);
  const ObjectValues values(catalog);
  constexpr uint64_t kBudget = 1'000'000;
  for (const Object& object : catalog.objects) {
    if (!(what_ + ".").starts_with(object.name + ".")) continue;
    const nlohmann::ordered_json whole = values.json(object, kBudget);
    const std::string rest =
        what_.substr(std::min(what_.size(), object.name.size() + 1));
    const nlohmann::ordered_json* value = inside(whole, rest);
    if (!value) continue;
    if (output.json) {
      JsonWriter json;
      json.begin_document("show").member("name", what_);
      json.member("type", type_name(object)).key("value").tree(*value);
      json.end_object();
      print(std::move(json).text());
    } else {
      print(yaml_text(*value));
    }
    return true;
  }
  return false;
}

ExitCode Show::run() {
  return within_memory(engine_, source_, {path_}, false,
                       [this] { return look(); });
}

ExitCode Show::look() {
  Catalog catalog = open_source(path_, source_);
  std::vector<std::string> names;
  for (const Tensor& tensor : catalog.tensors) names.push_back(tensor.name);
  for (const Object& object : catalog.objects) names.push_back(object.name);
  if (show_tensor(catalog) || show_object(catalog)) return ExitCode::kDone;
  const std::string name = what_.substr(0, what_.find('['));
  if (name.size() < what_.size() && !what_.ends_with(']') &&
      std::ranges::find(names, name) != names.end())
    throw usage_error({}, "{}: the slice has no ']'", text::printable(what_))
        .with_hint("slices are as in NumPy, in quotes for the shell: '[0:4]'");
  std::string near = text::nearest(name, names);
  // A module's name is often typed without the parameter's.
  if (const auto below = std::ranges::find_if(
          names,
          [&](const std::string& one) { return one.starts_with(name + "."); });
      near.empty() && below != names.end())
    near = *below;
  const std::string here = text::shell_path(path_);
  std::string hint = near.empty()
                         ? "ckpt ls " + here + " lists the tensors"
                         : "did you mean " + text::printable(near) + "?";
  const auto owner = std::ranges::find_if(
      catalog.objects,
      [&](const Object& o) { return name.starts_with(o.name + "."); });
  if (name.find_first_of("*?{") != name.npos)
    hint = "one name at a time: ckpt ls " + here + " " +
           text::shell_word(what_) + " lists those that match";
  else if (near.empty() && owner != catalog.objects.end())
    hint = "all of that object: ckpt show " + here + " " +
           text::shell_word(owner->name);
  throw missing_error({path_, {}}, "no tensor or object named '{}'",
                      text::printable(what_))
      .with_hint(hint);
}

}  // namespace

std::unique_ptr<Command> make_show() { return std::make_unique<Show>(); }

}  // namespace ckpt::app
