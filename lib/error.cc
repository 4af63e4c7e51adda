// SPDX-License-Identifier: Apache-2.0
#include "ckpt/error.h"

#include <cerrno>
#include <cstring>

#include "lib/failures.h"

namespace ckpt {
namespace {

std::string compose(const Where& where, const std::string& problem) {
  std::string text;
  if (!where.path.empty()) text += where.path + ": ";
  if (!where.tensor.empty()) text += where.tensor + ": ";
  return text + problem;
}

}  // namespace

Error::Error(ExitCode code, Where where, std::string problem, std::string hint)
    : std::runtime_error(compose(where, problem)),
      code_(code),
      where_(std::move(where)),
      problem_(std::move(problem)),
      hint_(std::move(hint)) {
  if (code == ExitCode::kIo) failures::note(*this);
}

Error io_error(std::string path, std::string operation, int errnum) {
  if (errnum == EMFILE || errnum == ENFILE)
    return Error(ExitCode::kResource, {std::move(path), {}},
                 operation + ": " + std::strerror(errnum),
                 "raise the limit (`ulimit -n`), or take fewer --threads");
  const bool missing = errnum == ENOENT || errnum == ENOTDIR;
  return Error(missing ? ExitCode::kMissing : ExitCode::kIo,
               {std::move(path), {}}, operation + ": " + std::strerror(errnum));
}

}  // namespace ckpt
