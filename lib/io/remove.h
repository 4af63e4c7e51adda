// SPDX-License-Identifier: Apache-2.0
// Removing what stands below a name. Never follows a symbolic link, and never
// throws: what can't be removed (NFS keeps files that are open as .nfsXXXX) is
// left, and the first reason is returned.
#pragma once

#include <functional>
#include <string>
#include <system_error>

namespace ckpt::io {

// A file, a link, or a directory with all that is in it. No error if it does
// not exist.
std::error_code remove_tree(const std::string& path);

// What is in a directory but for files whose path below it `keep` takes, and
// the directories above those.
std::error_code remove_others(
    const std::string& path,
    const std::function<bool(const std::string& relative)>& keep);

}  // namespace ckpt::io
