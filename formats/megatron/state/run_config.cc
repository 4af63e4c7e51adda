// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/run_config.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "ckpt/error.h"
#include "formats/fairseq2/model_yaml.h"
#include "lib/io/file.h"
#include "lib/pickle/json.h"

namespace ckpt::megatron {
namespace {

using families::Config;
using families::Scalar;

constexpr char kModel[] = "model.";

// A replacement of bytes of a text.
struct Edit {
  size_t begin = 0, end = 0;
  std::string text;
};

std::string yaml_of(const ArgChange& change) {
  if (change.value) return std::to_string(*change.value);
  if (change.text.empty()) return "null";
  if (change.text == "true" || change.text == "false") return change.text;
  return nlohmann::json(change.text).dump();
}

bool says(const Scalar& value, const ArgChange& change) {
  const std::string text = families::to_string(value);
  if (change.value) return text == std::to_string(*change.value);
  return text == (change.text.empty() ? "null" : change.text);
}

// Finds the values to change. The text has been read before, with bounds on its
// size and depth.
class Finder : public YAML::EventHandler {
 public:
  Finder(const std::string& path, const std::string& text,
         const std::map<std::string, std::string>& wanted)
      : path_(path), text_(text), wanted_(wanted) {}
  std::vector<Edit> edits;
  std::set<std::string> found;  // their keys

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override { finish(text_.size()); }
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    leaf(mark, "", true);
  }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                const std::string& value) override {
    leaf(mark, value, false);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&,
                       YAML::anchor_t, YAML::EmitterStyle::value) override {
    open(mark, false);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    open(mark, true);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    bool map;
    size_t prefix;
    bool expects_key = true;
  };

  [[noreturn]] void fail(const YAML::Mark& mark) const {
    throw unfaithful_error({path_, {}}, "line {}: {} can't be changed in place",
                           mark.line + 1, key_)
        .with_hint("write it as `key: value` on a line of its own");
  }

  void leaf(const YAML::Mark& mark, const std::string& value, bool null) {
    const auto pos = static_cast<size_t>(std::max(mark.pos, 0));
    finish(std::min(pos, text_.size()));
    if (frames_.empty()) return;
    Frame& top = frames_.back();
    if (top.map && top.expects_key) {
      key_.resize(top.prefix);
      if (!key_.empty()) key_ += '.';
      key_ += value;
      key_end_ = pos + value.size();
      top.expects_key = false;
      return;
    }
    top.expects_key = true;
    if (!top.map) return;
    const auto wanted = wanted_.find(key_);
    if (wanted == wanted_.end()) return;
    found.insert(key_);
    if (null && text_.compare(pos, 1, "~") != 0 &&
        text_.compare(pos, 4, "null") != 0)
      return insert(mark, wanted->second);
    const size_t size =
        null ? text_.compare(pos, 1, "~") == 0 ? 1 : 4 : value.size();
    const size_t end = pos + size;
    const bool whole = end <= text_.size() &&
                       (null || text_.compare(pos, size, value) == 0) &&
                       (end == text_.size() ||
                        std::string_view(" \t\r\n,}").find(text_[end]) !=
                            std::string_view::npos);
    if (!whole) fail(mark);
    edits.push_back({pos, end, wanted->second});
  }
  // For `key:` with nothing after it.
  void insert(const YAML::Mark& mark, const std::string& value) {
    if (key_end_ >= text_.size() || text_[key_end_] != ':') fail(mark);
    edits.push_back({key_end_ + 1, key_end_ + 1, " " + value});
  }

  void open(const YAML::Mark& mark, bool map) {
    finish(static_cast<size_t>(std::max(mark.pos, 0)));
    if (!frames_.empty() && frames_.back().map && pending_ == 0)
      if (const auto wanted = wanted_.find(key_); wanted != wanted_.end()) {
        if (key_end_ >= text_.size() || text_[key_end_] != ':') fail(mark);
        pending_ = frames_.size();
        edits.push_back({key_end_ + 1, key_end_ + 1, " " + wanted->second});
        found.insert(key_);
      }
    frames_.push_back({map, key_.size(), true});
  }
  void close() {
    key_.resize(frames_.back().prefix);
    frames_.pop_back();
    if (!frames_.empty()) frames_.back().expects_key = true;
    closed_ = pending_ != 0 && frames_.size() == pending_;
    if (closed_) pending_ = 0;
  }
  // A removed list or object ends with the line before the next entry.
  void finish(size_t next) {
    if (!closed_) return;
    closed_ = false;
    const size_t line = text_.rfind('\n', next == 0 ? 0 : next - 1);
    Edit& edit = edits.back();
    if (next == text_.size())
      edit.end = text_.ends_with('\n') ? next - 1 : next;
    else if (line != text_.npos && line >= edit.begin)
      edit.end = line;
  }

  const std::string& path_;
  const std::string& text_;
  const std::map<std::string, std::string>& wanted_;
  std::vector<Frame> frames_;
  std::string key_;
  size_t key_end_ = 0;
  size_t pending_ = 0;  // depth of a removed list; 0: none
  bool closed_ = false;
};

bool is_changed(const std::map<std::string, std::string>& wanted,
                const std::string& key) {
  return std::ranges::any_of(wanted, [&](const auto& one) {
    return key == one.first || key.starts_with(one.first + ".");
  });
}

// Proves that the edited text says the same except for what was asked.
void prove(const std::string& path, const Config& before, const Config& after,
           const std::vector<ArgChange>& changes,
           const std::map<std::string, std::string>& wanted) {
  const auto rest = [&](const Config& config) {
    Config kept;
    for (const auto& [key, value] : config)
      if (!is_changed(wanted, key)) kept.emplace(key, value);
    return kept;
  };
  bool same = rest(before) == rest(after);
  for (const ArgChange& change : changes)
    if (wanted.contains(change.name)) {
      const auto found = after.find(change.name);
      same = same && found != after.end() && says(found->second, change);
    }
  if (!same)
    throw unfaithful_error({path, {}},
                           "its parallel sizes can't be changed in place")
        .with_hint("move it away, and put it right beside the target");
}

bool has_objects(const Catalog& target, std::string_view first) {
  return std::ranges::any_of(target.objects, [&](const Object& object) {
    return object.name.starts_with(first);
  });
}

}  // namespace

std::optional<std::string> run_config_path(const Catalog& source) {
  for (const Sidecar& sidecar : source.sidecars)
    if (sidecar.name.ends_with(kRunConfigFile) && !sidecar.text)
      return sidecar.path;
  std::string beside = io::join(source.path, kRunConfigFile);
  if (io::is_file(beside)) return beside;
  return std::nullopt;
}

Config run_config(const Catalog& source) {
  const auto path = run_config_path(source);
  return path ? fairseq2::read_flat_yaml(*path) : Config();
}

Facts run_config_facts(const Config& config) {
  const auto number = [&](const char* name) {
    auto found = families::whole_number(config, std::string(kModel) + name);
    if (found && (*found == 0 || *found > UINT32_MAX)) found.reset();
    return found;
  };
  Facts facts;
  facts.tp = number("tensor_model_parallel_size");
  facts.pp = number("pipeline_model_parallel_size");
  facts.ep = number("expert_model_parallel_size");
  facts.etp = number("expert_tensor_parallel_size");
  facts.cp = number("context_parallel_size");
  return facts;
}

std::vector<ArgChange> run_config_changes(const Config& config,
                                          const Catalog& target,
                                          std::vector<ArgChange> wanted) {
  const Facts facts = run_config_facts(config);
  std::vector<ArgChange> all = topology_changes(facts, target.topology, 0);
  std::ranges::move(wanted, std::back_inserter(all));
  std::vector<ArgChange> changes;
  for (ArgChange& change : all) {
    // Megatron-LM's args have another name for it.
    if (change.name == "decoder_first_pipeline_num_layers")
      change.name = "num_layers_in_first_pipeline_stage";
    if (change.name == "decoder_last_pipeline_num_layers")
      change.name = "num_layers_in_last_pipeline_stage";
    if (change.name == "data_parallel_size") changes.push_back(change);
    change.name = kModel + change.name;
    changes.push_back(std::move(change));
  }
  const ArgChange no{.name = {}, .value = std::nullopt, .text = "false"};
  if (!has_objects(target, "rng_state")) {
    changes.push_back(no);
    changes.back().name = "checkpoint.save_rng";
  }
  if (std::ranges::none_of(target.tensors, [](const Tensor& tensor) {
        return tensor.kind == Kind::optim;
      })) {
    changes.push_back(no);
    changes.back().name = "checkpoint.save_optim";
  }
  return changes;
}

std::string edit_yaml(const std::string& path, const std::string& text,
                      const std::vector<ArgChange>& changes) {
  const Config before = fairseq2::read_flat_yaml(path);
  std::map<std::string, std::string> wanted;
  for (const ArgChange& change : changes) {
    const auto found = before.find(change.name);
    if (found != before.end() && says(found->second, change)) continue;
    wanted[change.name] = yaml_of(change);
  }
  Finder finder(path, text, wanted);
  std::istringstream stream(text);
  YAML::Parser(stream).HandleNextDocument(finder);
  if (finder.edits.empty()) return text;
  std::erase_if(wanted, [&](const auto& one) {
    return !finder.found.contains(one.first);
  });
  std::string edited = text;
  std::ranges::reverse(finder.edits);
  for (const Edit& edit : finder.edits)
    edited.replace(edit.begin, edit.end - edit.begin, edit.text);
  prove(path, before, fairseq2::flat_yaml(path, edited), changes, wanted);
  return edited;
}

}  // namespace ckpt::megatron
