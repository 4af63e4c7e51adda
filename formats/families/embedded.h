// The family files, compiled into the program: one FILE.json of this folder
// is one family. CMake makes the definition (cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace ckpt::families {

struct Embedded {
  std::string_view name;  // the file's name without .json: "llama"
  std::string_view text;
};

std::span<const Embedded> embedded();

// The text of a file by that name; empty if there is none.
std::string_view embedded_text(std::string_view name);

}  // namespace ckpt::families
