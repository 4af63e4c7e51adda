// SPDX-License-Identifier: Apache-2.0
#include "api/write/manifests.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "api/contents.h"
#include "api/write/decoded.h"
#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/traits.h"
#include "lib/io/file.h"
#include "lib/manifest.h"
#include "reshard/plan/planner.h"
#include "reshard/sources/made.h"

namespace ckpt::library {
namespace {

// Sources whose tensors reach the target under other names, or in other
// arrangements: what was read of them on the way adds up to nothing that the
// source's own manifest knows.

constexpr std::string_view kListHint =
    "`ckpt verify` lists all that changed since it was written; "
    "--ignore-checksums copies what is there";

// For all ways to find it.
Error differs(const Catalog& source, const std::string& tensor,
              const Digest& found, const Digest& written,
              const std::string& manifest_path) {
  return input_error({source.path, tensor},
                     "has digest {}, it was written with {} ({})", found.hex(),
                     written.hex(), manifest_path)
      .with_hint(std::string(kListHint));
}

// Rows of padding may come and go where a format has them.
bool may_be_padded(const Catalog& source, const Shape& shape,
                   const Manifest::Entry& written) {
  return formats::traits_of(source.format).pads_rows && is_part(shape, written);
}

// Opens the checkpoint again, reads these of its tensors, and compares their
// shapes and digests with the manifest's. Throws input_error naming the first
// that differs.
void check_by_reading(const Catalog& source, const Manifest& manifest,
                      const std::string& manifest_path,
                      const std::set<std::string>& names,
                      const reshard::RunOptions& options) {
  // A trainer's step is more than the container named by its format.
  Catalog again = formats::open(source.path,
                                source.run ? std::string() : source.format, {});
  std::erase_if(again.tensors, [&](const Tensor& tensor) {
    return !names.contains(tensor.name);
  });
  locate(again);
  const reshard::Plan plan = reshard::make_read_plan(again, false);
  reshard::RunOptions reading;
  reading.threads = options.threads;
  reading.max_mem = options.max_mem;
  reading.io = options.io;
  reading.progress = options.progress;
  reading.progress.begin("checking the source", plan.bytes_read);
  reshard::Output nowhere;
  const reshard::RunResult result = reshard::run(plan, again, nowhere, reading);
  reading.progress.end();
  for (size_t i = 0; i < again.tensors.size(); ++i) {
    const Manifest::Entry& entry = manifest.tensors.at(again.tensors[i].name);
    if (!entry.unproven.empty()) continue;
    const Tensor& tensor = again.tensors[i];
    if (tensor.dtype != entry.dtype ||
        may_be_padded(source, tensor.shape, entry))
      continue;
    if (tensor.shape != entry.shape)
      throw input_error(
          {source.path, tensor.name}, "is {}, it was written as {} ({})",
          to_string(tensor.shape), to_string(entry.shape), manifest_path)
          .with_hint(std::string(kListHint));
    if (entry.digest != result.source[i])
      throw differs(source, tensor.name, result.source[i], entry.digest,
                    manifest_path);
  }
}

Manifest manifest_of(const Prepared& prepared,
                     const reshard::RunResult& result) {
  const reshard::Plan& plan = prepared.plan;
  Manifest manifest;
  if (prepared.known) {
    manifest = *prepared.known;
  } else {
    manifest.format = prepared.target.catalog.format;
    manifest.source_path = prepared.source.path;
    manifest.source_format = prepared.source.format;
  }
  for (const TargetFile& file : prepared.target.files)
    manifest.files[file.path] = file.size;
  if (prepared.known) return manifest;  // the plan has whole files
  const std::set<std::string> elsewhere = digested_elsewhere(prepared.source);
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const Tensor& tensor = prepared.target.catalog.tensors[i];
    Manifest::Entry& entry = manifest.tensors[tensor.name];
    entry.dtype = tensor.dtype;
    entry.shape = tensor.shape;
    entry.digest = result.target[i];
    if (const auto why = prepared.unproven.tensors.find(tensor.name);
        why != prepared.unproven.tensors.end())
      entry.unproven = why->second;
    if (plan.tensors[i].casts() && !elsewhere.contains(plan.tensors[i].name))
      entry.source = {plan.tensors[i].source_dtype, result.source[i]};
  }
  return manifest;
}

}  // namespace

uint64_t write_manifest(const Prepared& prepared,
                        const reshard::RunResult& result,
                        io::Staging& staging) {
  Manifest manifest = manifest_of(prepared, result);
  add_contents(prepared, staging.root(), manifest);
  const std::string text = to_json(manifest);
  std::string path(kManifestName);
  if (prepared.single_file) path = io::base_name(staging.target()) + path;
  staging.create(path, text.size());
  io::Handle::open_write(io::join(staging.root(), path))
      .write(0, std::string_view(text));
  return text.size();
}

std::string source_manifest(const Catalog& source) {
  for (const std::string& root : {source.path, source.root}) {
    const std::string path = manifest_path(root);
    if (root.empty() || !io::is_file(path)) continue;
    if (io::is_file(root) &&
        is_stale(read_manifest(path), io::Handle::open_read(root)))
      continue;
    return path;
  }
  return {};
}

namespace {

// The tensors that differ from what is stored because an adapter was added.
std::set<std::string_view> made_tensors(const Catalog& source) {
  std::set<std::string_view> names;
  for (const Tensor& tensor : source.tensors)
    for (const Piece& piece : tensor.pieces)
      if (reshard::is_made(source.files.at(piece.extent.file)))
        names.insert(tensor.name);
  return names;
}

// True for Megatron-Bridge's adapters, whose rows are rearranged for the
// target's ranks (formats/megatron/canonical/adapter_rows.h). Names don't
// change.
bool may_be_arranged(std::string_view name) {
  return name.find(".linear_fc1.adapter.") != name.npos;
}

}  // namespace

// Under another name it may be a part of anything.
void each_unproven(
    const Prepared& prepared,
    const std::function<void(size_t, const std::string&)>& tell) {
  const std::string path = source_manifest(prepared.source);
  if (path.empty()) return;
  const Manifest manifest = read_manifest(path);
  std::vector<std::string> stored;
  for (const reshard::PlannedTensor& tensor : prepared.plan.tensors)
    stored.push_back(edit_of(prepared.edits, tensor.name).stored);
  const bool same_names = std::ranges::any_of(
      stored,
      [&](const std::string& name) { return manifest.tensors.contains(name); });
  for (const auto& [name, entry] : manifest.tensors) {
    if (entry.unproven.empty()) continue;
    for (size_t i = 0; i < stored.size(); ++i)
      if (!same_names || stored[i] == name)
        tell(i, fmt::format("{} is unproven in the source: {}", name,
                            entry.unproven));
  }
}

// If the source was written by ckpt, its manifest says what was written.
// Tensors are found by their stored name or, if names have changed, by any
// equal digest. Those that remain were cut, taken apart or put together on the
// way, and are read again as stored.
void check_source_manifest(const Prepared& prepared,
                           const reshard::RunResult& result,
                           const reshard::RunOptions& options,
                           const OnWrong& wrong) {
  const std::string path = source_manifest(prepared.source);
  if (path.empty()) return;
  const Manifest manifest = read_manifest(path);
  std::set<std::string> unseen;
  std::map<std::string, std::vector<std::string>> by_digest;
  for (const auto& [name, entry] : manifest.tensors) {
    if (!entry.unproven.empty()) continue;
    unseen.insert(name);
    by_digest[entry.digest.hex()].push_back(name);
  }
  const auto made = made_tensors(prepared.source);
  const std::set<std::string> elsewhere = digested_elsewhere(prepared.source);
  bool rearranged = !elsewhere.empty();
  std::set<std::string> cut;  // or tensors of another shape with the same bytes
  for (size_t i = 0; i < prepared.plan.tensors.size(); ++i) {
    const std::string& name = prepared.plan.tensors[i].name;
    if (elsewhere.contains(name)) continue;
    const Edit edit = edit_of(prepared.edits, name);
    const auto entry = manifest.tensors.find(edit.stored);
    if (made.contains(name)) {  // made of what the manifest has
      rearranged = true;
      continue;
    }
    if (entry == manifest.tensors.end()) {
      const auto same = by_digest.find(result.source[i].hex());
      if (same == by_digest.end()) {
        rearranged = true;
      } else if (!same->second.empty()) {
        unseen.erase(same->second.back());
        same->second.pop_back();
      }
      continue;
    }
    const Manifest::Entry& written = entry->second;
    if (!written.unproven.empty()) continue;
    const Digest& found = result.source[i];
    const Shape& shape = prepared.plan.tensors[i].shape;
    const bool same = written.digest == found;
    const bool padded = may_be_padded(prepared.source, shape, written);
    if (edit.cut || (shape != written.shape && (same || !padded)) ||
        (!same && may_be_arranged(name)))
      cut.insert(edit.stored);
    else if (!same && !padded)
      wrong(i,
            differs(prepared.source, edit.stored, found, written.digest, path));
    unseen.erase(edit.stored);
  }
  if (rearranged) cut.merge(unseen);
  if (cut.empty()) return;
  try {
    check_by_reading(prepared.source, manifest, path, cut, options);
  } catch (const Error& error) {
    // Nobody knows into which tensors it was put.
    if (error.code() != ExitCode::kDamaged) throw;
    for (size_t i = 0; i < prepared.plan.tensors.size(); ++i) wrong(i, error);
  }
}

void check_against_manifest(const Catalog& source,
                            const reshard::RunOptions& options) {
  const std::string path = source_manifest(source);
  if (path.empty()) return;
  const Manifest manifest = read_manifest(path);
  std::set<std::string> names;
  for (const Tensor& tensor : source.tensors)
    if (manifest.tensors.contains(tensor.name)) names.insert(tensor.name);
  if (!names.empty()) check_by_reading(source, manifest, path, names, options);
}

}  // namespace ckpt::library
