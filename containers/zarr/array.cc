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
  Description(std::string_view text, std::string path)
      : path_(std::move(path)), json_(text::parse_json(text, path_)) {
    if (!json_.is_object())
      fail("expected an object, found {}", json_.type_name());
  }

  Array read3() {
    if (const uint64_t format = text::uint_member(json_, "zarr_format", path_);
        format != 3)
      fail("zarr_format {}, expected 3", format);
    if (text::string_member(json_, "node_type", path_) != "array")
      fail("not an array");
    array_.shape = dims(json_, "shape");
    const json& grid = configured("chunk_grid", "regular");
    array_.chunks = dims(grid, "chunk_shape");
    read_dtype3();
    check_sizes();
    read_names3();
    read_codecs3(text::member(json_, "codecs", path_), true);
    if (array_.sharded) check_inner();
    if (const auto transformers = json_.find("storage_transformers");
        transformers != json_.end() && !transformers->empty())
      array_.unreadable = "storage transformers";
    read_fill();
    return std::move(array_);
  }

  Array read() {
    if (const uint64_t format = text::uint_member(json_, "zarr_format", path_);
        format != 2)
      fail("zarr_format {}, ckpt reads 2", format);
    array_.shape = dims(json_, "shape");
    array_.chunks = dims(json_, "chunks");
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

  // An object's configuration, if it has that name.
  const json& configured(const std::string& key, std::string_view wanted) {
    const json& object = text::member(json_, key, path_);
    const std::string name = text::string_member(object, "name", path_);
    if (name != wanted)
      fail("{}: {}, ckpt reads {}", key, printable(name), wanted);
    return text::member(object, "configuration", path_);
  }

  void read_dtype3() {
    static const std::pair<std::string_view, DType> kNames[] = {
        {"bool", DType::bool_},          {"int8", DType::i8},
        {"int16", DType::i16},           {"int32", DType::i32},
        {"int64", DType::i64},           {"uint8", DType::u8},
        {"uint16", DType::u16},          {"uint32", DType::u32},
        {"uint64", DType::u64},          {"float16", DType::f16},
        {"bfloat16", DType::bf16},       {"float32", DType::f32},
        {"float64", DType::f64},         {"float8_e4m3fn", DType::f8_e4m3},
        {"float8_e5m2", DType::f8_e5m2}, {"complex64", DType::c64},
        {"complex128", DType::c128}};
    const json& value = text::member(json_, "data_type", path_);
    for (const auto& [name, dtype] : kNames)
      if (value.is_string() && value == name) {
        array_.dtype = dtype;
        return;
      }
    throw unfaithful_error({path_, {}}, "no tensor has the data_type {}",
                           printable(value.dump(-1, ' ', true)).substr(0, 60))
        .with_hint("ckpt reads bool, integers, floats and complex numbers");
  }

  void read_names3() {
    const json& encoding = text::member(json_, "chunk_key_encoding", path_);
    const std::string name = text::string_member(encoding, "name", path_);
    if (name != "default" && name != "v2")
      fail("chunk_key_encoding: {}, ckpt reads default and v2",
           printable(name));
    array_.first = name == "default" ? "c" : "";
    array_.separator = name == "default" ? '/' : '.';
    const auto more = encoding.find("configuration");
    if (more == encoding.end() || !more->is_object() ||
        !more->contains("separator"))
      return;
    const std::string separator =
        text::string_member(*more, "separator", path_);
    if (separator != "." && separator != "/")
      fail("separator: expected \".\" or \"/\", found \"{}\"",
           printable(separator));
    array_.separator = separator[0];
  }

  // Later codecs work on what earlier ones make: elements to bytes, then bytes
  // to bytes. Of the second kind ckpt undoes one.
  void read_codecs3(const json& codecs, bool outer) {
    if (!codecs.is_array()) fail("codecs: expected a list");
    bool bytes = false;
    const auto refuse = [&](const std::string& name) {
      if (array_.unreadable.empty())
        array_.unreadable = fmt::format("codec {}", printable(name));
    };
    for (const json& codec : codecs) {
      const std::string name = text::string_member(codec, "name", path_);
      const auto found = codec.find("configuration");
      const json settings = found == codec.end() ? json::object() : *found;
      if (name == "bytes" && !bytes) {
        array_.big_endian = settings.value("endian", "little") == "big" &&
                            element_size(array_.dtype) > 1;
        bytes = true;
      } else if (name == "sharding_indexed" && outer && codecs.size() == 1) {
        read_sharding(settings);
      } else if (bytes && array_.codec == Codec::kRaw && name == "zstd") {
        array_.codec = Codec::kZstd;
      } else if (bytes && array_.codec == Codec::kRaw && name == "gzip") {
        array_.codec = Codec::kGzip;
      } else if (bytes && array_.codec == Codec::kRaw && name == "blosc") {
        array_.codec = Codec::kBlosc;
      } else {
        refuse(name);
      }
    }
    if (!bytes && !(outer && array_.sharded)) refuse("list without bytes");
  }

  void read_sharding(const json& settings) {
    array_.sharded = true;
    array_.inner = dims(settings, "chunk_shape");
    const auto place = settings.find("index_location");
    array_.index_at_start = place != settings.end() && *place == "start";
    if (place != settings.end() && *place != "start" && *place != "end")
      fail("index_location: expected start or end");
    read_codecs3(text::member(settings, "codecs", path_), false);
    const json& index = text::member(settings, "index_codecs", path_);
    if (!index.is_array()) fail("index_codecs: expected a list");
    for (const json& codec : index) {
      const std::string name = text::string_member(codec, "name", path_);
      const bool little =
          name == "bytes" && codec.value("configuration", json::object())
                                     .value("endian", "little") == "little";
      if (name == "crc32c")
        array_.index_sum = true;
      else if (!little && array_.unreadable.empty())
        array_.unreadable = fmt::format("index codec {}", printable(name));
    }
  }

  void check_inner() {
    const Dims &inner = array_.inner, &chunks = array_.chunks;
    bool fits = inner.size() == chunks.size();
    for (size_t d = 0; fits && d < inner.size(); ++d)
      fits = inner[d] != 0 && chunks[d] % inner[d] == 0;
    if (!fits)
      fail("chunks {} do not divide shards of {}", to_string(inner),
           to_string(chunks));
  }

  Dims dims(const json& object, const std::string& key) {
    const json& list = text::member(object, key, path_);
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

Array parse_array(std::string_view text, const std::string& path) {
  return Description(text, path).read();
}

Array parse_array3(std::string_view text, const std::string& path) {
  return Description(text, path).read3();
}

bool is_array3(const std::string& directory) {
  return io::is_file(io::join(directory, "zarr.json"));
}

Array read_array3(const std::string& directory) {
  const std::string path = io::join(directory, "zarr.json");
  Array array = parse_array3(io::read_file(path, kMaxDocument), path);
  array.directory = directory;
  return array;
}

bool is_array(const std::string& directory) {
  const std::string path = io::join(directory, ".zarray");
  return io::is_file(path) && io::file_size(path) != 0;
}

Array read_array(const std::string& directory) {
  const std::string path = io::join(directory, ".zarray");
  Array array = parse_array(io::read_file(path, kMaxDocument), path);
  array.directory = directory;
  return array;
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
