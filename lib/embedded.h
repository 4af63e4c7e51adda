// SPDX-License-Identifier: Apache-2.0
// Data files of a room, compiled into its library: models/families/*.json are
// one family each, formats/*/*.json are tables, app/page/* make up the pages
// for a browser. CMake generates the definitions (cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace ckpt {

struct Embedded {
  std::string_view name;  // the file's name without .json: "llama"
  std::string_view text;
};

}  // namespace ckpt

namespace ckpt::families {

std::span<const Embedded> embedded();
// The text of the file of that name; empty if absent.
std::string_view embedded_text(std::string_view name);

}  // namespace ckpt::families

namespace ckpt::runs {

std::string_view embedded_text(std::string_view name);

}  // namespace ckpt::runs

namespace ckpt::scan {

std::string_view embedded_text(std::string_view name);

}  // namespace ckpt::scan

namespace ckpt::page {

std::string_view embedded_text(std::string_view name);

}  // namespace ckpt::page
