// SPDX-License-Identifier: Apache-2.0
#include "lib/module.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>

#include "ckpt/error.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

struct Known {
  std::string_view name;
  std::string_view what;  // what needs it
  std::string_view how;   // how to get it
};

constexpr Known kKnown[] = {
    {"torch", "casts from integers",
     "scripts/build.sh --torch installs torch==2.13.0 (CPU is enough) and "
     "builds it"},
    {"mpi", "runs of several ranks",
     "install an MPI (libopenmpi-dev or a site's module) and run "
     "scripts/build.sh"},
    {"cuda", "--device cuda",
     "install the CUDA toolkit and run scripts/build.sh; --device cpu gives "
     "the same bytes"},
    {"cuda_host", "tests of --device cuda without a GPU",
     "it is built beside libckpt_cuda.so"},
};

const Known& known(std::string_view name) {
  for (const Known& module : kKnown)
    if (module.name == name) return module;
  throw bug_error({}, "no module is called '{}'", name);
}

std::string hint(const Known& module) {
  return fmt::format(
      "{}; where it lies elsewhere, name its directory in CKPT_MODULE_PATH",
      module.how);
}

// The directories of the program and of the shared library that this code may
// be part of.
std::vector<fs::path> own_directories() {
  std::vector<fs::path> found;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  if (!program.empty()) found.push_back(program.parent_path());
  Dl_info info;
  if (::dladdr(reinterpret_cast<void*>(&module_directories), &info) != 0 &&
      info.dli_fname) {
    const fs::path self = fs::canonical(info.dli_fname, ignored).parent_path();
    if (!self.empty() && (found.empty() || self != found.front()))
      found.push_back(self);
  }
  return found;
}

}  // namespace

std::vector<std::string> asked_module_directories() {
  std::vector<std::string> found;
  if (const char* variable = std::getenv("CKPT_MODULE_PATH")) {
    std::string_view rest = variable;
    while (!rest.empty()) {
      const size_t end = std::min(rest.find(':'), rest.size());
      if (end > 0) found.emplace_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  return found;
}

std::vector<std::string> module_directories() {
  std::vector<std::string> found = asked_module_directories();
  for (const fs::path& own : own_directories()) {
    found.push_back(own.string());
    found.push_back((own.parent_path() / "lib").string());
  }
  return found;
}

std::string find_module(std::string_view name) {
  for (const std::string& directory : module_directories()) {
    const std::string path = fmt::format("{}/libckpt_{}.so", directory, name);
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored)) return path;
  }
  return {};
}

std::string module_problem(const std::string& path) {
  // Left open: not every library survives being closed.
  return ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) ? "" : ::dlerror();
}

Error module_error(std::string_view name, const std::string& path,
                   const std::string& problem) {
  return resource_error({path, {}}, "the module for {} {}", known(name).what,
                        problem)
      .with_hint(hint(known(name)));
}

Module Module::open(std::string_view name) {
  const Known& module = known(name);
  const std::string path = find_module(name);
  if (path.empty())
    throw resource_error({},
                         "{} needs the module libckpt_{}.so, which is not "
                         "in {}",
                         module.what, name,
                         fmt::join(module_directories(), ", "))
        .with_hint(hint(module));
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    throw module_error(name, path,
                       fmt::format("can't be opened: {}", ::dlerror()));
  return Module(name, path, handle);
}

void* Module::symbol(const char* name) const {
  void* found = ::dlsym(handle_, name);
  if (!found)
    throw module_error(name_, path_, fmt::format("has no symbol {}", name));
  return found;
}

}  // namespace ckpt
