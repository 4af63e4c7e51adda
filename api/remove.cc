// SPDX-License-Identifier: Apache-2.0
// Removes tensors from a distributed checkpoint in place. The order of the
// steps makes it safe: the old index is in use until the new one is whole and
// on the disk, and nothing that an index names is ever deleted.
//
//   .metadata.tmp written and synced
//   .metadata.bck = .metadata            a link
//   .metadata.tmp renamed to .metadata
//   manifests rewritten, data files deleted, .metadata.bck deleted
#include <unistd.h>

#include <cerrno>
#include <map>
#include <set>

#include "ckpt/sharded.h"
#include "formats/dcp/metadata.h"
#include "formats/format.h"
#include "lib/hash/sha256.h"
#include "lib/io/file.h"
#include "lib/manifest.h"
#include "lib/pickle/decode.h"
#include "lib/pickle/encode.h"
#include "lib/text/json.h"

namespace ckpt {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

constexpr char kIndex[] = ".metadata";
constexpr char kIntegrity[] = "integrity.json";
constexpr uint64_t kMostIntegrity = uint64_t{256} << 20;

// The index as a value tree, so that what is unknown here stays as it was.
class Index {
 public:
  explicit Index(const std::string& path) : path_(path) {
    const io::Handle file = io::Handle::open_read(path);
    document_ = pickle::decode(file, 0, file.size()).document;
    root_ = document_->root();
    if (!document_->is(root_, Type::kCall))
      damaged("its root is not an object");
    state_ = document_->call(root_).state;
    if (!document_->is(state_, Type::kDict)) damaged("its root has no fields");
  }

  // Leaves out what `goes` is true for, and reports where each item was.
  template <class Goes, class Item>
  void filter(Goes goes, Item item) {
    std::vector<Id> fields = items(state_);
    for (size_t i = 0; i + 1 < fields.size(); i += 2) {
      const std::string_view name = text(fields[i]);
      if (name == "all_local_plans") {
        fields.erase(fields.begin() + static_cast<std::ptrdiff_t>(i),
                     fields.begin() + static_cast<std::ptrdiff_t>(i) + 2);
        i -= 2;  // the writers' plans refer to what was removed
      } else if (name == "storage_data") {
        fields[i + 1] = filtered(fields[i + 1], [&](Id key, Id value) {
          const std::string fqn(text(field(key, "fqn")));
          const bool gone = goes(fqn);
          item(value_of(value), gone);
          return gone;
        });
      } else if (name == "state_dict_metadata" || name == "planner_data" ||
                 name == "mcore_data") {
        fields[i + 1] = filtered(fields[i + 1], [&](Id key, Id) {
          return document_->is(key, Type::kString) &&
                 goes(std::string(text(key)));
        });
      }
    }
    document_->set_state(root_, document_->add_container(Type::kDict, fields));
  }

  std::string encoded() const { return pickle::encode(*document_); }

  struct Place {
    std::string file;
    uint64_t bytes = 0;
  };

 private:
  [[noreturn]] void damaged(const char* what) const {
    throw input_error({path_, {}}, "{}", what);
  }
  std::vector<Id> items(Id id) const {
    const auto all = document_->items(id);
    return {all.begin(), all.end()};
  }
  std::string_view text(Id id) const {
    if (!document_->is(id, Type::kString)) damaged("a name in it is not a str");
    return document_->text(id);
  }
  Id field(Id object, std::string_view name) const {
    if (!document_->is(object, Type::kCall)) damaged("an item has no fields");
    return document_->find(document_->call(object).state, name);
  }
  Place value_of(Id info) const {
    const auto length = document_->as_int(field(info, "length"));
    return {std::string(text(field(info, "relative_path"))),
            length ? static_cast<uint64_t>(*length) : 0};
  }

  template <class Gone>
  Id filtered(Id dict, Gone gone) {
    const auto all = document_->as_pairs(dict);
    if (!all) return dict;  // None
    std::vector<Id> kept;
    for (size_t i = 0; i + 1 < all->size(); i += 2)
      if (!gone((*all)[i], (*all)[i + 1]))
        kept.insert(kept.end(), {(*all)[i], (*all)[i + 1]});
    return document_->add_container(Type::kDict, kept);
  }

  const std::string path_;
  std::shared_ptr<Document> document_;
  Id root_ = kNoId;
  Id state_ = kNoId;
};

void write_synced(const std::string& path, const std::string& bytes) {
  ::unlink(path.c_str());
  const io::Handle file = io::Handle::create(path);
  file.write(0, std::string_view(bytes));
  file.sync();
}

void move(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw io_error(to, "cannot rename to", errno);
}

void replace(const std::string& directory, const std::string& name,
             const std::string& bytes) {
  const std::string path = io::join(directory, name);
  write_synced(path + ".tmp", bytes);
  move(path + ".tmp", path);
  io::sync_directory(directory);
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    throw io_error(path, "cannot delete", errno);
}

// integrity.json without the removed files, and with the new index. ckpt's own
// manifest is left out: it changes after this.
std::string new_integrity(const std::string& directory,
                          const std::vector<std::string>& gone,
                          const std::string& index) {
  const std::string path = io::join(directory, kIntegrity);
  nlohmann::json manifest =
      text::parse_json(io::read_file(path, kMostIntegrity), path);
  if (!manifest.is_object() || !manifest["files"].is_object())
    throw input_error({path, {}}, "has no object of files");
  nlohmann::json& files = manifest["files"];
  for (const std::string& name : gone) files.erase(name);
  files.erase(std::string(kManifestName));
  Sha256 hash;
  hash.update(std::as_bytes(std::span(index)));
  if (files.contains(kIndex)) files[kIndex] = hash.hex();
  return manifest.dump(2);
}

void rewrite_manifest(const std::string& directory,
                      const RemovedTensors& removed, uint64_t index_bytes) {
  const std::string path = manifest_path(directory);
  if (!io::is_file(path)) return;
  Manifest manifest = read_manifest(path);
  for (const std::string& name : removed.tensors) manifest.tensors.erase(name);
  for (const std::string& name : removed.files) {
    manifest.files.erase(name);
    manifest.contents.erase(name);
  }
  manifest.contents.erase(kIndex);  // both are written anew
  manifest.contents.erase(kIntegrity);
  if (manifest.files.contains(kIndex)) manifest.files[kIndex] = index_bytes;
  replace(io::parent(path), io::base_name(path), to_json(manifest));
}

void check_prefix(const dcp::Metadata& metadata, const std::string& prefix,
                  const RemovedTensors& removed) {
  const size_t gone = removed.tensors.size() + removed.objects.size();
  if (gone == 0)
    throw usage_error({metadata.path, {}}, "no name begins with '{}'", prefix)
        .with_hint("`ckpt inspect` lists the names");
  if (gone == metadata.tensors.size() + metadata.bytes.size())
    throw usage_error({metadata.path, {}}, "every name begins with '{}'",
                      prefix)
        .with_hint("that would leave nothing; delete the directory instead");
}

void apply(const std::string& directory, const std::string& index,
           const RemovedTensors& removed) {
  const std::string path = io::join(directory, kIndex);
  write_synced(path + ".tmp", index);
  remove_file(path + ".bck");
  if (::link(path.c_str(), (path + ".bck").c_str()) != 0)
    write_synced(path + ".bck", io::read_file(path, UINT64_MAX));
  move(path + ".tmp", path);
  io::sync_directory(directory);
  if (io::is_file(io::join(directory, kIntegrity)))
    replace(directory, kIntegrity,
            new_integrity(directory, removed.files, index));
  rewrite_manifest(directory, removed, index.size());
  for (const std::string& file : removed.files)
    remove_file(io::join(directory, file));
  remove_file(path + ".bck");
  io::sync_directory(directory);
}

}  // namespace

RemovedTensors remove_sharded_tensors(const std::string& directory,
                                      const std::string& prefix, bool dry_run) {
  const std::string path = io::join(directory, kIndex);
  if (!io::is_file(path))
    throw missing_error({directory, {}}, "there is no .metadata in it")
        .with_hint("tensors are removed from dcp and megatron_torch_dist only");
  // Checks what this function relies on: above all, file names that stay inside
  // the directory.
  const dcp::Metadata metadata = dcp::read_metadata(path, {});
  RemovedTensors removed;
  const auto goes = [&](const std::string& name) {
    return name.starts_with(prefix);
  };
  for (const dcp::TensorEntry& tensor : metadata.tensors)
    if (goes(tensor.name)) removed.tensors.push_back(tensor.name);
  for (const dcp::BytesEntry& object : metadata.bytes)
    if (goes(object.name)) removed.objects.push_back(object.name);
  check_prefix(metadata, prefix, removed);

  Index index(path);
  std::set<std::string> needed;
  std::map<std::string, uint64_t> left;  // bytes removed, by file
  index.filter(goes, [&](const Index::Place& place, bool gone) {
    if (gone)
      left[place.file] += place.bytes;
    else
      needed.insert(place.file);
  });
  for (const auto& [file, bytes] : left) {
    if (needed.contains(file)) {
      removed.kept += bytes;
      continue;
    }
    removed.files.push_back(file);
    removed.freed += io::file_size(io::join(directory, file)).value_or(0);
  }
  if (!dry_run) apply(directory, index.encoded(), removed);
  return removed;
}

}  // namespace ckpt
