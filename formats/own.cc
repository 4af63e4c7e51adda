// SPDX-License-Identifier: Apache-2.0
#include "formats/own.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <list>
#include <mutex>
#include <set>

#include "ckpt/error.h"
#include "ckpt/format.h"
#include "formats/megatron/strategy.h"
#include "lib/io/file.h"
#include "lib/module.h"
#include "lib/text/format.h"
#include "models/own.h"

namespace ckpt::formats {
namespace {

namespace fs = std::filesystem;

// Adapts the caller's reader to the interface of our own.
class OwnReader final : public Reader {
 public:
  OwnReader(std::string name, std::unique_ptr<FormatReader> reader)
      : name_(std::move(name)), reader_(std::move(reader)) {}
  std::string_view name() const override { return name_; }
  Support supports(const std::string& path) const override {
    Support support;
    if (is_strategys(path, support.why)) return {true, support.why};
    support.yes = reader_->supports(path, support.why);
    return support;
  }
  Catalog read_catalog(const std::string& path,
                       const ReadOptions&) const override {
    Catalog catalog = reader_->read_catalog(path);
    catalog.format = name_;
    if (catalog.path.empty()) catalog.path = path;
    check(catalog);
    return catalog;
  }

 private:
  // True if a strategy gives the directory to this format.
  bool is_strategys(const std::string& path, std::string& why) const {
    if (!io::is_directory(path)) return false;
    std::optional<megatron::Config> config;
    try {
      config = megatron::read_config(path);
    } catch (const Error&) {
      return false;  // damaged: the reader that knows the format reports it
    }
    if (!config) return false;
    const megatron::Strategy* const found =
        megatron::look_up(megatron::Action::kLoadSharded,
                          config->sharded_backend, config->sharded_version);
    if (!found || found->format != name_) return false;
    why = fmt::format("{} says sharded_backend {} {}", megatron::kConfigFile,
                      text::printable(found->backend), found->version);
    return true;
  }

  // Checks what the engine assumes of any reader.
  static void check(const Catalog& catalog) {
    std::set<std::string_view> names;
    for (const Tensor& tensor : catalog.tensors) {
      if (!names.insert(tensor.name).second)
        throw input_error({catalog.path, tensor.name}, "is there twice");
      for (const Piece& piece : tensor.pieces) check(catalog, tensor, piece);
    }
  }
  static void check(const Catalog& catalog, const Tensor& tensor,
                    const Piece& piece) {
    const Where where{catalog.path, tensor.name};
    if (!inside(piece.box, tensor.shape))
      throw input_error(where, "a piece at {} of shape {} in shape {}",
                        to_string(piece.box.offset), to_string(piece.box.shape),
                        to_string(tensor.shape));
    if (piece.extent.file >= catalog.files.size())
      throw input_error(where, "lies in file {} of {}", piece.extent.file,
                        catalog.files.size());
    const File& file = catalog.files[piece.extent.file];
    if (!piece.extent.strides.empty() || piece.flat || piece.extent.archive)
      return;
    const auto bytes = byte_size(tensor.dtype, piece.box.shape);
    if (!bytes || piece.extent.offset > file.size ||
        *bytes > file.size - piece.extent.offset)
      throw input_error({file.path, tensor.name},
                        "{} bytes at {} in a file of {}", bytes.value_or(0),
                        piece.extent.offset, file.size);
  }

  const std::string name_;
  const std::unique_ptr<FormatReader> reader_;
};

class OwnWriter final : public Writer {
 public:
  OwnWriter(std::string name, std::unique_ptr<FormatWriter> writer)
      : name_(std::move(name)), writer_(std::move(writer)) {}
  std::string_view name() const override { return name_; }
  Target lay_out(const Catalog& source, const Layout& layout) const override {
    Target target = writer_->lay_out(source, layout);
    target.catalog.format = name_;
    return target;
  }

 private:
  const std::string name_;
  const std::unique_ptr<FormatWriter> writer_;
};

void check_name(const NewFormat& format) {
  const bool plain =
      !format.name.empty() && std::ranges::all_of(format.name, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
      });
  if (!plain)
    throw usage_error({}, "a format is named \"{}\": a-z, 0-9 and _ make one",
                      text::printable(format.name));
  if (!format.reader && !format.writer)
    throw usage_error({}, "format {} neither reads nor writes", format.name);
}

megatron::Action action_of(const std::string& name) {
  for (const auto action :
       {megatron::Action::kLoadSharded, megatron::Action::kSaveSharded})
    if (megatron::name(action) == name) return action;
  throw usage_error({}, "no strategies are registered to {}",
                    text::printable(name))
      .with_hint("load_sharded and save_sharded are the actions");
}

class Registered final : public FormatRegistry {
 public:
  void add(NewFormat format) override {
    check_name(format);
    const std::lock_guard lock(mutex_);
    if (closed_)
      throw usage_error({},
                        "format {} is registered after the formats were used",
                        format.name)
          .with_hint("register it before the first checkpoint is opened");
    formats_.push_back(std::move(format));
  }

  void add_strategy(ckpt::Strategy strategy) override {
    const auto action = action_of(strategy.action);
    const std::lock_guard lock(mutex_);
    if (closed_)
      throw usage_error({},
                        "a strategy for {} is registered after the formats "
                        "were used",
                        strategy.backend)
          .with_hint("register it before the first checkpoint is opened");
    if (!megatron::add_strategy(
            {action, strategy.backend, strategy.version, strategy.format}))
      throw usage_error({}, "there is a strategy to {} {} {}", strategy.action,
                        strategy.backend, strategy.version);
  }

  void add_family(const std::string& name, const std::string& json) override {
    register_family(name, json);
  }

  std::vector<Format> take(const std::vector<Format>& taken) {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    std::vector<Format> own;
    for (NewFormat& added : formats_) {
      const auto same = [&](const Format& format) {
        return format.name == added.name;
      };
      if (std::ranges::any_of(taken, same) || std::ranges::any_of(own, same))
        throw usage_error({}, "two formats are named {}", added.name);
      Format format{.name = added.name,
                    .what = added.what,
                    .reader = nullptr,
                    .writer = nullptr,
                    .traits = {.dialect = added.dialect,
                               .any_tensors = added.dialect.empty(),
                               .options = std::move(added.options)}};
      if (added.reader)
        format.reader =
            std::make_unique<OwnReader>(added.name, std::move(added.reader));
      if (added.writer)
        format.writer =
            std::make_unique<OwnWriter>(added.name, std::move(added.writer));
      own.push_back(std::move(format));
    }
    return own;
  }

 private:
  std::mutex mutex_;
  bool closed_ = false;
  std::list<NewFormat> formats_;  // the rows point to their names
};

Registered& registered() {
  static Registered all;
  return all;
}

std::vector<std::string> module_files() {
  std::vector<std::string> files;
  for (const std::string& directory : asked_module_directories()) {
    std::vector<std::string> here;
    std::error_code ignored;
    for (const fs::directory_entry& entry :
         fs::directory_iterator(directory, ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("libckpt_format_") && name.ends_with(".so"))
        here.push_back(entry.path().string());
    }
    std::ranges::sort(here);
    files.insert(files.end(), here.begin(), here.end());
  }
  return files;
}

[[noreturn]] void unfit(const std::string& path, const std::string& problem) {
  throw resource_error({path, {}}, "a module of formats that {}", problem)
      .with_hint(
          "build it against this version's ckpt/format.h, or take its "
          "directory out of CKPT_MODULE_PATH");
}

// It stays open until the program ends.
void load(const std::string& path) {
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) unfit(path, fmt::format("can't be opened: {}", ::dlerror()));
  using Abi = const char* (*)();
  using Register = void (*)(FormatRegistry&);
  const auto abi = reinterpret_cast<Abi>(::dlsym(handle, "ckpt_format_abi"));
  const auto add =
      reinterpret_cast<Register>(::dlsym(handle, "ckpt_register_formats"));
  if (!abi || !add) unfit(path, "registers none");
  if (std::string_view(abi()) != kFormatAbi)
    unfit(path, fmt::format("was built for \"{}\", this is \"{}\"",
                            text::printable(abi()), kFormatAbi));
  add(registered());
}

void load_modules() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const std::string& file : module_files()) load(file);
  });
}

// Families are below formats, and may be asked for first.
[[maybe_unused]] const bool kBringsFamilies =
    families::before_reading(load_modules);

}  // namespace

std::vector<Format> own_formats(const std::vector<Format>& taken) {
  load_modules();
  return registered().take(taken);
}

}  // namespace ckpt::formats

namespace ckpt {

void register_format(NewFormat format) {
  formats::registered().add(std::move(format));
}

void register_strategy(Strategy strategy) {
  formats::registered().add_strategy(std::move(strategy));
}

std::vector<Strategy> strategies() {
  formats::all_formats();  // loads modules
  std::vector<Strategy> all;
  for (const megatron::Strategy& one : megatron::strategies())
    if (!one.format.empty())
      all.push_back({std::string(megatron::name(one.action)), one.backend,
                     one.version, one.format});
  return all;
}

Strategy find_strategy(const std::string& action, const std::string& backend,
                       uint64_t version) {
  const auto wanted = formats::action_of(action);
  formats::all_formats();
  const megatron::Strategy* const found =
      megatron::look_up(wanted, backend, version);
  if (!found)
    throw usage_error({}, "no way to {} with backend '{}' version {}", action,
                      text::printable(backend), version)
        .with_hint("supported are " + megatron::supported(wanted));
  return {action, found->backend, found->version, found->format};
}

}  // namespace ckpt
