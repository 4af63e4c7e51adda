// SPDX-License-Identifier: Apache-2.0
// Removes what is below a name. Never follows a symbolic link, and never
// throws: what can't be removed (NFS keeps open files as .nfsXXXX) is left, and
// the first reason is returned.
#pragma once

#include <functional>
#include <string>
#include <system_error>

namespace ckpt::io {

// Removes a file, a link, or a directory with everything in it. No error if it
// does not exist.
std::error_code remove_tree(const std::string& path);

// Removes what is in a directory, except files whose path below it `keep`
// accepts, and the directories above those.
std::error_code remove_others(
    const std::string& path,
    const std::function<bool(const std::string& relative)>& keep);

}  // namespace ckpt::io
