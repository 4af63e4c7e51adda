// SPDX-License-Identifier: Apache-2.0
#include "api/salvage/shadow.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "lib/io/remove.h"
#include "lib/io/staging.h"

namespace ckpt::library {
namespace {

namespace fs = std::filesystem;

// The directory is this name with a dot before it, and so is the lock.
std::string name_beside(const std::string& target, std::string_view before) {
  const std::string place = io::staging_place(target);
  return io::join(io::parent(place),
                  std::string(before) + io::salvage_name(place));
}

}  // namespace

Shadow::Shadow(const std::string& target)
    : root_(name_beside(target, ".")), lock_(name_beside(target, "")) {
  std::error_code failed;
  const fs::file_status before = fs::symlink_status(root_, failed);
  if (fs::exists(before) && !fs::is_directory(before))
    throw unsafe_error({root_, {}}, "is not a directory that salvage made")
        .with_hint("remove it, or choose another target");
  // Of a run that was killed.
  if (fs::exists(before)) failed = io::remove_tree(root_);
  if (!failed || failed == std::errc::no_such_file_or_directory)
    fs::create_directory(root_, failed);
  if (failed)
    throw Error(ExitCode::kIo, {root_, {}}, "mkdir: " + failed.message(),
                "salvage puts rebuilt files beside DST first");
}

Shadow::~Shadow() { io::remove_tree(root_); }

std::string Shadow::path(const std::string& file) const {
  return file.empty() ? root_ : io::join(root_, file);
}

void Shadow::make_directory(const std::string& name) {
  std::error_code failed;
  fs::create_directories(path(name), failed);
  if (failed)
    throw Error(ExitCode::kIo, {path(name), {}}, "mkdir: " + failed.message(),
                "");
}

void Shadow::add(const std::string& file) {
  remove(file);
  std::error_code failed;
  fs::create_directories(io::parent(path(file)), failed);
  files_.insert(std::ranges::lower_bound(files_, file), file);
}

void Shadow::remove(const std::string& file) {
  std::erase(files_, file);
  std::error_code ignored;
  fs::remove(path(file), ignored);
}

void Shadow::link(const std::string& file, const std::string& source) {
  add(file);
  std::error_code failed;
  fs::create_symlink(fs::absolute(source), path(file), failed);
  if (failed)
    throw Error(ExitCode::kIo, {path(file), {}}, "symlink: " + failed.message(),
                "");
}

void Shadow::write(const std::string& file, const std::string& bytes) {
  add(file);
  const io::Handle to = io::Handle::create(path(file));
  to.write(0, std::string_view(bytes));
}

void Shadow::build(const std::string& file, const salvage::Repair& repair) {
  add(file);
  const io::Handle to = io::Handle::create(path(file));
  to.allocate(repair.size);
  for (const salvage::Copy& copy : repair.copies) {
    if (interrupted()) throw Interrupted("stopped; nothing was written");
    io::copy_range(io::Handle::open_read(copy.from), copy.from_offset, to,
                   copy.offset, copy.size);
  }
  for (const Literal& literal : repair.literals)
    to.write(literal.offset, std::string_view(literal.bytes));
  seal(file, repair.crcs);
}

// A write through a link would change the source.
io::Handle Shadow::edit(const std::string& file) const {
  if (fs::is_symlink(path(file)))
    throw bug_error({path(file), {}}, "a link is written into");
  return io::Handle::open_write(path(file));
}

void Shadow::seal(const std::string& file, const std::vector<LateCrc>& crcs) {
  if (crcs.empty()) return;
  const io::Handle from = io::Handle::open_read(path(file));
  const io::Handle to = edit(file);
  for (const LateCrc& late : crcs) {
    const uint32_t crc = salvage::crc_of(from, {late.begin, late.end});
    for (const uint64_t at : late.at)
      to.write(at, std::as_bytes(std::span(&crc, 1)));
  }
}

}  // namespace ckpt::library
