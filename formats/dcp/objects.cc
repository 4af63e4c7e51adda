// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/objects.h"

#include <algorithm>
#include <optional>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/parallel.h"

namespace ckpt::dcp {
namespace {

// Objects open at a time, with their archives' bytes.
constexpr size_t kBatch = 1024;
// Adjacent objects that one thread opens through one open file.
constexpr size_t kRun = 32;

using Opened = std::vector<std::optional<torch::OpenedObject>>;

// Opens objects[ids[begin … end)], which are sorted by file.
void open_run(const Catalog& catalog, std::span<const size_t> ids, size_t first,
              Opened& opened) {
  std::optional<io::Handle> file;
  for (const size_t id : ids) {
    const Object& object = catalog.objects[id];
    const std::string& path = catalog.files.at(object.file).path;
    if (!file || file->path() != path) file = io::Handle::open_read(path);
    opened[id - first] = torch::open_archive(catalog, object, *file);
  }
}

// For those who check all that is stored.
void add_crcs(const torch::OpenedObject& opened, const Object& object,
              Catalog& catalog) {
  if (catalog.files.at(object.file).codec != Codec::kRaw) return;
  for (StoredCrc crc : opened.crcs) {
    crc.begin += object.offset;
    crc.end += object.offset;
    catalog.crcs.push_back(std::move(crc));
  }
}

void open_batch(Catalog& catalog, std::span<const size_t> batch,
                bool restricted, const TakeObject& take) {
  std::vector<size_t> order(batch.begin(), batch.end());
  std::ranges::sort(order, {}, [&](size_t id) {
    const Object& object = catalog.objects[id];
    return std::pair(object.file, object.offset);
  });
  torch::ask_for_objects(catalog, order);
  const size_t first = batch.front();
  Opened opened(batch.back() - first + 1);
  parallel_for((order.size() + kRun - 1) / kRun, [&](size_t run) {
    const size_t begin = run * kRun;
    const size_t count = std::min(kRun, order.size() - begin);
    open_run(catalog, std::span(order).subspan(begin, count), first, opened);
  });
  for (const size_t id : batch) {
    torch::OpenedObject& one = *opened[id - first];
    if (restricted)
      torch::check_globals(one.container.globals, one.item.path());
    for (const std::string& global : one.container.globals)
      if (!std::ranges::binary_search(catalog.globals, global))
        torch::add_globals(catalog, {global});
    Object& object = catalog.objects[id];
    add_crcs(one, object, catalog);
    object.document = one.container.document;
    object.node = object.document->root();
    take(id, one);
    opened[id - first].reset();
  }
}

}  // namespace

std::shared_ptr<const ObjectOpener> object_opener(bool restricted) {
  class Opener : public ObjectOpener {
   public:
    explicit Opener(bool only_known) : restricted_(only_known) {}
    void open(Catalog& catalog) const override {
      open_objects(catalog, restricted_);
    }

   private:
    bool restricted_;
  };
  return std::make_shared<const Opener>(restricted);
}

void open_objects(Catalog& catalog, bool restricted) {
  open_objects(catalog, restricted, [](size_t, torch::OpenedObject&) {});
}

void open_objects(Catalog& catalog, bool restricted, const TakeObject& take) {
  std::vector<size_t> ids;
  for (size_t i = 0; i < catalog.objects.size(); ++i)
    if (catalog.objects[i].document == nullptr) ids.push_back(i);
  for (size_t at = 0; at < ids.size(); at += kBatch) {
    const size_t count = std::min(kBatch, ids.size() - at);
    open_batch(catalog, std::span(ids).subspan(at, count), restricted, take);
  }
}

}  // namespace ckpt::dcp
