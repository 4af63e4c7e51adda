// A directory of torch.distributed.checkpoint.
//
//   .metadata                    the index; written last
//   __0_0.distcp  __1_0.distcp   items of rank 0, of rank 1 …
#include <algorithm>

#include "ckpt/error.h"
#include "formats/dcp/dcp.h"
#include "formats/dcp/metadata.h"
#include "lib/io/file.h"

namespace ckpt::dcp {
namespace {

using formats::Support;

constexpr std::string_view kIndex = ".metadata";

class DcpReader final : public formats::Reader {
 public:
  std::string_view name() const override { return kFormat; }

  Support supports(const std::string& path) const override {
    if (!io::is_directory(path)) return {false, "is no directory"};
    if (io::is_file(io::join(path, kIndex))) return {true, "holds .metadata"};
    return {false, "no .metadata in it"};
  }

  Catalog read_catalog(const std::string& path,
                       const formats::ReadOptions& options) const override {
    Metadata metadata = read_metadata(io::join(path, kIndex), options);
    check_cover(metadata);
    Catalog catalog;
    catalog.format = kFormat;
    catalog.path = path;
    catalog.version = metadata.version;
    catalog.family = options.family;
    add_to_catalog(metadata, catalog, options);
    return catalog;
  }
};

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return std::make_unique<DcpReader>();
}

}  // namespace ckpt::dcp
