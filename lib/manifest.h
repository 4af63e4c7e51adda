// .ckpt-manifest.json: what a target held when it was written, so that
// `verify` finds rot later.
//
//   {"ckpt_manifest": 1, "format": "fairseq2",
//    "source": {"path": "…", "format": "…"},
//    "files": {"model/pp_00/tp_00/sdp_00.pt": 1234},
//    "tensors": {"NAME": {"dtype": "bf16", "shape": [2, 3],
//                         "digest": "32 hex digits",
//                         "source": {"dtype": "f32", "digest": "…"}}}}
//
// "source" of a tensor is there if it was cast: what was read.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "ckpt/catalog.h"
#include "lib/digest.h"

namespace ckpt {

struct Manifest {
  struct Entry {
    DType dtype = DType::f32;
    Shape shape;
    Digest digest;
    std::optional<std::pair<DType, Digest>> source;
  };
  std::string format;
  std::string source_path;
  std::string source_format;
  std::map<std::string, uint64_t> files;
  std::map<std::string, Entry> tensors;
};

inline constexpr std::string_view kManifestName = ".ckpt-manifest.json";

// Where the manifest of a checkpoint stands: in a directory, or beside a file
// as FILE.ckpt-manifest.json.
std::string manifest_path(const std::string& checkpoint);

// True if a tensor of that shape is only some rows of what was written:
// --layers of stacked layers. Its digest says nothing then.
bool is_part(const Shape& shape, const Manifest::Entry& entry);

std::string to_json(const Manifest& manifest);
// Throws input_error naming the path and the key.
Manifest read_manifest(const std::string& path);

}  // namespace ckpt
