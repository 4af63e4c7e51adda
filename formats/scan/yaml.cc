// SPDX-License-Identifier: Apache-2.0
// YAML as a tree of JSON, for rules that hold for both.
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <map>
#include <sstream>

#include "ckpt/error.h"
#include "formats/scan/configs.h"
#include "lib/text/scan.h"

namespace ckpt::scan {
namespace {

using nlohmann::json;

// Builds the tree as the document is read. Aliases of containers are left out:
// what they hold was seen at the anchor.
class YamlTree : public YAML::EventHandler {
 public:
  // `lines`: for a tree of settings, whose places are wanted.
  explicit YamlTree(const std::string& path,
                    std::map<std::string, uint64_t>* lines = nullptr)
      : path_(path), lines_(lines) {}
  json take() { return std::move(documents_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override { anchors_.clear(); }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    value(mark, nullptr);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (lines_) fail(mark, "aliases are not read");
    const auto found = anchors_.find(anchor);
    value(mark, found == anchors_.end() ? json() : json(found->second));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag,
                YAML::anchor_t anchor, const std::string& text) override {
    if (anchor != 0) anchors_[anchor] = text;
    refuse_tag(mark, tag);
    if (tag.find("python/") == tag.npos) return value(mark, text);
    value(mark, json{{"!!python", tag}});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag,
                       YAML::anchor_t, YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    open(mark, json::array());
    if (tag.find("python/") != tag.npos)
      open_.back().values.push_back(json{{"!!python", tag}});
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag,
                  YAML::anchor_t, YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    open(mark, json::object());
    if (tag.find("python/") != tag.npos) open_.back().values["!!python"] = tag;
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    json values;
    bool has_key = false;
    std::string key = {};
    std::string place = {};
  };

  // "!" is a quoted text's, "?" that of all else.
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (lines_ && tag.size() > 1) fail(mark, "tags are not read");
  }

  // Where the value that begins now is.
  std::string place() const {
    if (open_.empty()) return documents_.empty() ? "" : "/";
    const Open& top = open_.back();
    return top.place + "/" +
           (top.values.is_array() ? std::to_string(top.values.size())
                                  : top.key);
  }
  bool is_key() const {
    return !open_.empty() && open_.back().values.is_object() &&
           !open_.back().has_key;
  }
  void mark_line(const YAML::Mark& mark) {
    if (!lines_) return;
    if (!documents_.empty()) fail(mark, "a second document");
    if (!is_key())
      lines_->emplace(place(), static_cast<uint64_t>(mark.line) + 1);
  }

  [[noreturn]] void fail(const YAML::Mark& mark, const char* why) const {
    throw input_error({path_, {}}, "line {}: {}", mark.line + 1, why);
  }

  void open(const YAML::Mark& mark, json values) {
    if (open_.size() >= text::kMaxJsonDepth) fail(mark, "nested too deep");
    if (lines_ && is_key()) fail(mark, "a key that is not text");
    mark_line(mark);
    open_.push_back(
        Open{.values = std::move(values), .place = lines_ ? place() : ""});
  }

  void close() {
    json done = std::move(open_.back().values);
    open_.pop_back();
    add(std::move(done));
  }

  void value(const YAML::Mark& mark, json one) {
    constexpr size_t kMost = 1'000'000;
    if (++seen_ > kMost) fail(mark, "over 1,000,000 values");
    mark_line(mark);
    if (lines_ && is_key() && one.is_string()) {
      const auto& key = one.get_ref<const std::string&>();
      if (open_.back().values.contains(key)) fail(mark, "a key is there twice");
      lines_->emplace(open_.back().place + "/" + key,
                      static_cast<uint64_t>(mark.line) + 1);
    }
    add(std::move(one));
  }

  void add(json one) {
    if (open_.empty()) {
      documents_.push_back(std::move(one));
      return;
    }
    Open& top = open_.back();
    if (top.values.is_array()) {
      top.values.push_back(std::move(one));
    } else if (!top.has_key) {
      top.key = one.is_string() ? one.get<std::string>() : one.dump();
      top.has_key = true;
    } else {
      top.values[top.key] = std::move(one);
      top.has_key = false;
    }
  }

  const std::string& path_;
  std::map<std::string, uint64_t>* lines_;
  json documents_ = json::array();
  std::vector<Open> open_;
  std::map<YAML::anchor_t, std::string> anchors_;
  size_t seen_ = 0;
};

json parse_documents(const std::string& text, const std::string& path,
                     YamlTree builder) {
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    throw input_error({path, {}}, "line {}: {}", error.mark.line + 1,
                      error.msg);
  }
  return builder.take();
}

}  // namespace

json read_yaml(const std::string& text, const std::string& path) {
  return parse_documents(text, path, YamlTree(path));
}

Settings read_settings(const std::string& text, const std::string& path) {
  Settings settings;
  json documents = parse_documents(text, path, YamlTree(path, &settings.lines));
  if (documents.size() != 1)
    throw input_error({path, {}}, "is empty; expected a YAML document");
  settings.tree = std::move(documents[0]);
  return settings;
}

}  // namespace ckpt::scan
