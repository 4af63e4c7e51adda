// SPDX-License-Identifier: Apache-2.0
// The C interface: every call catches what the library throws and returns it as
// JSON.
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/aligned.h"
#include "api/c/handles.h"
#include "api/places.h"
#include "ckpt/c.h"
#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "ckpt/parallel.h"
#include "ckpt/select.h"
#include "ckpt/version.h"
#include "convert/config/values.h"
#include "formats/options.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

struct ckpt_shards {
  ckpt::LazyLoad load;
  std::string name;
  ckpt::Shape shape;
};

namespace ckpt {
namespace {

template <class Owner>
ckpt_data* data_of(Owner&& owner) {
  const auto held =
      std::make_shared<const std::decay_t<Owner>>(std::forward<Owner>(owner));
  if constexpr (std::is_same_v<std::decay_t<Owner>, TensorData>)
    return new ckpt_data{held, held->bytes};
  else
    return new ckpt_data{held, held->bytes()};
}

// A small file that was read whole.
struct ConfigText {
  std::string path;
  std::string text;
  std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(text));
  }
};

// As dlpack.h lays it out in memory (DLPack 0.8, which every consumer takes).
struct DlTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t dims;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DlManaged {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManaged*);
};

struct Exported {
  DlManaged managed;
  std::vector<int64_t> shape;
  std::shared_ptr<const void> owner;
};

// DLPack's number for a dtype; nothing for those that it lacks.
std::optional<uint8_t> dlpack_code(DType dtype) {
  switch (dtype) {
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::i64:
      return 0;
    case DType::u8:
    case DType::u16:
    case DType::u32:
    case DType::u64:
      return 1;
    case DType::f16:
    case DType::f32:
    case DType::f64:
      return 2;
    case DType::bf16:
      return 4;
    case DType::c32:
    case DType::c64:
    case DType::c128:
      return 5;
    case DType::bool_:
      return 6;
    case DType::f8_e4m3:
      return 10;
    case DType::f8_e4m3fnuz:
      return 11;
    case DType::f8_e5m2:
      return 12;
    case DType::f8_e5m2fnuz:
      return 13;
    case DType::f8_e8m0:
      return 14;
    default:
      return std::nullopt;
  }
}

void* exported(const ckpt_data& data, const char* name,
               std::span<const uint64_t> shape) {
  const auto dtype = dtype_from_name(name);
  const auto code = dtype ? dlpack_code(*dtype) : std::nullopt;
  if (!code) throw usage_error({}, "DLPack has no dtype for {}", name);
  const auto bytes = byte_size(*dtype, Shape(shape));
  if (bytes != data.bytes.size())
    throw usage_error({}, "the shape has {} bytes, the data {}",
                      bytes.value_or(0), data.bytes.size());
  auto* out = new Exported{.managed = {},
                           .shape = {shape.begin(), shape.end()},
                           .owner = data.owner};
  out->managed = {.tensor = {.data = const_cast<std::byte*>(data.bytes.data()),
                             .device_type = 1,  // the CPU
                             .device_id = 0,
                             .dims = static_cast<int32_t>(shape.size()),
                             .code = *code,
                             .bits = static_cast<uint8_t>(info(*dtype).bits),
                             .lanes = 1,
                             .shape = out->shape.data(),
                             .strides = nullptr,  // row-major, packed
                             .byte_offset = 0},
                  .context = out,
                  .deleter = [](DlManaged* managed) {
                    delete static_cast<Exported*>(managed->context);
                  }};
  return &out->managed;
}

constexpr uint64_t kMostConfig = uint64_t{16} << 20;

std::optional<ConfigText> config_text(const Catalog& catalog) {
  const auto found = families::config_sidecar(catalog);
  if (!found) return std::nullopt;
  return ConfigText{found->path, found->text
                                     ? *found->text
                                     : io::read_file(found->path, kMostConfig)};
}

std::vector<std::string> texts_of(const char* const* list) {
  std::vector<std::string> texts;
  for (; list && *list; ++list) texts.emplace_back(*list);
  return texts;
}

std::vector<ShardedTensor> shards_of(std::span<const ckpt_array> arrays) {
  std::vector<ShardedTensor> shards;
  for (const ckpt_array& array : arrays) {
    const auto dtype = dtype_from_name(text_of(array.dtype));
    if (!dtype)
      throw usage_error({{}, text_of(array.name)}, "no such dtype: {}",
                        text_of(array.dtype));
    const Shape shape(std::span(array.shape, array.dims));
    shards.push_back(
        {.name = text_of(array.name),
         .dtype = *dtype,
         .shape = shape,
         .box = Box::whole(shape),
         .bytes = {static_cast<const std::byte*>(array.bytes), array.size}});
  }
  return shards;
}

Layout layout_of(const std::string& target, const char* format,
                 uint64_t max_shard_size) {
  const std::string_view named = formats::format_of_name(target);
  const auto usual = named.empty() ? formats::usual_container() : named;
  return {.format = format && *format ? format : std::string(usual),
          .max_shard_size = max_shard_size,
          .single_file = !named.empty()};
}

RankState state_of(std::span<const ckpt_array> arrays,
                   const ckpt_beside* beside, const Layout& layout,
                   const std::string& target) {
  RankState state{.tensors = shards_of(arrays)};
  if (!beside) return state;
  state.common = text_of(beside->values);
  for (const ckpt_file& file : std::span(beside->files, beside->file_count))
    state.files.emplace(
        text_of(file.name),
        std::string(static_cast<const char*>(file.bytes), file.size));
  for (const auto& [name, text] : state.files)
    if (name.empty() || name.starts_with('.') || name.find('/') != name.npos)
      throw usage_error({target, text::printable(name)},
                        "not the name of a file in the target's directory");
  if (layout.single_file && !state.files.empty())
    throw usage_error({target, state.files.begin()->first},
                      "one file has no place for others")
        .with_hint("name a directory, and it gets them");
  return state;
}

// C strings end at the first NUL, so two names could become one.
void refuse_nul(const Catalog& catalog) {
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.name.find('\0') != tensor.name.npos)
      throw unfaithful_error({catalog.path, text::printable(tensor.name)},
                             "a name with a NUL byte, which C has no text for")
          .with_hint("give it another name: ckpt convert --rename");
}

}  // namespace
}  // namespace ckpt

struct ckpt_pending {
  ckpt::PendingSave save;
};

extern "C" {

const char* ckpt_version(void) { return ckpt::version(); }

void ckpt_free(char* text) { std::free(text); }

ckpt_checkpoint* ckpt_open(const char* path, const char* format,
                           const char* family, char** error) {
  return ckpt::guarded(error, [&] {
    ckpt::Checkpoint open = ckpt::open(
        ckpt::library::source_place(ckpt::text_of(path)),
        {.format = ckpt::text_of(format), .family = ckpt::text_of(family)});
    ckpt::refuse_nul(open.catalog());
    return new ckpt_checkpoint(std::move(open));
  });
}

void ckpt_close(ckpt_checkpoint* checkpoint) { delete checkpoint; }

const char* ckpt_format(const ckpt_checkpoint* checkpoint) {
  return checkpoint->open.catalog().format.c_str();
}

const char* ckpt_path(const ckpt_checkpoint* checkpoint) {
  return checkpoint->open.catalog().path.c_str();
}

ckpt_data* ckpt_config(const ckpt_checkpoint* checkpoint, const char** path,
                       char** error) {
  return ckpt::guarded(error, [&]() -> ckpt_data* {
    auto found = ckpt::config_text(checkpoint->open.catalog());
    if (!found) return nullptr;
    const auto held =
        std::make_shared<const ckpt::ConfigText>(std::move(*found));
    *path = held->path.c_str();
    return new ckpt_data{held, held->bytes()};
  });
}

size_t ckpt_tensor_count(const ckpt_checkpoint* checkpoint) {
  return checkpoint->open.catalog().tensors.size();
}

int ckpt_tensor_at(const ckpt_checkpoint* checkpoint, size_t index,
                   ckpt_tensor* tensor) {
  const auto& tensors = checkpoint->open.catalog().tensors;
  if (index >= tensors.size()) return 0;
  const ckpt::Tensor& from = tensors[index];
  const ckpt::DTypeInfo& type = ckpt::info(from.dtype);
  *tensor = {.name = from.name.c_str(),
             .dtype = type.name.data(),
             .shape = from.shape.data(),
             .dims = from.shape.size(),
             .bits = type.bits,
             .optimizer = from.kind == ckpt::Kind::optim,
             .bytes = ckpt::byte_size(from.dtype, from.shape).value_or(0)};
  return 1;
}

ckpt_checkpoint* ckpt_in_dialect(const ckpt_checkpoint* checkpoint,
                                 const char* dialect, char** error) {
  return ckpt::guarded(error, [&] {
    return ckpt::changed(*checkpoint, [&](ckpt::Catalog source) {
      const std::string format = source.format;
      return ckpt::into_dialect(std::move(source), format,
                                {.dialect = ckpt::text_of(dialect)});
    });
  });
}

ckpt_checkpoint* ckpt_select(const ckpt_checkpoint* checkpoint,
                             const ckpt_selection* selection, char** error) {
  return ckpt::guarded(error, [&] {
    return ckpt::changed(*checkpoint, [&](ckpt::Catalog source) {
      ckpt::select(source, {.keys = ckpt::texts_of(selection->keys),
                            .exclude = ckpt::texts_of(selection->exclude),
                            .layers = ckpt::text_of(selection->layers),
                            .experts = ckpt::text_of(selection->experts),
                            .model_only = selection->model_only != 0,
                            .optim_only = selection->optim_only != 0,
                            .part = ckpt::text_of(selection->part)});
      return source;
    });
  });
}

ckpt_data* ckpt_read(const ckpt_checkpoint* checkpoint, const char* name,
                     const uint64_t* offsets, const uint64_t* shape,
                     char** error) {
  return ckpt::guarded(error, [&] {
    const ckpt::Checkpoint& open = checkpoint->open;
    const std::string asked = ckpt::text_of(name);
    const ckpt::Tensor* tensor = checkpoint->find(asked);
    if (!tensor)  // says what is near
      return ckpt::data_of(ckpt::library::read_aligned(open, asked, {}));
    std::optional<ckpt::Box> box;
    if (shape) {
      const size_t dims = tensor->shape.size();
      box = {.offset = ckpt::Shape(std::span(offsets, dims)),
             .shape = ckpt::Shape(std::span(shape, dims))};
    }
    return ckpt::data_of(ckpt::library::read_aligned(open, *tensor, box));
  });
}

const void* ckpt_data_bytes(const ckpt_data* data, size_t* size) {
  if (size) *size = data->bytes.size();
  return data->bytes.data();
}

void ckpt_data_close(ckpt_data* data) { delete data; }

void* ckpt_data_dlpack(const ckpt_data* data, const char* dtype,
                       const uint64_t* shape, size_t dims, char** error) {
  return ckpt::guarded(error, [&] {
    return ckpt::exported(*data, dtype, {shape, dims});
  });
}

void ckpt_dlpack_close(void* managed) {
  if (!managed) return;
  auto* tensor = static_cast<ckpt::DlManaged*>(managed);
  tensor->deleter(tensor);
}

ckpt_shards* ckpt_shards_open(const ckpt_checkpoint* checkpoint,
                              const ckpt_grid* topology, const ckpt_grid* rank,
                              char** error) {
  return ckpt_shards_open_some(checkpoint, topology, rank, nullptr, error);
}

ckpt_shards* ckpt_shards_open_some(const ckpt_checkpoint* checkpoint,
                                   const ckpt_grid* topology,
                                   const ckpt_grid* rank,
                                   const char* const* keys, char** error) {
  return ckpt::guarded(error, [&] {
    return new ckpt_shards{
        checkpoint->open.lazy_load(
            {topology->tp, topology->pp, topology->dp, topology->ep},
            {rank->tp, rank->pp, rank->dp, rank->ep}, ckpt::texts_of(keys)),
        {},
        {}};
  });
}

ckpt_data* ckpt_shards_next(ckpt_shards* shards, const char** name,
                            const char** dtype, const uint64_t** shape,
                            size_t* dims, char** error) {
  return ckpt::guarded(error, [&]() -> ckpt_data* {
    auto next = shards->load.next();
    if (!next) return nullptr;
    shards->name = std::move(next->first);
    shards->shape = next->second.shape;
    *name = shards->name.c_str();
    *dtype = ckpt::name(next->second.dtype).data();
    *shape = shards->shape.data();
    *dims = shards->shape.size();
    return ckpt::data_of(std::move(next->second));
  });
}

void ckpt_shards_close(ckpt_shards* shards) { delete shards; }

int ckpt_save(const ckpt_array* arrays, size_t count, const char* path,
              const char* format, int overwrite, uint64_t max_shard_size,
              char** error) {
  if (error) *error = nullptr;
  try {
    const std::string target = ckpt::library::target_place(ckpt::text_of(path));
    ckpt::save(ckpt::shards_of({arrays, count}),
               ckpt::layout_of(target, format, max_shard_size), target,
               {.overwrite = overwrite != 0});
    return 0;
  } catch (...) {
    return ckpt::report(error);
  }
}

int ckpt_save_with(const ckpt_array* arrays, size_t count,
                   const ckpt_beside* beside, const char* path,
                   const char* format, int overwrite, uint64_t max_shard_size,
                   char** error) {
  if (error) *error = nullptr;
  try {
    const std::string target = ckpt::library::target_place(ckpt::text_of(path));
    ckpt::Layout layout = ckpt::layout_of(target, format, max_shard_size);
    ckpt::RankState state =
        ckpt::state_of({arrays, count}, beside, layout, target);
    ckpt::Saver(1, std::move(layout), target,
                {.overwrite = overwrite != 0, .naming = {.dialect = "keep"}})
        .save(0, std::move(state));
    return 0;
  } catch (...) {
    return ckpt::report(error);
  }
}

ckpt_pending* ckpt_save_begin(const ckpt_array* arrays, size_t count,
                              const char* path, const char* format,
                              int overwrite, uint64_t max_shard_size,
                              char** error) {
  return ckpt_save_begin_with(arrays, count, nullptr, path, format, overwrite,
                              max_shard_size, error);
}

ckpt_pending* ckpt_save_begin_with(const ckpt_array* arrays, size_t count,
                                   const ckpt_beside* beside, const char* path,
                                   const char* format, int overwrite,
                                   uint64_t max_shard_size, char** error) {
  return ckpt::guarded(error, [&] {
    const std::string target = ckpt::library::target_place(ckpt::text_of(path));
    const auto layout = ckpt::layout_of(target, format, max_shard_size);
    return new ckpt_pending{ckpt::begin_save(
        ckpt::make_thread_ranks(1)[0],
        ckpt::state_of({arrays, count}, beside, layout, target), layout, target,
        {.overwrite = overwrite != 0})};
  });
}

int ckpt_save_written(const ckpt_pending* pending) {
  return pending->save.written() ? 1 : 0;
}

int ckpt_save_finish(ckpt_pending* pending, char** error) {
  if (error) *error = nullptr;
  const std::unique_ptr<ckpt_pending> closed(pending);
  try {
    closed->save.finish();
    return 0;
  } catch (...) {
    return ckpt::report(error);
  }
}

void ckpt_save_drop(ckpt_pending* pending) { delete pending; }

}  // extern "C"
