// SPDX-License-Identifier: Apache-2.0
// .ckpt-manifest.json: what a target held when it was written, so that
// `verify` finds rot later.
//
//   {"ckpt_manifest": 1, "format": "fairseq2",
//    "source": {"path": "…", "format": "…"},
//    "files": {"model/pp_00/tp_00/sdp_00.pt": 1234},
//    "tensors": {"NAME": {"dtype": "bf16", "shape": [2, 3],
//                         "digest": "32 hex digits",
//                         "source": {"dtype": "f32", "digest": "…"}}},
//    "contents": {"config.json": {"sha256": "64 hex digits"},
//                 "a.safetensors": {"sha256": "…", "ranges": [0, 1280]}},
//    "identity": {"mtime": 17…, "head": "hex", "tail": "hex",
//                 "samples": "8 hex digits for each of up to 64 blocks"},
//    "self": "SHA-256 of all bytes before this line's comma"}
//
// What was written although a checksum, a copy or a manifest contradicted it
// has
// {"unproven": "why"} instead of a digest: nothing can be certified of it.
//
// A tensor has "source" if it was cast: what was read. "contents" covers all
// bytes that no tensor's digest covers: whole files, or the ranges between the
// tensors of a file, [begin, end) after [begin, end). SHA-256, since sha256sum
// can compute it too and no two texts of a file share it by chance or by
// intent. "identity" is in a manifest beside a single file, and tells whether
// that is still the file it describes. Older manifests have none of these
// three.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/hash/digest.h"
#include "lib/io/file.h"

namespace ckpt {

struct Manifest {
  struct Entry {
    DType dtype = DType::f32;
    Shape shape;
    Digest digest;
    std::optional<std::pair<DType, Digest>> source;
    std::string unproven;  // if not empty, why there is no digest
  };
  struct Content {
    std::string sha256;
    std::vector<uint64_t> ranges;  // begin, end, begin, end …; none: all of it
    std::string unproven = {};     // if not empty, why there is no sha256
    friend bool operator==(const Content&, const Content&) = default;
  };
  struct Identity {
    int64_t mtime = 0;  // nanoseconds
    std::string head;   // the first and the last bytes, in hexadecimal
    std::string tail;
    std::string samples;  // CRC-32s of blocks all over the file
  };
  std::string format;
  std::string source_path;
  std::string source_format;
  std::map<std::string, uint64_t> files;
  std::map<std::string, Entry> tensors;
  std::map<std::string, Content> contents;
  std::optional<Identity> identity;
};

inline constexpr std::string_view kManifestName = ".ckpt-manifest.json";

// The path of a checkpoint's manifest: in a directory, or beside a file as
// FILE.ckpt-manifest.json.
std::string manifest_path(const std::string& checkpoint);

// True if a tensor of that shape is only some rows of what was written:
// --layers of stacked layers. Its digest means nothing then.
bool is_part(const Shape& shape, const Manifest::Entry& entry);

std::string to_json(const Manifest& manifest);
// Throws input_error, naming the path and the key, also if a byte of it
// changed.
Manifest read_manifest(const std::string& path);

// SHA-256 of a whole file, or of the bytes in `ranges` one after the other.
std::string sha256_of(const io::Handle& file,
                      const std::vector<uint64_t>& ranges);

Manifest::Identity identity_of(const io::Handle& file);
// True if `file` is not the one that the manifest describes: written later, and
// with different bytes at its ends or in an eighth of the blocks between, at
// least three (a later step of a run: the same header, perhaps frozen first and
// last tensors).
// A few changed bytes don't make another file, they are damage, and so are
// blocks of zeros where there were values.
bool is_stale(const Manifest& manifest, const io::Handle& file);

}  // namespace ckpt
