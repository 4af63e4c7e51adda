// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/find/find.h"
#include "formats/runs/nanotron/write.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/other_json.h"

namespace ckpt::runs::nanotron {
namespace {

constexpr uint64_t kMaxText = 64 << 20;

class Beside {
 public:
  Beside(const std::string& folder, const Step& step, const Ranks& ranks,
         Target& target)
      : folder_(folder), step_(step), ranks_(ranks), target_(target) {}

  void add() {
    const Topology& old = step_.catalog.topology;
    if (old.tp == ranks_.tp() && old.dp == ranks_.dp() && !ranks_.moves())
      return;
    add_metadata();
    add_optimizer_config();
    add_yaml();
    add_of_ranks(
        "lr_scheduler/"
        "lr_scheduler_pp-{p}-of-{P}_tp-{t}-of-{T}_exp-{x}-of-{X}.pt",
        false);
    add_of_ranks("random/tp-{t}-of-{T}_dp-{d}-of-{D}_pp-{p}-of-{P}.pt", true);
  }

 private:
  std::optional<nlohmann::ordered_json> json_of(const std::string& name) const {
    const std::string path = io::join(folder_, name);
    if (!io::is_file(path)) return std::nullopt;
    auto json = text::parse_or_discard<nlohmann::ordered_json>(
        io::read_file(path, kMaxText));
    if (!json.is_object())
      throw unfaithful_error({path, {}},
                             "is not a JSON object: its number of ranks would "
                             "stay as it is");
    return json;
  }

  void put(const std::string& name, std::string content) {
    target_.files.push_back(formats::literal_file(name, std::move(content)));
    target_.fates.push_back({name, Fate::kConverted, {}});
  }

  // {"tp": 2, "dp": 1, "metas": …}
  void add_metadata() {
    constexpr const char* kName = "checkpoint_metadata.json";
    auto json = json_of(kName);
    if (!json) return;
    (*json)["tp"] = ranks_.tp();
    (*json)["dp"] = ranks_.dp();
    put(kName, json->dump(2));
  }

  // {"type": …, "parallelism": {"tp_size": "2", …}, "configs": {…}}; numbers
  // are texts. With ZeRO 1 the runs of what rank 0 has, and its shapes.
  void add_optimizer_config() {
    constexpr const char* kName = "optimizer/optimizer_config.json";
    auto json = json_of(kName);
    if (!json) return;
    const auto sizes = json->find("parallelism");
    if (sizes == json->end() || !sizes->is_object())
      throw unfaithful_error({io::join(folder_, kName), {}},
                             "has no sizes of \"parallelism\", by which "
                             "nanotron finds the files of ranks");
    (*sizes)["tp_size"] = std::to_string(ranks_.tp());
    (*sizes)["dp_size"] = std::to_string(ranks_.dp());
    (*sizes)["pp_size"] = std::to_string(ranks_.pp());
    if (auto found = json->find("configs");
        found != json->end() && found->is_object())
      set_configs(*found);
    put(kName, json->dump());
  }

  void set_configs(nlohmann::ordered_json& configs) const {
    const auto each = [&](const char* key, auto set) {
      const auto found = configs.find(key);
      if (found == configs.end() || !found->is_object()) return;
      if (ranks_.moves()) {
        found->clear();
        for (const auto& [name, weight] : step_.weights)
          if (ranks_.stage(weight) == 0) (*found)[name] = nullptr;
      }
      for (auto& [name, value] : found->items()) {
        const auto share = ranks_.share(ranks_.weight(name), 0);
        value = set(share->shape);
      }
    };
    each("orig_param_shapes", [](const Shape& shape) {
      auto list = nlohmann::ordered_json::array();
      for (const uint64_t size : shape) list.push_back(std::to_string(size));
      return list;
    });
    each("param_name_to_dp_rank_offsets", [&](const Shape& shape) {
      auto runs = nlohmann::ordered_json::object();
      const uint64_t elements = element_count(shape).value_or(0);
      for (uint64_t dp = 0; dp < ranks_.dp(); ++dp) {
        const FlatRange run = zero_run(elements, dp, ranks_.dp());
        if (run.begin < run.end)
          runs[std::to_string(dp)] = {std::to_string(run.begin),
                                      std::to_string(run.end)};
      }
      return runs;
    });
  }

  // The job's configuration, which resumes with the numbers that it is given:
  //   parallelism:
  //     dp: 1
  //     pp: 1
  //     tp: 2
  void add_yaml() {
    constexpr const char* kName = "config.yaml";
    const std::string path = io::join(folder_, kName);
    if (!io::is_file(path)) return;
    std::string made;
    bool inside = false;
    size_t set = 0;
    const std::string text = io::read_file(path, kMaxText);
    for (std::string_view rest = text; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size() - 1) + 1;
      std::string line(rest.substr(0, end));
      rest.remove_prefix(end);
      if (!line.starts_with(' ')) inside = line.starts_with("parallelism:");
      for (const auto& [key, value] :
           {std::pair("  tp: ", ranks_.tp()), std::pair("  dp: ", ranks_.dp()),
            std::pair("  pp: ", ranks_.pp())})
        if (inside && line.starts_with(key)) {
          line = fmt::format("{}{}\n", key, value);
          ++set;
        }
      made += line;
    }
    if (set == 3) return put(kName, std::move(made));
    target_.problems.push_back(
        warning("of_ranks", {path, {}},
                "is carried as it is: its parallelism is that of the source"));
  }

  // A file that another save left.
  bool is_of_others(const Numbers& numbers) const {
    const Topology& old = step_.catalog.topology;
    for (const auto& [size, ranks] :
         {std::pair("T", old.tp), std::pair("D", old.dp),
          std::pair("P", old.pp), std::pair("X", uint32_t{1})})
      if (const auto said = numbers.find(size);
          said != numbers.end() && said->second != ranks)
        return true;
    return false;
  }

  // New ranks get the files of old ones in turn.
  void add_of_ranks(const std::string& pattern, bool said) {
    const std::map<std::string_view, uint64_t> now = {
        {"t", ranks_.tp()}, {"d", ranks_.dp()}, {"p", ranks_.pp()}};
    const std::map<std::string_view, std::string> sizes = {
        {"t", "T"}, {"d", "D"}, {"p", "P"}};
    const std::vector<Name> names = names_like(folder_, pattern);
    const Topology& old = step_.catalog.topology;
    for (const Name& name : names) {
      if (is_of_others(name.numbers)) {
        target_.fates.push_back(
            {name.path, Fate::kLeftOut, "it is of other ranks than the step"});
        continue;
      }
      std::vector<Numbers> places = {name.numbers};
      for (const auto& [rank, size] : sizes) {
        if (!name.numbers.contains(rank)) continue;
        std::vector<Numbers> more;
        for (Numbers& place : places) {
          const uint64_t ranks = name.numbers.at(size);
          place[size] = now.at(rank);
          uint64_t at = place.at(std::string(rank));
          while (at < now.at(rank)) {
            place[std::string(rank)] = at;
            more.push_back(place);
            at += ranks;
          }
        }
        places = std::move(more);
      }
      const std::string from = io::join(folder_, name.path);
      for (const Numbers& place : places) {
        TargetFile file;
        file.path = fill(pattern, place);
        file.size = io::file_size(from).value_or(0);
        file.copy_of = from;
        target_.files.push_back(std::move(file));
      }
      target_.fates.push_back(
          places.empty()
              ? FileFate{name.path, Fate::kLeftOut, "there are fewer ranks now"}
              : FileFate{name.path, Fate::kCarried, {}});
    }
    if (!said || names.empty() ||
        (ranks_.tp() <= old.tp && ranks_.dp() <= old.dp &&
         ranks_.pp() <= old.pp))
      return;
    target_.problems.push_back(warning(
        "of_ranks", {},
        "from {} to {}: new ranks go on with the random numbers of old "
        "ones ({} and the like)",
        to_string(old), to_string(target_.catalog.topology), names[0].path));
  }

  const std::string& folder_;
  const Step& step_;
  const Ranks& ranks_;
  Target& target_;
};

}  // namespace

void add_beside(const std::string& folder, const Step& step, const Ranks& ranks,
                Target& target) {
  Beside(folder, step, ranks, target).add();
}

}  // namespace ckpt::runs::nanotron
