// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/metadata.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "ckpt/note.h"
#include "containers/torch/container.h"
#include "containers/torch/tensors.h"
#include "formats/dcp/graph.h"
#include "formats/dcp/storage_data.h"
#include "lib/io/file.h"
#include "lib/pickle/decode.h"
#include "lib/tensor_part.h"

namespace ckpt::dcp {
namespace {

using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

// Globals that .metadata may name; none is executed (docs/formats/dcp.md 3).
bool is_own_global(std::string_view global) {
  constexpr std::string_view kModules[] = {
      "torch.distributed.checkpoint.", "torch.distributed._shard.",
      "megatron.core.dist_checkpointing.", "olmo_core.distributed.checkpoint."};
  for (const std::string_view module : kModules)
    if (global.starts_with(module)) return true;
  constexpr std::string_view kNames[] = {"pathlib PosixPath",
                                         "pathlib PurePosixPath",
                                         "pathlib WindowsPath",
                                         "pathlib PureWindowsPath",
                                         "pathlib._local PosixPath",
                                         "pathlib._local WindowsPath",
                                         "torch.serialization _get_layout"};
  return std::ranges::find(kNames, global) != std::end(kNames);
}

void check_globals(const Metadata& metadata) {
  std::vector<std::string> others;
  for (const std::string& global : metadata.globals)
    if (!is_own_global(global)) others.push_back(global);
  torch::check_globals(others, metadata.path);
}

class MetadataReader {
 public:
  MetadataReader(pickle::Document& document, Metadata& metadata)
      : document_(document),
        graph_(document, metadata.path),
        metadata_(metadata) {}

  void read() {
    const auto fields = root_fields();
    const Id version = fields.find(graph_.names.version);
    if (document_.is(version, Type::kString)) read_version(version);
    const Id entries = fields.find(graph_.names.state_dict_metadata);
    if (entries == kNoId || !document_.is(entries, Type::kDict))
      graph_.fail({}, "state_dict_metadata is {}, not a dict",
                  graph_.describe(entries));
    read_entries(document_.items(entries));
    const Id storage = fields.find(graph_.names.storage_data);
    if (storage == kNoId) graph_.fail({}, "there is no storage_data");
    read_storage_data(graph_, storage, metadata_);
    const Id planner = fields.find(graph_.names.planner_data);
    if (planner != kNoId && !document_.is(planner, Type::kNone))
      read_planner(planner);
    const Id mcore = fields.find(graph_.names.mcore_data);
    if (mcore != kNoId) read_mcore(mcore);
  }

 private:
  Fields root_fields() {
    const Id root = document_.root();
    metadata_.root_class = graph_.class_name(root);
    const std::string& name = metadata_.root_class;
    if (name != "Metadata" && name != "MCoreMetadata")
      graph_.fail({}, "holds {}, not the Metadata of a distributed checkpoint",
                  graph_.describe(root));
    return graph_.fields(root, name);
  }

  void read_version(Id node) {
    metadata_.version = document_.text(node);
    if (metadata_.version == "1.0.0") return;
    metadata_.problems.push_back(
        warning("version", {metadata_.path, {}},
                "version {} is not known (known is 1.0.0); read as that",
                printable(metadata_.version)));
  }

  void read_entries(std::span<const Id> pairs) {
    if (pairs.size() / 2 > UINT32_MAX - 1)
      graph_.fail({}, "{} entries are too many", pairs.size() / 2);
    count_entries(pairs);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      const std::string_view name = graph_.text(pairs[i], "a key");
      const std::string_view type = graph_.class_name(pairs[i + 1]);
      const auto position = static_cast<uint32_t>(i / 2);
      if (type == "BytesStorageMetadata")
        metadata_.bytes.push_back({std::string(name), {}, position});
      else if (type == "TensorStorageMetadata")
        read_tensor(name, pairs[i + 1], position);
      else
        graph_.fail(name,
                    "its entry is {}, not a TensorStorageMetadata or a "
                    "BytesStorageMetadata",
                    graph_.describe(pairs[i + 1]));
    }
  }

  void count_entries(std::span<const Id> pairs) {
    size_t tensors = 0;
    for (size_t i = 1; i < pairs.size(); i += 2)
      tensors += graph_.class_name(pairs[i]) == "TensorStorageMetadata";
    metadata_.tensors.reserve(tensors);
    metadata_.bytes.reserve(pairs.size() / 2 - tensors);
  }

  void read_tensor(std::string_view name, Id node, uint32_t position) {
    const auto fields = graph_.fields(node, "TensorStorageMetadata");
    TensorEntry& tensor = metadata_.tensors.emplace_back();
    tensor.name = name;
    tensor.position = position;
    read_properties(fields.find(graph_.names.properties), tensor);
    tensor.size = graph_.dims(fields.find(graph_.names.size), name, "size");
    if (!byte_size(tensor.dtype, tensor.size))
      graph_.fail(name, "size {} overflows", to_string(tensor.size));
    const Id chunks = fields.find(graph_.names.chunks);
    if (!document_.is(chunks, Type::kList) &&
        !document_.is(chunks, Type::kTuple))
      graph_.fail(name, "chunks is {}, not a list", graph_.describe(chunks));
    const auto items = document_.items(chunks);
    spend(items.size() * (1 + 2 * tensor.size.size()), name);
    if (!TensorPart::wanted(name)) return;
    tensor.chunks.reserve(items.size());
    for (const Id item : items) read_chunk(item, tensor);
  }

  // A pickle may list one chunk a million times, at two bytes each. Real chunks
  // take at least eight values, with a few sizes.
  void spend(uint64_t numbers, std::string_view name) {
    constexpr uint64_t kFree = uint64_t{1} << 20;
    spent_ += numbers;
    if (spent_ > kFree + 4 * document_.spelled())
      graph_.fail(name, "the chunks are far more than the pickle is large");
  }

  // Pickled as a tuple (dtype, layout, requires_grad, memory format, pinned);
  // only the dtype matters.
  void read_properties(Id node, TensorEntry& tensor) {
    const bool instance = graph_.class_name(node) == "TensorProperties";
    const Id state = instance ? document_.call(node).state : kNoId;
    Id dtype = kNoId, grad = kNoId;
    if (instance && document_.is_record(node)) {
      const Fields fields(document_.record(node));
      dtype = fields.find(graph_.names.dtype);
      grad = fields.find(graph_.names.requires_grad);
    } else if (document_.is(state, Type::kTuple)) {
      const auto items = document_.items(state);
      if (!items.empty()) dtype = items[0];
      if (items.size() > 2) grad = items[2];
    } else if (document_.is(state, Type::kDict)) {
      dtype = Fields(document_.items(state)).find(graph_.names.dtype);
      grad = Fields(document_.items(state)).find(graph_.names.requires_grad);
    } else {
      graph_.fail(tensor.name, "properties is {}, not a TensorProperties",
                  graph_.describe(node));
    }
    const auto known = torch::as_dtype(document_, dtype);
    if (!known)
      graph_.fail(tensor.name, "its dtype is {}, which is not known",
                  graph_.describe(dtype));
    tensor.dtype = *known;
    tensor.requires_grad =
        document_.is(grad, Type::kBool) && document_.boolean(grad);
  }

  void read_chunk(Id node, TensorEntry& tensor) {
    const auto fields = graph_.fields(node, "ChunkStorageMetadata");
    Chunk& chunk = tensor.chunks.emplace_back();
    chunk.box.offset = graph_.known_dims(fields.find(graph_.names.offsets),
                                         tensor.name, "chunk offset");
    chunk.box.shape = graph_.known_dims(fields.find(graph_.names.sizes),
                                        tensor.name, "chunk size");
    if (chunk.box.offset.size() != chunk.box.shape.size() ||
        !inside(chunk.box, tensor.size))
      graph_.fail(
          tensor.name,
          "a chunk of {} at offsets {} is not inside of the tensor's {}",
          to_string(chunk.box.shape), to_string(chunk.box.offset),
          to_string(tensor.size));
  }

  void read_planner(Id node) {
    auto& planner = metadata_.planner.emplace();
    const auto pairs = document_.as_pairs(node);
    if (!pairs) {
      metadata_.planner.reset();
      warn_planner("planner_data is " + graph_.describe(node) +
                   "; without it nothing says how the names are nested");
      return;
    }
    uint64_t opaque = 0;
    for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
      auto path = read_path((*pairs)[i + 1]);
      if (path.empty() || !document_.is((*pairs)[i], Type::kString))
        ++opaque;
      else
        planner.insert_or_assign(std::string(document_.text((*pairs)[i])),
                                 std::move(path));
    }
    if (opaque > 0)
      warn_planner(
          fmt::format("{} of {} paths of planner_data are not tuples "
                      "of str and int; they are ignored",
                      opaque, pairs->size() / 2));
  }

  std::vector<PathElement> read_path(Id node) const {
    std::vector<PathElement> path;
    if (!document_.is(node, Type::kTuple) && !document_.is(node, Type::kList))
      return {};
    for (const Id item : document_.items(node)) {
      if (document_.is(item, Type::kString))
        path.emplace_back(std::string(document_.text(item)));
      else if (document_.is(item, Type::kInt))
        path.emplace_back(document_.integer(item));
      else
        return {};
    }
    return path;
  }

  void warn_planner(std::string message) {
    metadata_.problems.push_back(warning("planner_data", {metadata_.path, {}},
                                         "{}", std::move(message)));
  }

  // {name: {"nd_reformulated_orig_global_shape": shape}}
  void read_mcore(Id node) {
    metadata_.has_mcore_data = true;
    const auto pairs = document_.as_pairs(node);
    if (!pairs) return;
    for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
      const Id key = (*pairs)[i], value = (*pairs)[i + 1];
      if (!document_.is(key, Type::kString) ||
          !document_.is(value, Type::kDict))
        continue;
      const Id shape =
          Fields(document_.items(value)).find(graph_.names.original_shape);
      if (shape == kNoId || document_.is(shape, Type::kNone)) continue;
      const std::string_view name = document_.text(key);
      metadata_.original_shapes[std::string(name)] =
          graph_.dims(shape, name, "nd_reformulated_orig_global_shape");
    }
  }

  pickle::Document& document_;
  Graph graph_;
  Metadata& metadata_;
  uint64_t spent_ = 0;  // numbers in the boxes of chunks
};

}  // namespace

Metadata read_metadata(const std::string& path,
                       const formats::ReadOptions& options) {
  const io::Handle file = io::Handle::open_read(path);
  if (file.size() == 0)
    throw input_error({path, {}}, "is empty: incomplete save")
        .with_hint("use an earlier checkpoint");
  Metadata metadata;
  metadata.path = path;
  metadata.directory = io::parent(path);
  pickle::Decoded decoded = pickle::decode_records(file, 0, file.size());
  metadata.globals = std::move(decoded.globals);
  if (options.restrict_globals) check_globals(metadata);
  MetadataReader(*decoded.document, metadata).read();
  return metadata;
}

namespace {

// The number of elements in the chunks, capped at `most` + 1. The chunks lie
// inside the tensor, so nothing overflows.
uint64_t count_elements(std::span<const Chunk> chunks, uint64_t most) {
  uint64_t count = 0;
  for (const Chunk& chunk : chunks) {
    count += volume(chunk.box);
    if (count > most) return most + 1;
  }
  return count;
}

// The same, counting replicas once.
uint64_t count_unique(const std::vector<Chunk>& chunks, uint64_t most) {
  const auto key = [](const Chunk& chunk) {
    return std::tie(chunk.box.offset, chunk.box.shape);
  };
  std::vector<Chunk> unique = chunks;
  std::ranges::sort(unique, {}, key);
  const auto same = [](const Chunk& a, const Chunk& b) {
    return a.box == b.box;
  };
  unique.erase(std::unique(unique.begin(), unique.end(), same), unique.end());
  return count_elements(unique, most);
}

}  // namespace

void check_cover(const Metadata& metadata) {
  for (const TensorEntry& tensor : metadata.tensors) {
    if (!TensorPart::wanted(tensor.name)) continue;  // it has none
    const uint64_t wanted = element_count(tensor.size).value_or(0);
    uint64_t found = count_elements(tensor.chunks, wanted);
    if (found > wanted) found = count_unique(tensor.chunks, wanted);
    if (found == wanted) continue;
    if (found < wanted)
      throw input_error({metadata.path, printable(tensor.name)},
                        "its {} chunks hold {} of {} elements: the others are "
                        "nowhere",
                        tensor.chunks.size(), found, wanted)
          .with_hint("a rank's part was not saved; use another checkpoint");
    throw input_error({metadata.path, printable(tensor.name)},
                      "its {} chunks hold more than its {} elements: they "
                      "overlap",
                      tensor.chunks.size(), wanted);
  }
}

}  // namespace ckpt::dcp
