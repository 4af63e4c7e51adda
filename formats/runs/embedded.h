// The data files of this folder, compiled into the program (cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace ckpt::runs {

struct Embedded {
  std::string_view name;  // the file's name without .json: "trainers"
  std::string_view text;
};

std::span<const Embedded> embedded();

// The text of a file by that name; empty if there is none.
std::string_view embedded_text(std::string_view name);

}  // namespace ckpt::runs
