// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/nanotron.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/safetensors/header.h"
#include "formats/runs/find.h"
#include "formats/runs/merge.h"
#include "formats/runs/pattern.h"
#include "formats/torch/torch.h"
#include "lib/io/file.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/number.h"

namespace ckpt::runs {
namespace {

using text::printable;

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxFiles = 1'000'000;
constexpr size_t kMaxSlices = 4096;

// Where a rank's tensor is in the whole.
struct Slice {
  Box local;
  Box global;
};

struct Rank {
  uint64_t tp = 0;
  Shape shape;  // of its own tensor
  std::vector<Slice> slices;
};

// A parameter and the ranks that have a part of it.
struct Entry {
  Tensor tensor;
  uint64_t tp = 1, pp = 1;  // sizes in its files' names
  uint64_t stage = 0;
  std::vector<Rank> ranks;
};

[[noreturn]] void bad(const std::string& path, std::string_view what,
                      std::string_view text) {
  throw input_error({path, {}}, "{}: \"{}\" is malformed", what,
                    printable(text.substr(0, 100)));
}

std::vector<std::string_view> cut(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// "(36, 12)", "(12,)", and with numpy 2 "(np.int64(36), 12)".
Shape read_shape(std::string_view text, const std::string& path) {
  constexpr std::string_view kNumpy = "np.int64(";
  const std::string_view all = text;
  if (!text.starts_with('(') || !text.ends_with(')'))
    bad(path, "unsharded_shape", all);
  text = text.substr(1, text.size() - 2);
  Shape shape;
  for (std::string_view part : cut(text, ',')) {
    while (part.starts_with(' ')) part.remove_prefix(1);
    if (part.empty()) continue;  // "(12,)"
    if (part.starts_with(kNumpy) && part.ends_with(')'))
      part = part.substr(kNumpy.size(), part.size() - kNumpy.size() - 1);
    const auto value = text::number(part);
    if (!value || shape.size() == kMaxRank) bad(path, "unsharded_shape", all);
    shape.push_back(*value);
  }
  return shape;
}

Box read_box(std::string_view text, const Shape& shape,
             const std::string& path) {
  const auto dims = cut(text, '|');
  if (dims.size() != shape.size()) bad(path, "a slice", text);
  Box box;
  for (size_t d = 0; d < dims.size(); ++d) {
    const auto parts = cut(dims[d], ',');
    if (parts.size() != 3 || (parts[2] != "None" && parts[2] != "1"))
      bad(path, "a slice", text);
    const auto begin = parts[0] == "None" ? std::optional<uint64_t>(0)
                                          : text::number(parts[0]);
    const auto end = parts[1] == "None" ? std::optional<uint64_t>(shape[d])
                                        : text::number(parts[1]);
    if (!begin || !end || *begin > *end || *end > shape[d])
      bad(path, "a slice", text);
    box.offset.push_back(*begin);
    box.shape.push_back(*end - *begin);
  }
  return box;
}

std::vector<Slice> read_slices(std::string_view text, const Shape& local,
                               const Shape& global, const std::string& path) {
  std::vector<Slice> slices;
  for (const std::string_view pair : cut(text, ';')) {
    const auto sides = cut(pair, '#');
    if (sides.size() != 2 || slices.size() == kMaxSlices)
      bad(path, "local_global_slices_pairs", text);
    Slice slice{read_box(sides[0], local, path),
                read_box(sides[1], global, path)};
    if (slice.local.shape != slice.global.shape)
      bad(path, "local_global_slices_pairs", text);
    slices.push_back(std::move(slice));
  }
  return slices;
}

// Adds the whole's pieces for the box `local` of a rank's tensor, whose first
// element is at byte `offset` of the file.
void add_box(const Rank& rank, const Box& local, const Piece& stored,
             uint64_t offset, const Dims& strides, std::vector<Piece>& out) {
  for (const Slice& slice : rank.slices) {
    Piece piece = stored;
    piece.flat.reset();
    piece.box = slice.global;
    piece.extent.offset = offset;
    piece.extent.strides = strides;
    bool meets = true;
    for (size_t d = 0; d < strides.size() && meets; ++d) {
      const uint64_t begin = std::max(slice.local.offset[d], local.offset[d]);
      const uint64_t end =
          std::min(slice.local.offset[d] + slice.local.shape[d],
                   local.offset[d] + local.shape[d]);
      meets = begin < end;
      if (!meets) break;
      piece.box.offset[d] += begin - slice.local.offset[d];
      piece.box.shape[d] = end - begin;
      piece.extent.offset += (begin - local.offset[d]) * strides[d];
    }
    if (meets) out.push_back(std::move(piece));
  }
}

Dims byte_strides(const Shape& shape, DType dtype) {
  Dims strides = row_major_strides(shape);
  for (uint64_t& stride : strides) stride *= element_size(dtype);
  return strides;
}

// Adds the whole's pieces for a rank's tensor.
void add_pieces(const Rank& rank, const Piece& stored, DType dtype,
                std::vector<Piece>& out) {
  const Dims& strides = stored.extent.strides;
  add_box(rank, Box::whole(rank.shape), stored, stored.extent.offset,
          strides.empty() ? byte_strides(rank.shape, dtype) : strides, out);
}

// ZeRO 1 flattens a rank's tensor and gives each data-parallel rank a run of
// it; if it doesn't divide evenly, the first ranks have one more element.
FlatRange zero_share(uint64_t elements, uint64_t rank, uint64_t ranks) {
  const uint64_t each = elements / ranks, more = elements % ranks;
  const uint64_t begin = rank * each + std::min(rank, more);
  return {begin, begin + each + (rank < more ? 1 : 0)};
}

void add_share(const Rank& rank, const FlatRange& share, const Piece& stored,
               DType dtype, std::vector<Piece>& out) {
  for (const FlatPart& part : ckpt::cut(Box::whole(rank.shape), share))
    add_box(rank, part.box, stored,
            stored.extent.offset + part.at * element_size(dtype),
            byte_strides(part.box.shape, dtype), out);
}

// Files below `folder`, relative to it.
void list_below(const std::string& folder, const std::string& path,
                size_t depth, std::vector<std::string>& out) {
  if (depth == kMaxDepth)
    throw input_error({io::join(folder, path), {}}, "lies {} folders deep",
                      depth);
  for (const std::string& name : io::list_directory(io::join(folder, path))) {
    const std::string one = path.empty() ? name : io::join(path, name);
    const std::string full = io::join(folder, one);
    if (io::is_link(full) && io::is_directory(full)) continue;
    if (io::is_directory(full))
      list_below(folder, one, depth + 1, out);
    else if (one.ends_with(".safetensors"))
      out.push_back(one);
    if (out.size() > kMaxFiles)
      throw input_error({folder, {}}, "holds more than {} files", kMaxFiles);
  }
}

class Reading {
 public:
  Reading(const std::string& folder, const formats::ReadOptions& options)
      : folder_(folder), options_(options) {}

  Catalog read() {
    const std::string model = io::join(folder_, "model");
    std::vector<std::string> files;
    list_below(model, "", 0, files);
    for (const std::string& file : files)
      add_parameter(io::join(model, file), file);
    check_ranks();
    for (auto& [name, entry] : entries_)
      catalog_.tensors.push_back(entry.tensor);
    add_optimizer();
    catalog_.topology = {.tp = static_cast<uint32_t>(tp_),
                         .pp = static_cast<uint32_t>(pp_)};
    return std::move(catalog_);
  }

 private:
  void add_parameter(const std::string& path, const std::string& relative) {
    const size_t slash = relative.rfind('/');
    const std::string file = io::base_name(relative);
    std::string name = slash == relative.npos ? "" : relative.substr(0, slash);
    std::ranges::replace(name, '/', '.');
    constexpr std::string_view kStem = "model_";
    constexpr std::string_view kEnd = ".safetensors";
    if (!file.starts_with(kStem)) return unknown(path);
    std::string leaf =
        file.substr(kStem.size(), file.size() - kStem.size() - kEnd.size());
    Numbers numbers;
    if (const size_t at = leaf.find("_pp-rank-"); at != leaf.npos) {
      const auto found = match("_pp-rank-{p}-of-{P}_tp-rank-{t}-of-{T}",
                               std::string_view(leaf).substr(at));
      if (!found) return unknown(path);
      numbers = *found;
      leaf.resize(at);
    }
    name = name.empty() ? leaf : name + "." + leaf;
    const io::Handle handle = io::Handle::open_read(path);
    const safetensors::Header header = safetensors::read_header(handle);
    if (header.entries.size() != 1 || header.entries[0].name != "data")
      throw input_error({path, {}}, "holds {} tensors, not the one of \"data\"",
                        header.entries.size());
    const safetensors::Entry& data = header.entries[0];
    const safetensors::Metadata metadata =
        header.metadata.value_or(safetensors::Metadata());
    Tensor stored{.name = {}, .dtype = data.dtype, .shape = data.shape};
    stored.pieces.push_back(
        {.box = Box::whole(data.shape),
         .flat = std::nullopt,
         .extent = {.offset = data.begin,
                    .file = static_cast<uint32_t>(catalog_.files.size())}});
    catalog_.files.push_back({.path = path, .size = handle.size()});
    const auto text = [&](const char* key) -> const std::string* {
      for (const auto& [known, value] : metadata)
        if (known == key) return &value;
      return nullptr;
    };
    Rank rank{.tp = 0, .shape = stored.shape, .slices = {}};
    Shape whole = stored.shape;
    if (const auto* shape = text("unsharded_shape")) {
      const auto* slices = text("local_global_slices_pairs");
      if (slices == nullptr)
        throw input_error({path, {}},
                          "has an unsharded_shape and no "
                          "local_global_slices_pairs");
      whole = read_shape(*shape, path);
      if (!byte_size(stored.dtype, whole))
        throw input_error({path, {}}, "shape {} overflows", to_string(whole));
      rank.slices = read_slices(*slices, stored.shape, whole, path);
    } else if (!numbers.empty() && numbers["T"] > 1) {
      throw input_error({path, {}},
                        "does not say which part it is: no "
                        "unsharded_shape in its metadata");
    } else {
      rank.slices = {{Box::whole(whole), Box::whole(whole)}};
    }
    if (!numbers.empty()) {
      rank.tp = numbers["t"];
      tp_ = std::max(tp_, numbers["T"]);
      pp_ = std::max(pp_, numbers["P"]);
    }
    place(name, path, std::move(stored), whole, std::move(rank), numbers);
  }

  void place(const std::string& name, const std::string& path, Tensor stored,
             const Shape& whole, Rank rank, const Numbers& numbers) {
    const auto [it, fresh] = entries_.try_emplace(name);
    Entry& entry = it->second;
    const Piece piece = stored.pieces[0];
    if (fresh) {
      entry.tensor = std::move(stored);
      entry.tensor.name = name;
      entry.tensor.shape = whole;
      entry.tensor.pieces.clear();
      entry.tensor.kind = Kind::model;
      if (!numbers.empty()) {
        entry.tp = numbers.at("T");
        entry.stage = numbers.at("p");
      }
    } else if (entry.tensor.shape != whole ||
               entry.tensor.dtype != stored.dtype ||
               (!numbers.empty() && entry.tp != numbers.at("T"))) {
      throw input_error(
          {path, printable(name)}, "is a part of {} {}, other files of {} {}",
          ckpt::name(stored.dtype), to_string(whole),
          ckpt::name(entry.tensor.dtype), to_string(entry.tensor.shape));
    }
    add_pieces(rank, piece, entry.tensor.dtype, entry.tensor.pieces);
    entry.ranks.push_back(std::move(rank));
  }

  void unknown(const std::string& path) {
    catalog_.problems.push_back(warning(
        "unread_file", {path, {}}, "is not named as a parameter of nanotron"));
  }

  // A part that no file has shows up as a missing rank.
  void check_ranks() const {
    for (const auto& [name, entry] : entries_) {
      if (entry.ranks.size() == entry.tp) continue;
      std::string missing;
      for (uint64_t tp = 0; tp < entry.tp && missing.empty(); ++tp)
        if (std::ranges::none_of(entry.ranks,
                                 [&](const Rank& r) { return r.tp == tp; }))
          missing = fmt::format("that of rank {} is missing", tp);
      throw input_error({io::join(folder_, "model"), printable(name)},
                        "{} files for {} tensor-parallel ranks; {}",
                        entry.ranks.size(), entry.tp, missing)
          .with_hint("fetch the files of all ranks");
    }
    if (entries_.empty())
      throw input_error({io::join(folder_, "model"), {}},
                        "no parameters in it");
  }

  void add_optimizer() {
    constexpr const char* kPlain =
        "optimizer_pp-{p}-of-{P}_tp-{t}-of-{T}_exp-{x}-of-{X}.pt";
    constexpr const char* kZero =
        "optimizer_pp-{p}-of-{P}_dp-{d}-of-{D}_tp-{t}-of-{T}_exp-{x}-of-{X}"
        ".pt";
    const std::string folder = io::join(folder_, "optimizer");
    if (!io::is_directory(folder)) return;
    std::vector<Name> files = names_like(folder, kPlain);
    const std::vector<Name> shares = names_like(folder, kZero);
    if (!shares.empty() && !files.empty())
      throw input_error({folder, {}},
                        "holds files of an optimizer that ZeRO cuts ({}) and "
                        "of one that it does not ({}): one of them is of an "
                        "earlier save",
                        shares[0].path, files[0].path);
    const char* pattern = shares.empty() ? kPlain : kZero;
    if (!shares.empty()) files = shares;
    if (files.empty()) return;
    std::map<std::string, size_t> known;
    check_files(folder, pattern, files);
    for (const Name& file : files) add_state(folder, file, known);
  }

  static void check_files(const std::string& folder, const char* pattern,
                          const std::vector<Name>& files) {
    Numbers sizes = files[0].numbers;
    for (const Name& file : files)
      for (const char* size : {"P", "D", "T", "X"})
        if (sizes.contains(size) && file.numbers.at(size) != sizes.at(size))
          throw input_error({io::join(folder, file.path), {}},
                            "is of other ranks than {}: they are two saves",
                            files[0].path);
    const uint64_t stages = sizes.at("P"), cuts = sizes.at("T");
    const uint64_t copies = sizes.contains("D") ? sizes.at("D") : 1;
    if (stages == 0 || cuts == 0 || copies == 0)
      throw input_error({io::join(folder, files[0].path), {}},
                        "is named as of no ranks");
    std::set<std::array<uint64_t, 3>> have;
    for (const Name& file : files)
      have.insert({file.numbers.at("p"), file.numbers.at("t"),
                   copies > 1 ? file.numbers.at("d") : 0});
    for (uint64_t p = 0; p < stages; ++p)
      for (uint64_t t = 0; t < cuts; ++t)
        for (uint64_t d = 0; d < copies; ++d) {
          if (have.contains({p, t, d})) continue;
          sizes["p"] = p;
          sizes["t"] = t;
          sizes["d"] = d;
          throw input_error({io::join(folder, fill(pattern, sizes)), {}},
                            "is missing: {} of {} ranks are there",
                            files.size(), stages * cuts * copies)
              .with_hint("fetch the files of all ranks");
        }
  }

  void add_state(const std::string& folder, const Name& file,
                 std::map<std::string, size_t>& known) {
    const std::string path = io::join(folder, file.path);
    const uint64_t tp = file.numbers.at("t");
    Catalog one = torch_->read_catalog(path, options_);
    const auto names = names_of(one, path);
    const bool first = known.empty();
    if (!first) one.objects.clear();
    for (Object& object : one.objects) object.name = "optimizer." + object.name;
    const size_t begin = Merger(catalog_).add(std::move(one));
    std::vector<Tensor> tensors(
        std::make_move_iterator(catalog_.tensors.begin() +
                                static_cast<std::ptrdiff_t>(begin)),
        std::make_move_iterator(catalog_.tensors.end()));
    catalog_.tensors.resize(begin);
    for (Tensor& tensor : tensors) {
      tensor.kind = Kind::optim;
      tensor.tie = 0;
      const auto index = text::number(tensor.param);
      const auto name = index ? names.find(*index) : names.end();
      const auto entry =
          name == names.end() ? entries_.end() : entries_.find(name->second);
      if (name != names.end() && entry == entries_.end()) lost(name->second);
      if (entry == entries_.end()) {
        tensor.name = fmt::format("optimizer.tp{}.{}", tp, tensor.name);
        catalog_.tensors.push_back(std::move(tensor));
        continue;
      }
      add_cut(path, file.numbers, entry->second, std::move(tensor), known);
    }
  }

  // The optimizer names its parameters as the files do, tied ones too.
  [[noreturn]] void lost(const std::string& name) const {
    std::string place = name;
    std::ranges::replace(place, '.', '/');
    const size_t leaf = place.rfind('/') + 1;
    place.insert(leaf, "model_");
    throw input_error(
        {io::join(folder_, "model/" + place + ".safetensors"), {}},
        "is missing: the optimizer has states of {} that no file holds",
        printable(name))
        .with_hint("fetch all files of model/ again");
  }

  // Adds one rank's state: cut like its parameter, or (a step) the same for
  // all.
  void add_cut(const std::string& path, const Numbers& numbers,
               const Entry& entry, Tensor tensor,
               std::map<std::string, size_t>& known) {
    const uint64_t tp = numbers.at("t");
    tensor.param = entry.tensor.name;
    tensor.name = tensor.param + "." + tensor.state;
    const auto rank = std::ranges::find_if(entry.ranks, [&](const Rank& one) {
      return one.tp == (entry.tp > 1 ? tp : 0);
    });
    const bool scalar = tensor.shape.empty();
    const bool zero = numbers.contains("D") && rank != entry.ranks.end();
    FlatRange share;
    if (zero)
      share = zero_share(element_count(rank->shape).value_or(0),
                         numbers.at("d"), numbers.at("D"));
    const bool fits =
        rank != entry.ranks.end() &&
        tensor.shape == (zero ? Shape{share.end - share.begin} : rank->shape);
    if (!scalar && zero && !fits)
      throw input_error({path, printable(tensor.name)},
                        "has shape {}, data-parallel rank {} of {} has {} of "
                        "the parameter's {} elements",
                        to_string(tensor.shape), numbers.at("d"),
                        numbers.at("D"), share.end - share.begin,
                        element_count(rank->shape).value_or(0));
    if (!scalar && !fits)
      throw input_error(
          {path, printable(tensor.name)},
          "has shape {}, that rank's part of the parameter {}",
          to_string(tensor.shape),
          to_string(rank == entry.ranks.end() ? Shape() : rank->shape));
    std::vector<Piece> pieces;
    if (scalar)
      pieces = tensor.pieces;
    else if (zero)
      add_share(*rank, share, tensor.pieces[0], tensor.dtype, pieces);
    else
      add_pieces(*rank, tensor.pieces[0], tensor.dtype, pieces);
    const auto [it, fresh] =
        known.emplace(tensor.name, catalog_.tensors.size());
    if (fresh) {
      if (!scalar) tensor.shape = entry.tensor.shape;
      tensor.pieces = std::move(pieces);
      catalog_.tensors.push_back(std::move(tensor));
      return;
    }
    Tensor& whole = catalog_.tensors[it->second];
    if (whole.dtype != tensor.dtype || whole.shape.empty() != scalar)
      throw input_error({path, printable(tensor.name)},
                        "is {}, in other ranks' files {}", name(tensor.dtype),
                        name(whole.dtype));
    std::ranges::move(pieces, std::back_inserter(whole.pieces));
  }

  // {0: "model.…weight", …}
  static std::map<uint64_t, std::string> names_of(const Catalog& one,
                                                  const std::string& path) {
    std::map<uint64_t, std::string> names;
    if (!one.skeleton) return names;
    const pickle::Document& document = *one.skeleton->document;
    const auto pairs =
        document.as_pairs(document.find(document.root(), "names"));
    if (!pairs) throw input_error({path, {}}, "has no names of its parameters");
    for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
      const auto index = document.as_int((*pairs)[i]);
      if (!index || *index < 0 ||
          !document.is((*pairs)[i + 1], pickle::Type::kString))
        throw input_error({path, {}}, "names: a malformed entry");
      names[static_cast<uint64_t>(*index)] =
          std::string(document.text((*pairs)[i + 1]));
    }
    return names;
  }

  const std::string& folder_;
  const formats::ReadOptions& options_;
  std::unique_ptr<formats::Reader> torch_ = torch::make_reader();
  Catalog catalog_;
  std::map<std::string, Entry> entries_;
  uint64_t tp_ = 1, pp_ = 1;
};

}  // namespace

Catalog read_nanotron(const std::string& folder,
                      const formats::ReadOptions& options) {
  return Reading(folder, options).read();
}

}  // namespace ckpt::runs
