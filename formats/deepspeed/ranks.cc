// SPDX-License-Identifier: Apache-2.0
#include "formats/deepspeed/ranks.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "containers/torch/tensors.h"
#include "formats/deepspeed/locate.h"
#include "formats/deepspeed/ranks_parts.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "lib/lost_file.h"
#include "lib/text/format.h"

namespace ckpt::deepspeed {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using text::printable;

namespace {

// DeepSpeed's default if the configuration has no sub_group_size.
constexpr uint64_t kSubGroupSize = 1'000'000'000;

}  // namespace

bool is_list(const Document& document, Id id) {
  return document.is(id, Type::kList) || document.is(id, Type::kTuple);
}

std::string name_of_rank(const std::string& name, uint32_t rank) {
  constexpr std::string_view kFirst = "zero_pp_rank_0_";
  std::string out = name;
  if (const size_t at = out.find(kFirst); at != out.npos)
    out.replace(at, kFirst.size(), fmt::format("zero_pp_rank_{}_", rank));
  return out;
}

Ranks::Ranks(const Catalog& source, uint32_t ranks)
    : source_(source), ranks_(ranks) {
  target_.catalog = formats::catalog_like(source, "deepspeed");
  target_.catalog.topology = source.topology;
  target_.catalog.topology.dp = ranks;
  for (size_t t = 0; t < source.tensors.size(); ++t)
    names_.emplace(source.tensors[t].name, t);
}

Target Ranks::build() {
  open();
  check();
  regroup();
  const bool each = models_.size() > 1 || models_[0].dp;
  for (uint32_t rank = 0; rank < (each ? ranks_ : 1); ++rank) add_model(rank);
  if (optim_)
    for (uint32_t rank = 0; rank < ranks_; ++rank) add_optim(rank);
  check_placed();
  return std::move(target_);
}

void Ranks::refuse(const std::string& path, const std::string& tensor,
                   const std::string& what) const {
  throw unfaithful_error({path, printable(tensor)}, "{}", what)
      .with_hint(
          "--to deepspeed without sizes writes a universal checkpoint, which "
          "DeepSpeed loads at any number of ranks");
}

void Ranks::open() {
  for (const FileName& file : list_files(source_.path)) {
    if (file.kind == FileKind::kLayer || file.kind == FileKind::kExpert ||
        file.mp > 0)
      refuse(source_.path, {},
             "is cut by tensor or pipeline parallelism or has experts apart: "
             "it is not written for other ranks");
    const std::string path = io::join(source_.path, file.name);
    if (file.kind == FileKind::kModel) {
      models_.push_back(read_model_rank(torch::open_container(path, opened_)));
      models_.back().dp = file.dp;
      model_name_ = model_name_.empty() ? file.name : model_name_;
    } else if (++old_ranks_ == 1) {
      optim_ = torch::open_container(path, opened_);
      optim_rank_ = read_optim_rank(*optim_);
      optim_name_ = file.name;
    }
  }
  if (models_.empty())
    throw LostFile(input_error({source_.path, {}}, "has no *_model_states.pt"));
  const auto is_state = [](const Tensor& tensor) {
    return tensor.kind == Kind::optim && !tensor.param.empty();
  };
  if (!optim_ && source_.path.ends_with("_universal") &&
      std::ranges::any_of(source_.tensors, is_state))
    refuse(source_.path, {},
           "is a universal checkpoint: any number of ranks loads it as it is");
}

Id Ranks::state_dict() const {
  return values().find(values().root(), "optimizer_state_dict");
}

// Orders that depend on the number of ranks, and padding between parameters.
void Ranks::check() const {
  if (!optim_) return;
  const Document& model = *models_[0].container.document;
  const Id zero = model.find(models_[0].find("ds_config"), "zero_optimization");
  const Id round = model.find(zero, "round_robin_gradients");
  if (model.is(round, Type::kBool) && model.boolean(round))
    refuse(models_[0].path, {},
           "has round_robin_gradients: its parameters are ordered by "
           "the number of ranks");
  const Id padding = values().find(state_dict(), "param_alignment_paddings");
  if (is_list(values(), padding))
    for (const Id group : values().items(padding))
      if (const auto all = torch::as_ints(values(), group);
          all && std::ranges::any_of(*all, [](int64_t n) { return n != 0; }))
        refuse(optim_->path, {},
               "has padding between parameters (parameter_alignment)");
  if (!values().as_pairs(optimizer()))
    refuse(optim_->path, {},
           "is an elastic checkpoint, whose form has been given up");
}

// {"state": …, "param_groups": …} of torch's optimizer.
Id Ranks::optimizer() const {
  return values().find(
      state_dict(), third() ? "optimizer_state_dict" : "base_optimizer_state");
}

// Determines which parameters each vector now holds.
void Ranks::regroup() {
  if (!optim_) return;
  if (!third()) {
    groups_ = models_[0].groups;
    for (const Parameters& group : groups_)
      if (group.empty())
        refuse(models_[0].path, {}, "has a group without parameters");
    for (size_t g = 0; g < groups_.size(); ++g) from_.push_back(g);
    return;
  }
  const std::vector<Parameters> old = old_sub_groups();
  const Document& model = *models_[0].container.document;
  const Id zero = model.find(models_[0].find("ds_config"), "zero_optimization");
  const auto asked = model.as_int(model.find(zero, "sub_group_size"));
  const uint64_t size =
      asked && *asked > 0 ? static_cast<uint64_t>(*asked) : kSubGroupSize;
  const Id list = values().find(optimizer(), "param_groups");
  if (!is_list(values(), list)) refuse(optim_->path, {}, "has no param_groups");
  for (const Id group : values().items(list)) {
    const auto numbers =
        torch::as_ints(values(), values().find(group, "params"));
    Parameters all;
    std::vector<size_t> before;
    for (const int64_t g : numbers.value_or(std::vector<int64_t>())) {
      if (g < 0 || static_cast<uint64_t>(g) >= old.size())
        refuse(optim_->path, {}, "has a group of sub-groups it lacks");
      before.push_back(old[static_cast<size_t>(g)].size());
      all.insert(all.end(), old[static_cast<size_t>(g)].begin(),
                 old[static_cast<size_t>(g)].end());
    }
    members_.emplace_back();
    if (all.empty()) continue;
    check_rule(all, size, before);
    for (Parameters& one : sub_groups(all, size, ranks_)) {
      members_.back().push_back(groups_.size());
      groups_.push_back(std::move(one));
      from_.push_back(static_cast<size_t>(numbers->front()));
    }
  }
}

// DeepSpeed makes sub-groups when it starts: the source's must be those that
// its rule makes, or the new ones would differ from what it makes.
void Ranks::check_rule(const Parameters& all, uint64_t size,
                       const std::vector<size_t>& before) const {
  std::vector<size_t> now;
  for (const Parameters& one : sub_groups(all, size, old_ranks_))
    now.push_back(one.size());
  if (now != before)
    refuse(optim_->path, {},
           fmt::format("has sub-groups that sub_group_size {} does not make",
                       size));
}

std::vector<Parameters> Ranks::old_sub_groups() const {
  std::vector<Parameters> all;
  uint64_t left = 0;
  for (const Parameters& group : models_[0].groups)
    for (const NamedShape& one : group) {
      while (left == 0 && all.size() < optim_rank_.groups.size()) {
        left = optim_rank_.groups[all.size()].fp32.numel;
        all.emplace_back();
      }
      const uint64_t part = part_size(one, old_ranks_);
      if (part > left || all.empty())
        refuse(optim_->path, one.name, "lies in two sub-groups");
      left -= part;
      all.back().push_back(one);
    }
  return all;
}

const Tensor& Ranks::tensor_of(const std::string& parameter,
                               const std::string& state) const {
  const std::string name = state.empty() ? parameter : parameter + "." + state;
  const auto found = names_.find(name);
  if (found == names_.end())
    refuse(source_.path, name, "is not there, and the others are");
  return source_.tensors[found->second];
}

uint32_t Ranks::add_file(const std::string& name, torch::FilePlan& plan) {
  plan.file.path = io::join(io::base_name(source_.path), name);
  const auto file = static_cast<uint32_t>(target_.catalog.files.size());
  target_.catalog.files.push_back(
      {.path = plan.file.path, .size = plan.file.size, .fill = {}});
  return file;
}

void Ranks::place(const std::vector<Placed>& placed, uint32_t file,
                  torch::FilePlan& plan) {
  std::vector<Literal> literals = plan.file.literals.get();
  for (const Placed& one : placed) {
    const uint64_t offset = plan.data_offsets[one.slot];
    if (one.scalar)
      place_scalar(one, file, offset);
    else
      place_vector(one, file, offset, literals);
  }
  std::ranges::sort(literals, {}, &Literal::offset);
  plan.file.literals = std::move(literals);
}

// One value stands for every parameter's.
void Ranks::place_scalar(const Placed& one, uint32_t file, uint64_t offset) {
  uint32_t tie = 0;
  for (const NamedShape& parameter : *one.group) {
    const size_t t = names_.at(tensor_of(parameter.name, one.state).name);
    Tensor& out = target_.catalog.tensors[t];
    if (tie == 0 && one.group->size() > 1)
      tie = out.tie != 0 ? out.tie : ++ties_;
    out.tie = tie;
    out.pieces.push_back(
        {.box = Box::whole(out.shape),
         .flat = std::nullopt,
         .extent = {.offset = offset, .strides = {}, .file = file}});
  }
}

void Ranks::place_vector(const Placed& one, uint32_t file, uint64_t offset,
                         std::vector<Literal>& literals) {
  uint64_t at = 0;
  const uint64_t item = one.item;
  const auto pad = [&](uint64_t until) {
    if (until > at)
      literals.push_back(
          {offset + at * item, std::string((until - at) * item, '\0')});
    at = until;
  };
  for (const Run& run : one.vector.runs) {
    const Tensor& tensor = tensor_of(run.parameter->name, one.state);
    Tensor& out = target_.catalog.tensors[names_.at(tensor.name)];
    if (element_size(tensor.dtype) != item)
      refuse(source_.path, tensor.name, "is of another dtype than its group");
    pad(run.at);
    Piece piece;
    piece.box = Box::whole(tensor.shape);
    if (run.range != FlatRange{0, run.parameter->numel}) piece.flat = run.range;
    piece.extent = {
        .offset = offset + run.at * item, .strides = {}, .file = file};
    out.pieces.push_back(std::move(piece));
    at = run.at + (run.range.end - run.range.begin);
  }
  pad(one.vector.size);
}

uint32_t Ranks::file_of(const std::string& path) const {
  const auto found = std::ranges::find(source_.files, path, &File::path);
  if (found == source_.files.end())
    throw bug_error({path, {}}, "is not a file of the catalog");
  return static_cast<uint32_t>(found - source_.files.begin());
}

void Ranks::check_placed() {
  for (size_t t = 0; t < source_.tensors.size(); ++t) {
    const Tensor& tensor = source_.tensors[t];
    Tensor& out = target_.catalog.tensors[t];
    if (!out.pieces.empty() || byte_size(tensor) == 0) continue;
    // A second name of a parameter has its pieces.
    for (size_t o = 0; tensor.tie != 0 && o < source_.tensors.size(); ++o) {
      Tensor& other = target_.catalog.tensors[o];
      if (source_.tensors[o].tie != tensor.tie || other.pieces.empty())
        continue;
      if (other.tie == 0) other.tie = ++ties_;
      out.tie = other.tie;
      out.pieces = other.pieces;
      break;
    }
    if (out.pieces.empty())
      refuse(source_.path, tensor.name,
             "is a rank's own: nothing says what it becomes for others");
  }
}

Target lay_out_ranks(const Catalog& source, uint32_t ranks) {
  return Ranks(source, ranks).build();
}

}  // namespace ckpt::deepspeed
