// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/nanotron/nanotron.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/find/find.h"
#include "formats/runs/merge.h"
#include "formats/runs/objects.h"
#include "formats/torch/torch.h"
#include "lib/io/ahead.h"
#include "lib/io/file.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/number.h"

namespace ckpt::runs::nanotron {
namespace {

using text::printable;

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxFiles = 1'000'000;
constexpr std::string_view kMasters = "gradient_accumulator.";

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

  Step read() {
    const std::string model = io::join(folder_, "model");
    std::vector<std::string> files;
    list_below(model, "", 0, files);
    std::vector<std::string> paths;
    paths.reserve(files.size());
    for (const std::string& file : files)
      paths.push_back(io::join(model, file));
    io::FilesAhead ahead(paths);
    for (size_t i = 0; i < files.size(); ++i) {
      ahead.reach(i);
      add_parameter(paths[i], files[i]);
    }
    check_ranks();
    for (auto& [name, weight] : weights_)
      catalog_.tensors.push_back(weight.tensor);
    add_optimizer();
    catalog_.topology = {.tp = static_cast<uint32_t>(tp_),
                         .pp = static_cast<uint32_t>(pp_),
                         .dp = copies()};
    step_.catalog = std::move(catalog_);
    step_.weights = std::move(weights_);
    return std::move(step_);
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
      const auto ranks = std::string_view(leaf).substr(at);
      const auto found = match("_pp-rank-{p}-of-{P}_tp-rank-{t}-of-{T}", ranks);
      if (!found && ranks.find("_exp-rank-") != ranks.npos) experts(path);
      if (!found) return unknown(path);
      numbers = *found;
      leaf.resize(at);
    }
    const std::string stem =
        slash == relative.npos ? "" : relative.substr(0, slash + 1);
    const std::string place = fmt::format("model/{}{}{}", stem, kStem, leaf);
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
    Share share = all_of(stored.shape);
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
      share.slices = read_slices(*slices, stored.shape, whole, path);
    } else if (!numbers.empty() && numbers["T"] > 1) {
      throw input_error({path, {}},
                        "does not say which part it is: no "
                        "unsharded_shape in its metadata");
    }
    if (!numbers.empty()) {
      share.tp = numbers["t"];
      tp_ = std::max(tp_, numbers["T"]);
      pp_ = std::max(pp_, numbers["P"]);
    }
    Weight& weight = add_part(name, path, std::move(stored), whole,
                              std::move(share), numbers);
    if (weight.file.empty()) {
      weight.file = place;
      weight.metadata = header.metadata;
    }
  }

  Weight& add_part(const std::string& name, const std::string& path,
                   Tensor stored, const Shape& whole, Share share,
                   const Numbers& numbers) {
    const auto [it, fresh] = weights_.try_emplace(name);
    Weight& weight = it->second;
    const Piece piece = stored.pieces[0];
    if (fresh) {
      weight.tensor = std::move(stored);
      weight.tensor.name = name;
      weight.tensor.shape = whole;
      weight.tensor.pieces.clear();
      weight.tensor.kind = Kind::model;
      if (!numbers.empty()) {
        weight.sharded = true;
        weight.tp = numbers.at("T");
        weight.stage = numbers.at("p");
      }
    } else if (weight.tensor.shape != whole ||
               weight.tensor.dtype != stored.dtype ||
               (!numbers.empty() && weight.tp != numbers.at("T"))) {
      throw input_error(
          {path, printable(name)}, "is a part of {} {}, other files of {} {}",
          ckpt::name(stored.dtype), to_string(whole),
          ckpt::name(weight.tensor.dtype), to_string(weight.tensor.shape));
    }
    add_pieces(share, piece, weight.tensor.dtype, weight.tensor.pieces);
    weight.shares.push_back(std::move(share));
    return weight;
  }

  [[noreturn]] static void experts(const std::string& path) {
    throw input_error({path, {}},
                      "is of expert-parallel ranks: such steps of nanotron are "
                      "not read")
        .with_hint("nanotron itself loads it");
  }

  // Data-parallel ranks, which no file of the model shows.
  uint32_t copies() const {
    constexpr uint64_t kMaxCopies = 1'000'000;
    const auto zero = step_.ranks.find("D");
    const auto said =
        zero != step_.ranks.end()
            ? std::optional<uint64_t>(zero->second)
            : number_in(io::join(folder_, "checkpoint_metadata.json"), "dp");
    return said && *said > 0 && *said <= kMaxCopies
               ? static_cast<uint32_t>(*said)
               : 1;
  }

  void unknown(const std::string& path) {
    catalog_.problems.push_back(warning(
        "unread_file", {path, {}}, "is not named as a parameter of nanotron"));
  }

  // A part that no file has shows up as a missing rank.
  void check_ranks() const {
    for (const auto& [name, weight] : weights_) {
      if (weight.shares.size() == weight.tp) continue;
      std::string missing;
      for (uint64_t tp = 0; tp < weight.tp && missing.empty(); ++tp)
        if (std::ranges::none_of(weight.shares,
                                 [&](const Share& r) { return r.tp == tp; }))
          missing = fmt::format("that of rank {} is missing", tp);
      throw input_error({io::join(folder_, "model"), printable(name)},
                        "{} files for {} tensor-parallel ranks; {}",
                        weight.shares.size(), weight.tp, missing)
          .with_hint("fetch the files of all ranks");
    }
    if (weights_.empty())
      throw input_error({io::join(folder_, "model"), {}},
                        "no parameters in it");
    for (const auto& [name, weight] : weights_) check_slices(name, weight);
  }

  // A layer gives its parts to the ranks in order. nanotron's load_weights
  // takes a rank's file by its name, and reads no slices.
  void check_slices(const std::string& name, const Weight& weight) const {
    const auto begins = [](const Share& share) {
      std::vector<uint64_t> found;
      for (const Slice& slice : share.slices)
        found.insert(found.end(), slice.global.offset.begin(),
                     slice.global.offset.end());
      return found;
    };
    std::vector<const Share*> shares;
    for (const Share& share : weight.shares) shares.push_back(&share);
    std::ranges::sort(shares, {}, &Share::tp);
    for (size_t r = 1; r < shares.size(); ++r)
      if (begins(*shares[r]) < begins(*shares[r - 1]))
        throw input_error({io::join(folder_, "model"), printable(name)},
                          "the file of tensor-parallel rank {} has the part "
                          "({}) before that of rank {} ({}): they are under "
                          "each other's names",
                          shares[r]->tp, to_text(shares[r]->slices),
                          shares[r - 1]->tp, to_text(shares[r - 1]->slices))
            .with_hint("give each rank's file its own name back");
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
    step_.pattern = fmt::format("optimizer/{}", pattern);
    step_.ranks = files[0].numbers;
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
    if (sizes.at("X") > 1) experts(io::join(folder, files[0].path));
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
    formats::ReadOptions options = options_;
    options.rank_files = true;
    Catalog one = torch_->read_catalog(path, options);
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
      const auto state = state_of(tensor, names);
      if (!state) {
        tensor.name =
            fmt::format("optimizer.{}.{}", ranks_of(file.numbers), tensor.name);
        catalog_.tensors.push_back(std::move(tensor));
        continue;
      }
      const auto weight = weights_.find(state->param);
      if (weight == weights_.end()) lost(state->param);
      tensor.state = state->state;
      add_cut(path, file.numbers, weight->second, std::move(tensor), known);
    }
  }

  // "tp1", "pp0.dp2.tp1": of values that are no parameter's.
  static std::string ranks_of(const Numbers& numbers) {
    std::string text;
    if (numbers.at("P") > 1) text += fmt::format("pp{}.", numbers.at("p"));
    if (numbers.contains("D")) text += fmt::format("dp{}.", numbers.at("d"));
    return text + fmt::format("tp{}", numbers.at("t"));
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
               const Weight& weight, Tensor tensor,
               std::map<std::string, size_t>& known) {
    const uint64_t tp = numbers.at("t");
    tensor.param = weight.tensor.name;
    tensor.name = tensor.param + "." + tensor.state;
    const auto share = std::ranges::find_if(
        weight.shares,
        [&](const Share& one) { return one.tp == (weight.tp > 1 ? tp : 0); });
    const bool scalar = tensor.shape.empty();
    const bool zero = numbers.contains("D") && share != weight.shares.end();
    FlatRange run;
    if (zero)
      run = zero_run(element_count(share->shape).value_or(0), numbers.at("d"),
                     numbers.at("D"));
    const bool fits =
        share != weight.shares.end() &&
        tensor.shape == (zero ? Shape{run.end - run.begin} : share->shape);
    if (!scalar && zero && !fits)
      throw input_error({path, printable(tensor.name)},
                        "has shape {}, data-parallel rank {} of {} has {} of "
                        "the parameter's {} elements",
                        to_string(tensor.shape), numbers.at("d"),
                        numbers.at("D"), run.end - run.begin,
                        element_count(share->shape).value_or(0));
    if (!scalar && !fits)
      throw input_error(
          {path, printable(tensor.name)},
          "has shape {}, that rank's part of the parameter {}",
          to_string(tensor.shape),
          to_string(share == weight.shares.end() ? Shape() : share->shape));
    std::vector<Piece> pieces;
    if (scalar)
      pieces = tensor.pieces;
    else if (zero)
      add_run(*share, run, tensor.pieces[0], tensor.dtype, pieces);
    else
      add_pieces(*share, tensor.pieces[0], tensor.dtype, pieces);
    const auto [it, fresh] =
        known.emplace(tensor.name, catalog_.tensors.size());
    if (fresh) {
      if (!scalar) tensor.shape = weight.tensor.shape;
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

  const std::string& folder_;
  const formats::ReadOptions& options_;
  Step step_;
  std::unique_ptr<formats::Reader> torch_ = torch::make_reader();
  Catalog catalog_;
  std::map<std::string, Weight> weights_;
  uint64_t tp_ = 1, pp_ = 1;
};

}  // namespace

std::map<uint64_t, std::string> names_of(const Catalog& one,
                                         const std::string& path) {
  std::map<uint64_t, std::string> names;
  if (!one.skeleton) return names;
  const pickle::Document& document = *one.skeleton->document;
  const auto pairs = document.as_pairs(document.find(document.root(), "names"));
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

std::optional<State> state_of(const Tensor& tensor,
                              const std::map<uint64_t, std::string>& names) {
  if (tensor.name.starts_with(kMasters))
    return State{tensor.name.substr(kMasters.size()), std::string(kMaster)};
  const auto index = text::number(tensor.param);
  const auto name = index ? names.find(*index) : names.end();
  if (name == names.end()) return std::nullopt;
  return State{name->second, tensor.state};
}

Step read(const std::string& folder, const formats::ReadOptions& options) {
  return Reading(folder, options).read();
}

}  // namespace ckpt::runs::nanotron
