// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/read/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <unordered_map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/file_list.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/optimizer/optimizer.h"
#include "lib/io/file.h"
#include "lib/manifest.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::runs {

using text::printable;
using Severity = Problem::Severity;

bool lacks_index(const std::string& folder) {
  if (io::is_file(io::join(folder, ".metadata"))) return false;
  const auto names = io::list_directory(folder);
  return names.empty() ||
         std::ranges::any_of(names, [](const std::string& name) {
           return name.ends_with(".distcp");
         });
}

void check_finished(const Source& source, const std::string& step) {
  constexpr std::string_view kIndex = "/.metadata";
  if (!source.file.ends_with(kIndex)) return;
  const std::string folder =
      source.file.substr(0, source.file.size() - kIndex.size() + 1);
  for (const Name& name : names_like(step, folder)) {
    const std::string path = io::join(step, name.path);
    if (!lacks_index(path)) continue;
    throw input_error({path, {}},
                      ".metadata is missing, which is written last: incomplete "
                      "save")
        .with_hint(
            "use an earlier step; if this one was copied, look "
            "whether names that begin with a dot were left out");
  }
}

void check_mixed(const std::string& folder) {
  const auto there = [&](const char* name) {
    return io::is_file(io::join(folder, name));
  };
  const char* names[] = {"model.safetensors", "model.safetensors.index.json",
                         "pytorch_model.bin", "pytorch_model.bin.index.json"};
  const bool safe = there(names[0]) || there(names[1]);
  const bool bin = there(names[2]) || there(names[3]);
  if (!safe || !bin) return;
  throw input_error({folder, {}}, "holds {} and {}: two models in one step",
                    there(names[0]) ? names[0] : names[1],
                    there(names[2]) ? names[2] : names[3])
      .with_hint(
          "one of them is of an earlier save; move it away, or read one with "
          "--trainer none --from safetensors (or torch)");
}

namespace {

bool has_optimizer(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
    return tensor.kind == Kind::optim;
  });
}

bool is_there(const Part& part, const std::string& folder) {
  return !names_like(folder, part.file).empty() ||
         (!part.instead.empty() && !names_like(folder, part.instead).empty());
}

void note_damage(Catalog& catalog, const char* kind, const std::string& path,
                 std::string message) {
  catalog.problems.push_back(
      damage(kind, {path, {}}, "{}", std::move(message)));
}

bool is_in(const std::string& path, const std::string& word) {
  constexpr uint64_t kMost = 64 << 20;  // with a long history of losses
  const auto size = io::file_size(path);
  return size && *size <= kMost &&
         io::read_file(path, kMost).find(word) != std::string::npos;
}

// Whether the step's writer is one that always writes this part. ckpt isn't:
// what it wrote is in its manifest.
bool is_proven(const Part& part, const std::string& folder,
               const Catalog& catalog) {
  if (io::is_file(manifest_path(folder))) return false;
  if (!part.none.empty()) {
    const auto value =
        std::ranges::find(catalog.objects, part.none, &Object::name);
    return value != catalog.objects.end() && value->document &&
           value->document->is(value->node, pickle::Type::kNone);
  }
  if (part.proof.empty()) return false;
  const size_t space = part.proof.find(' ');
  const std::string path = io::join(folder, part.proof.substr(0, space));
  if (space == part.proof.npos) return io::is_file(path);
  return is_in(path, '"' + part.proof.substr(space + 1) + '"');
}

// A file of the part that the step beside has and this one lacks; "" if none.
std::string lost(const Part& part, const std::string& beside,
                 const std::vector<Name>& names) {
  if (beside.empty()) return {};
  const bool ranked = has(part.file, "r") || has(part.file, "T");
  if (ranked && !names.empty()) return {};  // there may be fewer ranks now
  for (const Name& one : names_like(beside, part.file))
    if (std::ranges::find(names, one.path, &Name::path) == names.end())
      return one.path;
  return {};
}

// A file of the part, of the first rank: what would be there.
std::string first_of(const std::string& pattern, const Topology& ranks) {
  return as_glob(fill(pattern, {{"i", 0},
                                {"r", 0},
                                {"t", 0},
                                {"d", 0},
                                {"p", 0},
                                {"x", 0},
                                {"T", ranks.tp},
                                {"S", ranks.tp},
                                {"D", ranks.dp},
                                {"W", ranks.dp},
                                {"P", ranks.pp},
                                {"X", 1}}));
}

// The optimizers that a scheduler steps: torch's put initial_lr into the
// groups.
size_t scheduled(const Catalog& catalog) {
  constexpr std::string_view kGroupsKey = "param_groups";
  constexpr std::string_view kRate = "initial_lr";
  const auto in_group = [&](const pickle::Document& document, pickle::Id id) {
    return document.find(id, kRate) != pickle::kNoId;
  };
  std::set<std::string> found;
  for (const Object& object : catalog.objects) {
    const size_t at = object.name.find(kGroupsKey);
    if (at == object.name.npos) continue;
    bool has = object.name.ends_with("." + std::string(kRate));
    if (!has && object.document) {
      const pickle::Document& document = *object.document;
      has = document.is(object.node, pickle::Type::kList)
                ? std::ranges::any_of(
                      document.items(object.node),
                      [&](pickle::Id id) { return in_group(document, id); })
                : in_group(document, object.node);
    }
    if (has) found.insert(object.name.substr(0, at));
  }
  return found.size();
}

bool is_said(const Catalog& catalog, const std::string& path) {
  return std::ranges::any_of(catalog.problems, [&](const Problem& problem) {
    return problem.kind == "missing_part" && problem.file == path;
  });
}

// A scheduler steps one optimizer: each of several has a file of its own.
void note_few_schedulers(const Part& part, const std::string& folder,
                         const std::vector<Name>& names, Catalog& catalog) {
  const size_t wanted = scheduled(catalog);
  if (part.part != "scheduler" || !has(part.file, "i") ||
      names.size() >= wanted)
    return;
  const std::string path =
      io::join(folder, fill(part.file, {{"i", names.size()}}));
  if (!is_said(catalog, path))
    catalog.problems.push_back(
        warning("missing_part", {path, {}},
                "is not there, and {} optimizers have groups with the "
                "initial_lr that a scheduler sets: {}",
                wanted, part.without));
}

// Advances a grid's place by one, like digits; false after the last.
bool next_place(Numbers& place) {
  for (auto& [key, value] : place) {
    if (key.size() != 1 || key[0] < 'a') continue;  // a size
    const auto upper = static_cast<char>(key[0] - 'a' + 'A');
    const auto size = place.find(std::string(1, upper));
    if (size == place.end()) continue;
    if (++value < size->second) return true;
    value = 0;
  }
  return false;
}

}  // namespace

void check_together(const Trainer& trainer, const std::string& folder,
                    const Source* optimizer, Catalog& catalog) {
  const bool inside = has_optimizer(catalog);
  const bool own = !trainer.optimizers.empty();
  for (const Part& part : trainer.parts) {
    if (part.with.empty()) continue;
    const bool there = is_there(part, folder);
    if (part.with != "optimizer") {
      if (!there && !names_like(folder, part.with).empty())
        note_damage(catalog, "missing_part",
                    io::join(folder, first_of(part.file, catalog.topology)),
                    fmt::format("is missing; {} is not loaded without it",
                                as_glob(part.with)));
      continue;
    }
    if (there && own && !optimizer && !inside)
      note_damage(
          catalog, "missing_part", folder,
          fmt::format("{} is there and no optimizer ({}), which is written "
                      "together with it",
                      as_glob(part.file),
                      as_glob(trainer.optimizers.back().file)));
    // Who loads the two asks for both, and goes on without either.
    if (!there && (optimizer || (inside && !own)))
      note_damage(
          catalog, "missing_part",
          io::join(folder, first_of(part.file, catalog.topology)),
          fmt::format("is missing; it is written together with {}, which "
                      "is not loaded without it",
                      optimizer ? as_glob(optimizer->file) : "the optimizer"));
  }
}

void note_absent(const Trainer& trainer, const Part& part,
                 const std::string& folder, const std::string& beside,
                 const std::vector<Name>& names, Catalog& catalog) {
  // No trainer resumes without an optimizer.
  if (part.without.empty() || !has_optimizer(catalog)) return;
  if (!part.instead.empty() && !names_like(folder, part.instead).empty())
    return;
  if (const std::string name = lost(part, beside, names); !name.empty()) {
    const std::string path = io::join(folder, name);
    if (is_said(catalog, path)) return;
    Problem problem = warning("missing_part", {path, {}},
                              "is missing, the step beside has it ({}): {}",
                              printable(io::join(beside, name)), part.without);
    if (part.fails) problem.severity = Severity::kDamage;
    catalog.problems.push_back(std::move(problem));
    return;
  }
  if (!names.empty()) return note_few_schedulers(part, folder, names, catalog);
  const std::string path =
      io::join(folder, first_of(part.file, catalog.topology));
  if (is_said(catalog, path)) return;
  const std::string other = as_glob(part.instead);
  const std::string nor = other.empty() ? "" : ", and so is " + other;
  if (is_proven(part, folder, catalog))
    return note_damage(catalog, "missing_part", path,
                       fmt::format("is missing{}; {} always writes it together "
                                   "with the optimizer: {}",
                                   nor, trainer.what, part.without));
  if (part.part == "scheduler" && scheduled(catalog) > 0) {
    catalog.problems.push_back(
        warning("missing_part", {path, {}},
                "is not there{}, and the optimizer's groups have the "
                "initial_lr that a scheduler sets: {}",
                other.empty() ? "" : ", nor " + other, part.without));
    return;
  }
  catalog.problems.push_back(
      remark("absent_part", {path, {}}, "is not there{}: {}",
             other.empty() ? "" : ", nor " + other, part.without));
}

void note_lost_optimizer(const Trainer& trainer, const std::string& folder,
                         const std::string& beside, Catalog& catalog) {
  if (trainer.without_optimizer.empty() || beside.empty()) return;
  // A scheduler without its optimizer is damage, and said.
  if (is_said(catalog, folder)) return;
  const bool none =
      std::ranges::none_of(trainer.optimizers, [&](const Source& source) {
        return !names_like(folder, source.file).empty();
      });
  for (const Source& source : trainer.optimizers) {
    // Of ranks, of which there may be fewer now, one lost file is not told
    // from a smaller world.
    if (!none && !has(source.file, "i")) continue;
    const auto here = names_like(folder, source.file);
    for (const Name& name : names_like(beside, source.file)) {
      const std::string path = io::join(folder, name.path);
      if (std::ranges::find(here, name.path, &Name::path) != here.end() ||
          is_said(catalog, path))
        continue;
      catalog.problems.push_back(warning(
          "missing_part", {path, {}},
          "is missing, the step beside has it ({}): {}",
          printable(io::join(beside, name.path)), trainer.without_optimizer));
      return;
    }
  }
}

void note_few_optimizers(const Source& source, const std::string& folder,
                         size_t optimizers, size_t models, Catalog& catalog) {
  if (!has(source.file, "i")) return;
  const std::string path =
      io::join(folder, fill(source.file, {{"i", optimizers}}));
  if (is_said(catalog, path)) return;
  catalog.problems.push_back(warning(
      "missing_part", {path, {}},
      "is not there: {} models have {} {}; it is lost, unless one of "
      "the models is not trained",
      models, optimizers, optimizers == 1 ? "optimizer" : "optimizers"));
}

void note_beside(const std::string& folder, const std::string& beside,
                 Catalog& catalog) {
  if (beside.empty() || !io::is_directory(folder) || !io::is_directory(beside))
    return;
  const auto is_small = [](const std::string& name) {
    // Numbers stand for ranks, shards or the step.
    return !name.ends_with(".index.json") &&
           std::ranges::none_of(name, text::is_digit) &&
           std::ranges::any_of(
               std::to_array<std::string_view>(
                   {".json", ".model", ".txt", ".jinja", ".py"}),
               [&](std::string_view end) { return name.ends_with(end); });
  };
  for (const std::string& name : io::list_directory(beside)) {
    const std::string path = io::join(folder, name);
    if (!is_small(name) || formats::is_own_file(name) || io::is_file(path) ||
        !io::is_file(io::join(beside, name)) || is_said(catalog, path))
      continue;
    const auto known = std::ranges::find_if(
        catalog.problems, [&](const Problem& p) { return p.file == path; });
    if (known != catalog.problems.end()) continue;
    catalog.problems.push_back(warning(
        "missing_file", {path, {}}, "is missing, the step beside has it ({})",
        printable(io::join(beside, name))));
  }
}

void check_numbers(const Part& part, const std::string& folder,
                   const std::vector<Name>& names, Catalog& catalog) {
  if (!has(part.file, "i")) return;
  for (uint64_t i = 0; i < names.size(); ++i) {
    if (names[i].numbers.at("i") == i) continue;
    return note_damage(catalog, "missing_part",
                       io::join(folder, fill(part.file, {{"i", i}})),
                       "is missing, files of higher numbers are there");
  }
}

void check_grid(const Part& part, const std::string& folder,
                const std::vector<Name>& names, Catalog& catalog) {
  if (!has(part.file, "T")) return;
  if (names.empty()) {
    const std::string above = io::join(folder, io::parent(part.file));
    if (!part.demanded || !io::is_directory(above)) return;
    return note_damage(catalog, "missing_rank", above,
                       fmt::format("{} is missing", as_glob(part.file)));
  }
  const auto is_size = [](const std::string& key) {
    return key[0] >= 'A' && key[0] <= 'Z';
  };
  for (const Name& name : names)
    for (const auto& [key, value] : name.numbers)
      if (is_size(key) && value != names[0].numbers.at(key))
        return note_damage(
            catalog, "mixed_ranks", io::join(folder, name.path),
            fmt::format("is of other ranks than {}: they are of two saves",
                        printable(io::base_name(names[0].path))));
  uint64_t wanted = 1;
  Numbers place = names[0].numbers;
  for (auto& [key, value] : place) {
    if (is_size(key))
      wanted = checked_mul(wanted, value).value_or(UINT64_MAX);
    else
      value = 0;
  }
  if (names.size() == wanted) return;
  // Find the first place without a file, in at most one more try than there are
  // files.
  for (size_t tries = 0; tries <= names.size(); ++tries) {
    if (std::ranges::none_of(
            names, [&](const Name& name) { return name.numbers == place; }))
      break;
    if (!next_place(place)) break;
  }
  note_damage(catalog, "missing_rank", io::join(folder, fill(part.file, place)),
              fmt::format("is missing: {} files of {} ranks are there",
                          names.size(), wanted));
}

void check_swapped(const std::string& folder, const std::vector<Name>& names,
                   const std::map<std::string, std::string>& saved_as,
                   Catalog& catalog) {
  for (const Name& name : names) {
    const std::string stem = stem_of(name.path);
    const auto mine = saved_as.find(stem);
    if (mine == saved_as.end() || mine->second == stem) continue;
    const auto its = saved_as.find(mine->second);
    if (its == saved_as.end() || its->second.empty() ||
        its->second == its->first)
      continue;
    note_damage(catalog, "part", io::join(folder, name.path),
                fmt::format("is another's file, as {} is: torch.save wrote it "
                            "under the name {}; give each its own name back",
                            printable(io::base_name(its->first)),
                            printable(mine->second)));
  }
}

void check_ranks(const Part& part, const std::string& folder,
                 const std::vector<Name>& names, Catalog& catalog) {
  if (!has(part.file, "r") || names.empty()) return;
  std::set<uint64_t> have;
  Numbers numbers = names[0].numbers;
  for (const Name& name : names) {
    const auto world = name.numbers.find("W");
    if (world != name.numbers.end() && world->second != catalog.topology.dp) {
      note_damage(catalog, "mixed_ranks", io::join(folder, name.path),
                  fmt::format("is of {} ranks, the model of {}: it is of "
                              "another save",
                              world->second, catalog.topology.dp));
      continue;
    }
    have.insert(name.numbers.at("r"));
    numbers = name.numbers;
  }
  if (have.empty()) return;
  const uint64_t wanted = std::max<uint64_t>(
      *have.rbegin() + 1, part.part == "rng" ? catalog.topology.dp : 0);
  if (have.size() >= wanted) return;
  for (uint64_t r = 0; r < wanted; ++r) {
    if (have.contains(r)) continue;
    numbers["r"] = r;
    catalog.problems.push_back(
        damage("missing_rank", {io::join(folder, fill(part.file, numbers)), {}},
               "is missing: {} of {} ranks are there", have.size(), wanted));
    return;  // the first one is enough
  }
}

void check_extents(const std::string& folder, size_t begin,
                   const Catalog& catalog) {
  std::unordered_map<std::string_view, const Tensor*> model;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model) model.emplace(tensor.name, &tensor);
  const auto smaller = projected(std::span(catalog.tensors).subspan(begin));
  for (size_t t = begin; t < catalog.tensors.size(); ++t) {
    const Tensor& state = catalog.tensors[t];
    const auto found = model.find(state.param);
    if (found == model.end() || !tells_shape(state) ||
        smaller.contains(state.param))
      continue;
    const Shape& shape = found->second->shape;
    if (shape == state.shape || shape.size() != state.shape.size()) continue;
    throw input_error({folder, printable(state.param)},
                      "ends at {} in the shards, its {} in the optimizer at "
                      "{}: the shard of a rank is missing",
                      to_string(shape), printable(state.state),
                      to_string(state.shape))
        .with_hint(
            "copy the checkpoint again; the optimizer is not of this save if "
            "all shards are there");
  }
}

}  // namespace ckpt::runs
