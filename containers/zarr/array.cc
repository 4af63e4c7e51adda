// SPDX-License-Identifier: Apache-2.0
#include "containers/zarr/array.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "containers/zarr/dtypes.h"
#include "lib/codec/delta.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/json.h"

namespace ckpt::zarr {
namespace {

using nlohmann::json;
using text::printable;

constexpr uint64_t kMaxDocument = 1 << 20;
constexpr size_t kMaxArrayRank = 64;

// Reads one .zarray member by member.
class Description {
 public:
  Description(std::string directory, std::string path)
      : path_(std::move(path)) {
    array_.directory = std::move(directory);
    json_ = text::parse_json(io::read_file(path_, kMaxDocument), path_);
    if (!json_.is_object())
      fail("expected an object, found {}", json_.type_name());
  }

  Array read() {
    if (const uint64_t format = text::uint_member(json_, "zarr_format", path_);
        format != 2)
      fail("zarr_format {}, ckpt reads 2", format);
    array_.shape = dims("shape");
    array_.chunks = dims("chunks");
    read_dtype();
    check_sizes();
    read_order();
    read_separator();
    read_compressor();
    read_filters();
    read_fill();
    return std::move(array_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
    throw input_error({path_, {}}, "{}",
                      fmt::format(text, std::forward<Args>(args)...));
  }

  Dims dims(const std::string& key) {
    const json& list = text::member(json_, key, path_);
    if (!list.is_array()) fail("{}: expected a list", key);
    if (list.size() > kMaxArrayRank)
      fail("{}: {} dimensions, at most {}", key, list.size(), kMaxArrayRank);
    Dims values;
    for (const json& value : list) {
      if (!value.is_number_unsigned())
        fail("{}: expected sizes, found {}", key,
             printable(value.dump(-1, ' ', true)).substr(0, 40));
      values.push_back(value.get<uint64_t>());
    }
    return values;
  }

  void read_dtype() {
    const json& value = text::member(json_, "dtype", path_);
    const auto type = value.is_string()
                          ? parse_type(value.get_ref<const std::string&>())
                          : std::nullopt;
    if (!type)
      throw unfaithful_error({path_, {}}, "no tensor has dtype {}",
                             printable(value.dump(-1, ' ', true)).substr(0, 60))
          .with_hint("ckpt reads |b1, integers, floats and complex numbers");
    array_.dtype = type->dtype;
    array_.big_endian = type->big_endian;
  }

  void check_sizes() {
    const Shape& shape = array_.shape;
    const Dims& chunks = array_.chunks;
    if (shape.size() != chunks.size())
      fail("shape has {} dimensions, chunks has {}", shape.size(),
           chunks.size());
    const bool empty = std::ranges::find(shape, 0U) != shape.end();
    for (size_t d = 0; d < chunks.size(); ++d)
      if (chunks[d] == 0 && !empty)
        fail("chunks {} of an array {}", to_string(chunks), to_string(shape));
    if (!byte_size(array_.dtype, shape))
      fail("shape {} has more bytes than 64 bits count", to_string(shape));
    if (!byte_size(array_.dtype, chunks))
      fail("chunks {} have more bytes than 64 bits count", to_string(chunks));
  }

  void read_order() {
    const std::string order = text::string_member(json_, "order", path_);
    if (order != "C" && order != "F")
      fail("order: expected \"C\" or \"F\", found \"{}\"", printable(order));
    array_.fortran = order == "F";
  }

  void read_separator() {
    if (!json_.contains("dimension_separator")) return;
    const std::string separator =
        text::string_member(json_, "dimension_separator", path_);
    if (separator != "." && separator != "/")
      fail("dimension_separator: expected \".\" or \"/\", found \"{}\"",
           printable(separator));
    array_.separator = separator[0];
  }

  // Its other members matter only to writers; the data say the rest.
  void read_compressor() {
    const json& compressor = text::member(json_, "compressor", path_);
    if (compressor.is_null()) return;
    const std::string id = text::string_member(compressor, "id", path_);
    static const std::pair<std::string_view, Codec> kKnown[] = {
        {"zlib", Codec::kZlib}, {"gzip", Codec::kGzip},
        {"bz2", Codec::kBzip2}, {"zstd", Codec::kZstd},
        {"lz4", Codec::kLz4},   {"blosc", Codec::kBlosc}};
    for (const auto& [known, codec] : kKnown)
      if (id == known) {
        array_.codec = codec;
        return;
      }
    array_.unreadable = fmt::format("compressor {}", printable(id));
  }

  void read_filters() {
    const json& filters = text::member(json_, "filters", path_);
    if (filters.is_null() || (filters.is_array() && filters.empty())) return;
    if (!filters.is_array()) fail("filters: expected a list");
    if (filters.size() == 1 && read_delta(filters[0])) return;
    std::vector<std::string> ids;
    for (const json& filter : filters)
      ids.push_back(printable(text::string_member(filter, "id", path_)));
    array_.unreadable = fmt::format("filters {}", fmt::join(ids, ", "));
  }

  // False for other filters, and for types that can't be undone.
  bool read_delta(const json& filter) {
    if (text::string_member(filter, "id", path_) != "delta") return false;
    const std::string plain = text::string_member(filter, "dtype", path_);
    const auto type = parse_type(plain);
    const auto stored = parse_type(
        filter.contains("astype") ? text::string_member(filter, "astype", path_)
                                  : plain);
    if (!type || !stored || type->big_endian || stored->big_endian)
      return false;
    const Delta delta{.stored = stored->dtype, .plain = type->dtype};
    if (!codec::undoes(delta)) return false;
    const uint64_t bytes = byte_size(array_.dtype, array_.chunks).value_or(0);
    if (!codec::stored_size(delta, bytes))
      fail("chunks of {} bytes are not elements of the filter delta's {}",
           bytes, name(delta.plain));
    array_.delta = delta;
    return true;
  }

  void read_fill() {
    const json& fill = text::member(json_, "fill_value", path_);
    if (fill.is_null()) return;
    array_.fill = fill_bytes(array_.dtype, fill);
    if (!array_.fill)
      fail("fill_value {} is not a {}",
           printable(fill.dump(-1, ' ', true)).substr(0, 40),
           name(array_.dtype));
  }

  const std::string path_;
  json json_;
  Array array_;
};

// A list of numbers, one level deep, as Python's json.dumps with indent=4
// writes it.
std::string list_text(const Dims& values) {
  if (values.empty()) return "[]";
  return fmt::format("[\n        {}\n    ]", fmt::join(values, ",\n        "));
}

}  // namespace

bool is_array(const std::string& directory) {
  const std::string path = io::join(directory, ".zarray");
  return io::is_file(path) && io::file_size(path) != 0;
}

Array read_array(const std::string& directory) {
  return Description(directory, io::join(directory, ".zarray")).read();
}

std::string describe(DType dtype, const Shape& shape, const Dims& chunks) {
  return fmt::format(
      "{{\n"
      "    \"chunks\": {},\n"
      "    \"compressor\": null,\n"
      "    \"dtype\": \"{}\",\n"
      "    \"fill_value\": null,\n"
      "    \"filters\": null,\n"
      "    \"order\": \"C\",\n"
      "    \"shape\": {},\n"
      "    \"zarr_format\": 2\n"
      "}}",
      list_text(chunks), type_name(dtype), list_text(shape));
}

std::string chunk_name(const Dims& index, char separator) {
  if (index.empty()) return "0";
  std::string name;
  for (const uint64_t at : index) {
    if (!name.empty()) name += separator;
    name += std::to_string(at);
  }
  return name;
}

Dims grid_of(const Shape& shape, const Dims& chunks) {
  Dims grid;
  for (size_t d = 0; d < shape.size(); ++d)
    grid.push_back(shape[d] / std::max<uint64_t>(chunks[d], 1) +
                   (chunks[d] && shape[d] % chunks[d] != 0));
  return grid;
}

}  // namespace ckpt::zarr
