// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/save.h"

#include <algorithm>
#include <unordered_map>

#include "containers/torch/file_plan.h"
#include "containers/torch/item.h"
#include "formats/dcp/frame.h"
#include "formats/dcp/metadata_write.h"
#include "formats/dcp/subclass.h"
#include "formats/dcp/value_item.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::dcp {
namespace {

using text::printable;

// torch.save of a value, or a source file's range that holds one.
struct ObjectItem {
  std::string name;
  uint32_t rank = 0;
  uint64_t offset = 0;  // in its file, once laid out
  uint64_t length = 0;
  std::string bytes;  // empty: carried
  CarriedRange carried;
  std::optional<Tensor> listed;  // tensor subclass: its index entry
};

// The dtype that torch uses for a tensor's elements; nothing here writes the
// scales of quantized ones.
DType stored_dtype(const Tensor& tensor) {
  return torch::plain_type(tensor.dtype);
}

std::string file_name(uint32_t rank) {
  return fmt::format("__{}_0.distcp", rank);
}

}  // namespace

Error name_clash(const std::string& name) {
  return unfaithful_error({{}, printable(name)},
                          "two values would have this name")
      .with_hint(
          "give one of them another name with --rename, or leave it out with "
          "--exclude");
}

struct Save::State {
  const Catalog& source;
  Target& target;
  SaveOptions options;
  std::vector<ObjectItem> objects;
  // Tensors in archives of objects: the object's name, and the piece with its
  // offset counted from the archive's first byte.
  struct Part {
    std::string object;
    Piece piece;
  };
  std::unordered_map<uint32_t, Part> parts;
  // In the order of the calls; entries without a path follow.
  std::vector<std::pair<std::string, std::vector<PathElement>>> paths;
  std::vector<TargetFile> files;  // added whole
  Frames frames;

  // By rank: its file (kNoFile if it has none) and the file's end so far.
  static constexpr uint32_t kNoFile = UINT32_MAX;
  std::vector<uint32_t> file_of;
  std::vector<uint64_t> end_of;

  // What .metadata lists: first the entries with a path, in that order.
  struct Entry {
    std::string_view name;
    const Tensor* tensor = nullptr;  // null: an object
    const std::vector<PathElement>* path = nullptr;
  };
  std::vector<Entry> entries;
  std::unordered_map<std::string_view, size_t> by_name;

  void make_files(uint32_t ranks, bool skip_empty);
  void place_objects();
  void carry(const ObjectItem& object, TargetFile& file);
  void place_tensors();
  void place_parts();
  void add_metadata();
  void collect_entries();
  void write_state_dict(MetadataWriter& writer) const;
  void write_planner(MetadataWriter& writer) const;
  void write_storage(MetadataWriter& writer);
  std::string relative(std::string_view name) const {
    return io::join(options.directory, name);
  }
  const Frame& frame_of(const Tensor& tensor, const Piece& piece) {
    return frames.of(stored_dtype(tensor), piece.box.shape);
  }
};

Save::Save(const Catalog& source, Target& target, SaveOptions options)
    : state_(new State{
          .source = source, .target = target, .options = std::move(options)}) {
  // First of all, refuse types that torch lacks.
  for (const Tensor& tensor : target.catalog.tensors)
    if (element_size(tensor.dtype) == 0 ||
        info(stored_dtype(tensor)).torch.empty())
      throw unfaithful_error({{}, printable(tensor.name)},
                             "a distributed checkpoint can't hold {}",
                             name(tensor.dtype))
          .with_hint("write it to safetensors, or leave it out with --exclude");
}

Save::~Save() = default;

void Save::add_piece(uint32_t tensor, const Box& box, uint32_t rank) {
  // Holds the rank until the file is known.
  state_->target.catalog.tensors.at(tensor).pieces.push_back(
      {.box = box,
       .flat = std::nullopt,
       .extent = {.offset = 0, .strides = {}, .file = rank}});
}

void Save::add_object(const std::string& name, const Object& object,
                      uint32_t rank, bool wrap) {
  if (object.bytes == 0 || wrap) {
    if (!object.document)
      throw bug_error({{}, name}, "an object that nobody has opened");
    state_->objects.push_back({.name = name, .rank = rank});
    state_->objects.back().bytes =
        value_item(state_->source, name, *object.document, object.node, wrap);
    return;
  }
  const File& file = state_->source.files.at(object.file);
  ObjectItem item{.name = name, .rank = rank, .length = object.bytes};
  if (file.codec == Codec::kRaw) {
    item.carried = {.offset = 0,
                    .size = object.bytes,
                    .source_file = object.file,
                    .source_offset = object.offset};
  } else {
    const torch::OpenedObject opened = torch::open_archive(
        state_->source, object, io::Handle::open_read(file.path));
    item.bytes = opened.item.read_string(0, opened.item.size());
  }
  state_->objects.push_back(std::move(item));
}

void Save::add_subclass(const std::string& name, const Object& object,
                        uint32_t rank) {
  const Subclass subclass = subclass_of(object).value();
  add_object(name, object, rank);
  Tensor& listed = state_->objects.back().listed.emplace();
  listed.name = name;
  listed.dtype = subclass.dtype;
  listed.shape = subclass.shape;
  listed.requires_grad = subclass.requires_grad;
  listed.pieces.push_back({.box = Box::whole(listed.shape),
                           .flat = std::nullopt,
                           .extent = {},
                           .transform = kNoTransform});
}

void Save::add_part(uint32_t tensor, const Object& object, const Piece& piece) {
  Piece inside = piece;
  inside.extent.offset -= object.offset;
  state_->parts.emplace(tensor, State::Part{object.name, std::move(inside)});
}

void Save::add_archive(const std::string& name, std::string bytes,
                       uint32_t rank) {
  state_->objects.push_back({.name = name, .rank = rank});
  state_->objects.back().bytes = std::move(bytes);
}

void Save::add_value(const std::string& name, const pickle::Document& document,
                     uint32_t node, uint32_t rank) {
  state_->objects.push_back({.name = name, .rank = rank});
  state_->objects.back().bytes =
      value_item(state_->source, name, document, node, false);
}

void Save::set_path(const std::string& name, std::vector<PathElement> path) {
  state_->paths.emplace_back(name, std::move(path));
}

void Save::add_file(const std::string& name, std::string bytes) {
  state_->files.push_back(
      formats::literal_file(state_->relative(name), std::move(bytes)));
}

void Save::finish(uint32_t ranks, bool skip_empty) {
  State& state = *state_;
  for (Tensor& tensor : state.target.catalog.tensors)
    std::ranges::stable_sort(tensor.pieces, {}, [](const Piece& piece) {
      return piece.extent.file;  // the rank
    });
  state.make_files(ranks, skip_empty);
  state.place_objects();
  state.place_tensors();
  for (TargetFile& file : state.files)
    state.target.files.push_back(std::move(file));
  state.add_metadata();
  state.place_parts();
}

void Save::State::place_parts() {
  for (auto& [tensor, part] : parts) {
    const auto object =
        std::ranges::find(objects, part.object, &ObjectItem::name);
    if (object == objects.end())
      throw bug_error({{}, part.object}, "parts of no object");
    part.piece.extent.file = file_of[object->rank];
    part.piece.extent.offset += object->offset;
    target.catalog.tensors.at(tensor).pieces = {std::move(part.piece)};
  }
}

void Save::State::make_files(uint32_t ranks, bool skip_empty) {
  struct Count {
    size_t objects = 0, carried = 0, pieces = 0, frames = 0;
  };
  std::vector<Count> counts(ranks);
  const auto check = [&](uint32_t rank, const std::string& name) {
    if (rank >= ranks)
      throw bug_error({{}, name}, "rank {} of {} writes it", rank, ranks);
  };
  for (const ObjectItem& object : objects) {
    check(object.rank, object.name);
    ++(object.bytes.empty() ? counts[object.rank].carried
                            : counts[object.rank].objects);
  }
  for (const Tensor& tensor : target.catalog.tensors)
    for (const Piece& piece : tensor.pieces) {
      check(piece.extent.file, tensor.name);
      Count& count = counts[piece.extent.file];
      const bool empty = volume(piece.box) == 0;
      count.pieces += !empty;
      count.frames += empty ? 1 : 2;
    }
  file_of.assign(ranks, kNoFile);
  end_of.assign(ranks, 0);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const Count& count = counts[rank];
    if (skip_empty && count.objects + count.carried + count.frames == 0)
      continue;
    file_of[rank] = static_cast<uint32_t>(target.files.size());
    TargetFile& file = target.files.emplace_back();
    file.path = relative(file_name(rank));
    file.literals.own().reserve(count.objects);
    file.carried.reserve(count.carried);
    file.shared.reserve(count.frames);
    file.crcs.own().reserve(count.pieces);
  }
}

// Carries what is between the parts; the plan treats the parts as tensors.
void Save::State::carry(const ObjectItem& object, TargetFile& file) {
  std::vector<std::pair<uint64_t, uint64_t>> holes;  // of the archive
  for (const auto& [tensor, part] : parts)
    if (part.object == object.name) {
      const Tensor& about = target.catalog.tensors[tensor];
      const uint64_t begin = part.piece.extent.offset;
      if (!part.piece.extent.strides.empty())
        throw unfaithful_error({{}, printable(about.name)},
                               "is not a contiguous part of {}", object.name);
      holes.emplace_back(begin, begin + byte_size(about));
    }
  std::ranges::sort(holes);
  uint64_t at = 0;
  const auto take = [&](uint64_t end) {
    if (end < at || end > object.length)
      throw unfaithful_error({{}, printable(object.name)},
                             "its parts share bytes: it can't be written");
    CarriedRange range = object.carried;
    range.offset += at;
    range.source_offset += at;
    range.size = end - at;
    if (range.size != 0) file.carried.push_back(range);
  };
  for (const auto& [begin, end] : holes) {
    take(begin);
    at = end;
  }
  take(object.length);
}

void Save::State::place_objects() {
  for (ObjectItem& object : objects) {
    TargetFile& file = target.files[file_of[object.rank]];
    object.offset = end_of[object.rank];
    if (!object.bytes.empty()) {
      object.length = object.bytes.size();
      file.literals.push_back({object.offset, std::move(object.bytes)});
    } else {
      object.carried.offset = object.offset;
      carry(object, file);
    }
    end_of[object.rank] += object.length;
  }
}

void Save::State::place_tensors() {
  for (Tensor& tensor : target.catalog.tensors)
    for (Piece& piece : tensor.pieces) {
      const uint32_t rank = piece.extent.file;
      const Frame& frame = frame_of(tensor, piece);
      TargetFile& file = target.files[file_of[rank]];
      const uint64_t begin = end_of[rank];
      if (frame.size > (uint64_t{1} << 62) - begin)
        throw unfaithful_error({file.path, printable(tensor.name)},
                               "a file of more than 2^62 bytes");
      const uint64_t data = begin + frame.data_offset;
      file.shared.push_back({begin, frame.head});
      if (frame.tail) {
        file.shared.push_back({data + frame.payload, frame.tail});
        LateCrc crc{data, data + frame.payload, frame.crcs};
        for (uint64_t& at : crc.at) at += begin;
        file.crcs.push_back(std::move(crc));
      }
      piece.extent.file = file_of[rank];
      piece.extent.offset = data;
      end_of[rank] = begin + frame.size;
    }
  for (size_t rank = 0; rank < file_of.size(); ++rank) {
    if (file_of[rank] == kNoFile) continue;
    TargetFile& file = target.files[file_of[rank]];
    file.size = end_of[rank];
    target.catalog.files.push_back({.path = file.path, .size = file.size});
  }
}

void Save::State::collect_entries() {
  const auto add = [&](const std::string& name, Entry entry) {
    if (!by_name.emplace(name, entries.size()).second) throw name_clash(name);
    entries.push_back(entry);
  };
  entries.reserve(target.catalog.tensors.size() + objects.size());
  for (uint32_t t = 0; t < target.catalog.tensors.size(); ++t)
    if (const Tensor& tensor = target.catalog.tensors[t]; !parts.contains(t))
      add(tensor.name, {.name = tensor.name, .tensor = &tensor});
  for (const ObjectItem& object : objects)
    add(object.name, {.name = object.name,
                      .tensor = object.listed ? &*object.listed : nullptr});

  std::vector<Entry> ordered;
  ordered.reserve(entries.size());
  for (const auto& [name, path] : paths) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) continue;
    Entry& entry = entries[found->second];
    if (entry.path) continue;
    entry.path = &path;
    ordered.push_back(entry);
  }
  for (const Entry& entry : entries)
    if (!entry.path) ordered.push_back(entry);
  entries = std::move(ordered);
}

void Save::State::write_state_dict(MetadataWriter& writer) const {
  writer.begin_state_dict();
  for (const Entry& entry : entries) {
    if (!entry.tensor) {
      writer.add_bytes(entry.name);
      continue;
    }
    const Tensor& tensor = *entry.tensor;
    writer.begin_tensor(tensor.name, stored_dtype(tensor), tensor.shape,
                        tensor.requires_grad);
    for (const Piece& piece : tensor.pieces) writer.add_chunk(piece.box);
    writer.end_tensor();
  }
}

void Save::State::write_planner(MetadataWriter& writer) const {
  writer.begin_planner();
  for (const Entry& entry : entries) {
    if (entry.path) {
      writer.add_path(entry.name, *entry.path);
      continue;
    }
    const PathElement whole{std::string(entry.name)};
    writer.add_path(entry.name, {&whole, 1});
  }
}

void Save::State::write_storage(MetadataWriter& writer) {
  writer.begin_storage();
  for (const ObjectItem& object : objects)
    writer.add_stored(object.name, 0,
                      object.listed
                          ? std::optional(object.listed->pieces[0].box.offset)
                          : std::nullopt,
                      {file_name(object.rank), object.offset, object.length});
  // The rank of each file.
  std::vector<std::string> names(target.catalog.files.size());
  for (uint32_t rank = 0; rank < file_of.size(); ++rank)
    if (file_of[rank] != kNoFile) names[file_of[rank]] = file_name(rank);
  for (const Tensor& tensor : target.catalog.tensors)
    for (size_t i = 0; i < tensor.pieces.size(); ++i) {
      const Piece& piece = tensor.pieces[i];
      const Frame& frame = frame_of(tensor, piece);
      writer.add_stored(tensor.name, i, piece.box.offset,
                        {names[piece.extent.file],
                         piece.extent.offset - frame.data_offset, frame.size});
    }
}

void Save::State::add_metadata() {
  collect_entries();
  MetadataWriter writer;
  write_state_dict(writer);
  if (options.planner_data) write_planner(writer);
  write_storage(writer);
  target.files.push_back(formats::literal_file(
      relative(".metadata"), writer.finish(options.storage_meta)));
}

}  // namespace ckpt::dcp
