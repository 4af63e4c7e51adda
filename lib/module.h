// SPDX-License-Identifier: Apache-2.0
// Optional modules: shared libraries that are opened when a command first needs
// one, so that the program starts in milliseconds and works without them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ckpt {

// Where libckpt_NAME.so is searched for, in order: the directories in
// CKPT_MODULE_PATH (separated by colons), then the directory of this program or
// library, and ../lib beside it.
std::vector<std::string> module_directories();

// Only those that CKPT_MODULE_PATH names.
std::vector<std::string> asked_module_directories();

// The path of module "torch", "mpi" or "cuda" if it exists, else "". Opens
// nothing.
std::string find_module(std::string_view name);

// Why the module at `path` can't be opened, in the loader's words; "" if it
// can. It may have been built where its libraries were, and they are gone.
// Opens it, which takes a tenth of a second for libtorch.
std::string module_problem(const std::string& path);

// An open module; it stays open until the program ends.
class Module {
 public:
  // Throws a resource_error that says where the module was searched for, or why
  // it can't be opened, and how to get it.
  static Module open(std::string_view name);

  // Returns a function of the module; throws resource_error if it has none of
  // that name.
  void* symbol(const char* name) const;
  const std::string& path() const { return path_; }

 private:
  Module(std::string_view name, std::string path, void* handle)
      : name_(name), path_(std::move(path)), handle_(handle) {}
  std::string name_;
  std::string path_;
  void* handle_;
};

// The error for a module that doesn't fit this program.
class Error;
Error module_error(std::string_view name, const std::string& path,
                   const std::string& problem);

}  // namespace ckpt
