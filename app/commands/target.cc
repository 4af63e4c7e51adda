// SPDX-License-Identifier: Apache-2.0
#include "app/commands/target.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "app/options/target_name.h"
#include "ckpt/error.h"
#include "formats/format.h"
#include "formats/options.h"
#include "lib/io/file.h"

namespace ckpt::app {
namespace {

// A flag for each option of a format, except those that commands provide.
void add_format_options(CLI::App& app, decltype(Layout::options)& given) {
  for (const FormatOption* option : formats::all_options()) {
    if (option->help.empty()) continue;
    const std::string name = "--" + option->name;
    if (option->type.empty()) {
      app.add_flag_callback(
             name, [&given, option] { given[option->name] = formats::kSet; },
             option->help)
          ->group(option->group);
      continue;
    }
    CLI::Option* added = app.add_option_function<std::string>(
                                name,
                                [&given, option](const std::string& text) {
                                  if (option->check)
                                    option->check(*option, text);
                                  given[option->name] = text;
                                },
                                option->help)
                             ->type_name(option->type)
                             ->group(option->group);
    // A choice, so that completion knows its words.
    if (option->type.find('|') != option->type.npos)
      added->type_name("NAME")->check(
          CLI::IsMember(CLI::detail::split(option->type, '|')));
  }
}

// Options of commands that some formats use, too.
void share(const WriteRequest& request, const TargetOptions& options,
           Layout& layout) {
  if (options.vocab_size != 0 && formats::takes(layout.format, "vocab-size"))
    layout.options["vocab-size"] = std::to_string(options.vocab_size);
  if (!request.select.blocks.empty() && formats::takes(layout.format, "blocks"))
    layout.options["blocks"] = request.select.blocks;
}

}  // namespace

std::string own_format(const WriteRequest& request, const Catalog& source) {
  const std::string_view step = formats::traits_of(source.format).rewritten_as;
  const bool becomes = source.run && !step.empty() &&
                       io::is_directory(source.path) &&
                       (file_format(request.target_path).empty() ||
                        is_named_alike(source.path, request.target_path));
  return becomes ? std::string(step) : source.format;
}

std::string own_container(const WriteRequest& request, const Catalog& source) {
  if (!source.run || !request.select.model_only)
    return own_format(request, source);
  return formats::traits_of(source.format).is_container
             ? source.format
             : std::string(formats::usual_container());
}

namespace {

// A folder with a file's name is what nobody looks for: last.ckpt is
// Lightning's file, or the folder that Lightning names like one.
bool is_single_file(const WriteRequest& request, const TargetOptions& options,
                    const Catalog& source, const std::string& format) {
  const std::string file = file_format(request.target_path);
  const bool alike = options.to.empty() && io::is_directory(source.path) &&
                     is_named_alike(source.path, request.target_path);
  if (file.empty() || alike) return false;
  if (file == format) return true;
  if (formats::traits_of(format).any_name) return false;
  if (!options.to.empty())
    throw usage_error({request.target_path, {}},
                      "--to {} does not fit the ending of a {} file", format,
                      file)
        .with_hint("name a directory, or leave --to out");
  throw usage_error({request.target_path, {}},
                    "reshard writes {} again, as a directory; this is the "
                    "name of a {} file",
                    format, file)
      .with_hint(fmt::format(
          "name a directory (a trailing slash makes any name one); --to {} "
          "writes a file{}",
          file,
          source.run ? "; --to run --trainer lightning writes Lightning's"
                     : ""));
}

}  // namespace

void add_target_options(CLI::App& app, TargetOptions& options) {
  app.add_option("--to", options.to,
                 "Format of the target (default: by the ending of DST, or the "
                 "source's)")
      ->type_name("FORMAT")
      ->group("Target");
  add_topology_options(app, options.topology);
  app.add_option("--vocab-size", options.vocab_size, "Unpadded vocabulary size")
      ->type_name("N")
      ->check(CLI::Range(uint32_t{1}, uint32_t{1} << 30))
      ->group("Target");
  add_format_options(app, options.options);
}

void check_target_options(const TargetOptions& options) {
  if (options.to.empty()) return;
  Layout layout;
  layout.format = options.to;
  layout.options = options.options;
  formats::check_options(layout);
}

Layout make_layout(const WriteRequest& request, const TargetOptions& options,
                   const Catalog& source) {
  Layout layout;
  layout.format = options.to.empty() ? own_format(request, source) : options.to;
  const formats::Traits& traits = formats::traits_of(layout.format);
  layout.options = options.options;
  share(request, options, layout);
  formats::check_options(layout);
  layout.single_file = is_single_file(request, options, source, layout.format);
  // Refused if a left side is not what the source has.
  const formats::Asked asked = options.topology.asked();
  layout.topology = options.topology.resolve(source.topology);
  if (!options.to.empty() && !same_grid(source.format, layout.format))
    layout.topology = asked.alone();
  layout.name = io::base_name(request.target_path);
  if (traits.settle) traits.settle(source, asked, layout);
  return layout;
}

}  // namespace ckpt::app
