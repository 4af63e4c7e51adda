// SPDX-License-Identifier: Apache-2.0
// Putting a new name in place of nothing, of an empty directory, or of what
// stands there, without a moment in which the name is half-done.
#pragma once

#include <string>

namespace ckpt::io {

enum class RenameNew { kNothing, kOverEmpty };

// Renames where nothing stands (or, for directories, an empty one). False if
// something does: it stays as it is, whenever it came. RENAME_NOREPLACE, and
// where the file system lacks it: rename() of a directory, which no system
// lets replace more than an empty one, and link() + unlink() of a file; where
// there are no links either a look before rename(), under the target's lock.
// Throws kIo.
bool rename_new(const std::string& from, const std::string& to, RenameNew over);

// rename(). Throws kIo.
void replace_by_rename(const std::string& from, const std::string& to);

// Puts a directory in the place of another and returns where the other is
// now. RENAME_EXCHANGE, so that the name is never absent; where the file
// system lacks it two renames, by way of FROM.old. Throws kIo.
std::string trade_places(const std::string& from, const std::string& to);

// After an exchange by two renames that was stopped: puts the old one back if
// nothing is in its place, else removes it.
void restore_replaced(const std::string& old, const std::string& to);

}  // namespace ckpt::io
