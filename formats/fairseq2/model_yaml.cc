// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/model_yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <vector>

#include "ckpt/error.h"
#include "lib/io/ahead.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/tree_memory.h"

namespace ckpt::fairseq2 {
namespace {

using families::Config;
using families::Scalar;

constexpr uint64_t kMaxBytes = uint64_t{16} << 20;
constexpr uint64_t kMaxValues = 100'000;
constexpr size_t kMaxDepth = 64;

template <class Number>
bool parse_all(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && at == end;
}

// YAML 1.2's core schema, as far as configurations use it.
Scalar scalar_of(const std::string& text, bool plain) {
  if (!plain) return text;
  if (text.empty() || text == "null" || text == "~") return std::monostate{};
  if (text == "true") return true;
  if (text == "false") return false;
  int64_t whole = 0;
  if (parse_all(text, whole)) return whole;
  double real = 0;
  if (parse_all(text, real)) return real;
  return text;
}

// Flattens the document while it is parsed: no node graph is built, so neither
// aliases nor depth cost memory.
class Flatten : public YAML::EventHandler {
 public:
  explicit Flatten(const std::string& path) : path_(path) {}
  Config values;
  std::string null_at_end;  // the last key, if it has no value

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail(mark, "aliases are not read");
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    const std::string key = key_.substr(key_.rfind('.') + 1);
    leaf(mark, "", true);
    null_at_end = key;
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    // Quoted scalars have the tag "!".
    leaf(mark, value, tag != "!");
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
    bool in_sequence;  // here or further out; values are not kept
    size_t prefix;     // length of the path outside it
    bool expects_key = true;
    size_t items = 0;  // of a sequence
  };

  [[noreturn]] void fail(const YAML::Mark& mark, const char* why) const {
    throw input_error({path_, {}}, "line {}: {}", mark.line + 1, why);
  }
  void count(const YAML::Mark& mark) {
    if (++seen_ > kMaxValues) fail(mark, "over 100,000 values");
    // A long key is in the path of everything below it.
    taken_ += 128 + key_.size();
    const auto read = static_cast<uint64_t>(std::max(mark.pos, 0));
    const uint64_t most =
        std::max(tree_memory::kFree, tree_memory::kMostPerByte * read);
    if (taken_ > most || taken_ + tree_memory::used() > tree_memory::limit())
      tree_memory::check(path_, std::max(taken_, most + 1), read);
  }

  void leaf(const YAML::Mark& mark, const std::string& text, bool plain) {
    count(mark);
    null_at_end.clear();
    if (frames_.empty()) return;
    Frame& top = frames_.back();
    if (top.map && top.expects_key) {
      key_.resize(top.prefix);
      if (!key_.empty()) key_ += '.';
      key_ += text;
      top.expects_key = false;
      return;
    }
    // Items of a flat list are "key.0", "key.1" …
    if (!top.map && frames_.size() > 1 &&
        !frames_[frames_.size() - 2].in_sequence)
      values.emplace(key_ + "." + std::to_string(top.items++),
                     scalar_of(text, plain));
    if (!top.in_sequence &&
        !values.emplace(key_, scalar_of(text, plain)).second)
      fail(mark, "a key is there twice");
    top.expects_key = true;
  }

  void open(const YAML::Mark& mark, bool map) {
    count(mark);
    null_at_end.clear();
    if (frames_.size() >= kMaxDepth) fail(mark, "nested too deep");
    bool in_sequence = !map;
    if (!frames_.empty()) {
      if (frames_.back().map && frames_.back().expects_key)
        fail(mark, "a key is not a scalar");
      in_sequence = in_sequence || frames_.back().in_sequence;
    }
    frames_.push_back({map, in_sequence, key_.size(), true});
  }

  void close() {
    key_.resize(frames_.back().prefix);
    frames_.pop_back();
    if (!frames_.empty()) frames_.back().expects_key = true;
  }

  const std::string& path_;
  std::vector<Frame> frames_;
  std::string key_;
  uint64_t seen_ = 0;
  uint64_t taken_ = 0;  // approximate memory of the values
};

// Field names of 0.3 and 0.4 -> today's.
std::string modern(const std::string& field) {
  if (field == "vocab_info.size") return "vocab_size";
  if (field == "vocab_info.pad_idx") return "pad_idx";
  if (field == "ffn_inner_dim_to_multiple") return "ffn_inner_dim_multiple_of";
  return field;
}

}  // namespace

families::Config read_flat_yaml(const std::string& path) {
  return flat_yaml(path, io::read_file(path, kMaxBytes));
}

families::Config flat_yaml(const std::string& path, const std::string& bytes) {
  std::istringstream stream(bytes);
  Flatten flat(path);
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(flat);
  } catch (const YAML::Exception& e) {
    throw input_error({path, {}}, "line {}: {}", e.mark.line + 1, e.msg);
  }
  // yaml-cpp takes "num_la" at the end of a truncated file for a key without a
  // value.
  const std::string_view last =
      std::string_view(bytes).substr(bytes.rfind('\n') + 1);
  if (!flat.null_at_end.empty() && last.ends_with(flat.null_at_end))
    throw input_error({path, {}}, "line {}: ends within a key: \"{}\"",
                      std::ranges::count(bytes, '\n') + 1,
                      text::printable(flat.null_at_end))
        .with_hint("the file was cut: take it from another copy");
  return std::move(flat.values);
}

void ask_for_yaml(const std::string& path) {
  constexpr uint64_t kMostAsked = uint64_t{64} << 10;
  if (!io::is_url(path)) return;
  const io::Handle file = io::Handle::open_read(path);
  const io::Range range{0, std::min(file.size(), kMostAsked)};
  io::ask_for(file, {&range, 1}, {.looks = true});
}

ModelYaml read_model_yaml(const std::string& path) {
  return model_yaml_of(path, io::read_file(path, kMaxBytes));
}

ModelYaml model_yaml_of(const std::string& path, const std::string& text) {
  Config values = flat_yaml(path, text);
  ModelYaml yaml{.path = path, .family = {}, .config = {}};
  if (const auto found = values.find("model_family"); found != values.end())
    yaml.family = families::to_string(found->second);
  for (auto& [key, value] : values) {
    for (const std::string_view prefix :
         {"model_config._set_.", "model_config."}) {
      if (!key.starts_with(prefix)) continue;
      yaml.config.emplace(modern(key.substr(prefix.size())), std::move(value));
      break;
    }
  }
  return yaml;
}

}  // namespace ckpt::fairseq2
