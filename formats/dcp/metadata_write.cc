// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/metadata_write.h"

#include <functional>
#include <unordered_map>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "lib/pickle/opcodes.h"
#include "lib/text/format.h"
#include "lib/text/utf8.h"

namespace ckpt::dcp {
namespace {

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kVersion = "1.0.0";
constexpr uint32_t kBatch = 1000;  // pairs per SETITEMS, items per APPENDS
// Placeholder for the save_id until the rest is known.
constexpr std::string_view kNoId = "00000000-0000-8000-8000-000000000000";

// The positions of texts in the memo.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
using Memo =
    std::unordered_map<std::string, uint32_t, TextHash, std::equal_to<>>;

uint64_t fnv(std::string_view text, uint64_t hash) {
  for (const char c : text)
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

// A version 8 UUID: 122 bits that we choose. Equal checkpoints get equal ones,
// so a run can be repeated byte for byte.
std::string uuid_of(std::string_view text) {
  const uint64_t a = fnv(text, 0xcbf29ce484222325);
  const uint64_t b = fnv(text, 0x9e3779b97f4a7c15 ^ text.size());
  return fmt::format("{:08x}-{:04x}-8{:03x}-{:04x}-{:012x}", a >> 32,
                     (a >> 16) & 0xffff, a & 0xfff,
                     0x8000 | ((b >> 48) & 0x3fff), b & 0xffffffffffff);
}

}  // namespace

struct MetadataWriter::State {
  enum class Section : uint8_t { kStart, kStateDict, kPlanner, kStorage };

  pickle::Opcodes out;
  Memo texts, globals;
  std::optional<uint32_t> layout, contiguous;  // in the memo
  uint32_t memos = 0;
  Section section = Section::kStart;
  uint32_t entries = 0;  // in the open dict
  uint32_t chunks = 0;   // in the open list

  uint32_t put() {
    out.put(memos);
    return memos++;
  }
  void text(std::string_view value) {
    const auto found = texts.find(value);
    if (found != texts.end()) return out.get(found->second);
    if (!text::is_utf8(value))
      throw unfaithful_error({{}, text::printable(value)},
                             "a name that is not UTF-8 has no place in "
                             ".metadata")
          .with_hint("give it another one with --rename");
    out.string(value);
    texts.emplace(value, put());
  }
  void global(std::string_view module, std::string_view name) {
    const auto found = globals.find(name);
    if (found != globals.end()) return out.get(found->second);
    out.global(module, name);
    globals.emplace(name, put());
  }
  // Makes once what consists of constants.
  template <class Make>
  void once(std::optional<uint32_t>& memo, Make make) {
    if (memo) return out.get(*memo);
    make();
    memo = put();
  }

  // An instance of a dataclass, without its fields.
  void object(std::string_view module, std::string_view name) {
    global(module, name);
    out += ")\x81";  // without arguments
  }
  void begin_fields() { out += "}("; }
  void end_fields() { out += "ub"; }

  void end_tuple(size_t size) {
    if (size <= 3)
      out += static_cast<char>(0x84 + size);
    else
      out += 't';
  }
  void size(const Dims& dims) {
    global("torch", "Size");
    if (dims.empty()) {
      out += ')';
    } else {
      if (dims.size() > 3) out += '(';
      for (const uint64_t n : dims) out.integer(torch::size_for_torch(n));
      end_tuple(dims.size());
    }
    out += "\x85R";
  }

  // A dict or list that grows in batches.
  void next(uint32_t& count, char end) {
    if (count % kBatch == 0) {
      if (count) out += end;
      out += '(';
    }
    ++count;
  }
  void close(uint32_t& count, char end) {
    if (count) out += end;
    count = 0;
  }
  void begin_dict(std::string_view key, Section next_section) {
    if (section != Section::kStart) close(entries, 'u');
    section = next_section;
    text(key);
    out += '}';
  }

  // (dtype, layout, requires_grad, memory format, pin_memory)
  void properties(DType dtype, bool requires_grad) {
    object(kModule, "TensorProperties");
    out += '(';
    global("torch", info(dtype).torch);
    once(layout, [&] {
      global("torch.serialization", "_get_layout");
      text("torch.strided");
      out += "\x85R";
    });
    out += requires_grad ? '\x88' : '\x89';
    once(contiguous, [&] {
      global(kModule, "_MEM_FORMAT_ENCODING");
      out += "K";
      out += '\0';
      out += "\x85R";
    });
    out += '\x89';
    out += "tb";
  }

  void storage_meta() {
    text("storage_meta");
    object(kModule, "StorageMeta");
    begin_fields();
    text("checkpoint_id");
    out += 'N';
    text("save_id");
    out.string(kNoId);
    text("load_id");
    out += 'N';
    text("modules");
    out += ']';
    end_fields();
    text("version");
    text(kVersion);
  }
};

MetadataWriter::MetadataWriter() : state_(std::make_unique<State>()) {
  state_->out += "\x80\x02";
  state_->object(kModule, "Metadata");
  state_->begin_fields();
}

MetadataWriter::~MetadataWriter() = default;

void MetadataWriter::begin_state_dict() {
  state_->begin_dict("state_dict_metadata", State::Section::kStateDict);
}

void MetadataWriter::begin_tensor(std::string_view name, DType dtype,
                                  const Shape& size, bool requires_grad) {
  State& s = *state_;
  s.next(s.entries, 'u');
  s.text(name);
  s.object(kModule, "TensorStorageMetadata");
  s.begin_fields();
  s.text("properties");
  s.properties(dtype, requires_grad);
  s.text("size");
  s.size(size);
  s.text("chunks");
  s.out += ']';
}

void MetadataWriter::add_chunk(const Box& box) {
  State& s = *state_;
  s.next(s.chunks, 'e');
  s.object(kModule, "ChunkStorageMetadata");
  s.begin_fields();
  s.text("offsets");
  s.size(box.offset);
  s.text("sizes");
  s.size(box.shape);
  s.end_fields();
}

void MetadataWriter::end_tensor() {
  state_->close(state_->chunks, 'e');
  state_->end_fields();
}

void MetadataWriter::add_bytes(std::string_view name) {
  State& s = *state_;
  s.next(s.entries, 'u');
  s.text(name);
  s.object(kModule, "BytesStorageMetadata");  // has no fields
}

void MetadataWriter::begin_planner() {
  state_->begin_dict("planner_data", State::Section::kPlanner);
}

void MetadataWriter::add_path(std::string_view name,
                              std::span<const PathElement> path) {
  State& s = *state_;
  s.next(s.entries, 'u');
  s.text(name);
  if (path.empty()) {
    s.out += ')';
    return;
  }
  if (path.size() > 3) s.out += '(';
  for (const PathElement& element : path) {
    if (const auto* key = std::get_if<std::string>(&element))
      s.text(*key);
    else
      s.out.integer(std::get<int64_t>(element));
  }
  s.end_tuple(path.size());
}

void MetadataWriter::begin_storage() {
  State& s = *state_;
  if (s.section == State::Section::kStateDict) {
    s.close(s.entries, 'u');
    s.section = State::Section::kStart;
    s.text("planner_data");
    s.out += 'N';
  }
  s.begin_dict("storage_data", State::Section::kStorage);
}

void MetadataWriter::add_stored(std::string_view name, uint64_t index,
                                const std::optional<Dims>& offset,
                                const WrittenItem& item) {
  State& s = *state_;
  s.next(s.entries, 'u');
  s.object(kModule, "MetadataIndex");
  s.begin_fields();
  s.text("fqn");
  s.text(name);
  s.text("index");
  if (offset)
    s.out.integer(static_cast<int64_t>(index));
  else
    s.out += 'N';
  if (offset) {
    s.text("offset");
    s.size(*offset);
  }
  s.end_fields();
  s.object("torch.distributed.checkpoint.filesystem", "_StorageInfo");
  s.begin_fields();
  s.text("relative_path");
  s.text(item.file);
  s.text("offset");
  s.out.integer(static_cast<int64_t>(item.offset));
  s.text("length");
  s.out.integer(static_cast<int64_t>(item.length));
  s.end_fields();
}

std::string MetadataWriter::finish(bool storage_meta) {
  State& s = *state_;
  s.close(s.entries, 'u');
  if (storage_meta) s.storage_meta();
  s.end_fields();
  s.out += '.';
  std::string pickle = s.out.take();
  const size_t id = storage_meta ? pickle.rfind(kNoId) : pickle.npos;
  if (id != pickle.npos) pickle.replace(id, kNoId.size(), uuid_of(pickle));
  return pickle;
}

}  // namespace ckpt::dcp
