// SPDX-License-Identifier: Apache-2.0
// The model that every room shares: which tensors a checkpoint holds, and where
// their bytes are.
//
//   Catalog ── tensors ── pieces ── extent ──► files[i], byte offset, strides
//           └─ objects (values that are not tensors)
//
// A source catalog is read from headers only. The target of a write has the
// same type, so that inspect, verify, diff and plan need one code path each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/box.h"
#include "ckpt/dtype.h"
#include "ckpt/topology.h"

namespace ckpt {

class Error;
namespace pickle {
class Document;
}

// How the bytes of a File are stored on disk.
enum class Codec : uint8_t {
  kRaw,      // as they are
  kDeflate,  // a raw deflate stream (zip method 8)
  kZlib,     // zlib's frame around deflate
  kGzip,     // gzip's
  kBzip2,
  kZstd,    // zstd frames, one after the other
  kBlosc,   // one chunk of c-blosc 1
  kLz4,     // numcodecs' frame around one LZ4 block
  kStored,  // as they are, for a `delta` to undo
  kMemory,  // no file at all: bytes of the caller's that outlive the catalog
  kFill,    // no file at all: `fill` over and over
};

// numcodecs' filter of that name: after the first element, each is stored as
// its difference from the one before. Both types are integers, or both are f32
// or f64.
struct Delta {
  DType stored = DType::i32;  // of the differences
  DType plain = DType::i32;   // of the elements
};

// A run of bytes that extents point into: a whole file, or the inflated form
// of a compressed range of one. Only raw files can be read at any offset
// cheaply; a compressed one is inflated from its start, in bounded memory.
struct File {
  std::string path;   // as opened: absolute, or relative to the cwd
  uint64_t size = 0;  // of the bytes that extents see
  Codec codec = Codec::kRaw;
  uint64_t packed_offset = 0;  // the compressed range, if not raw
  uint64_t packed_size = 0;
  std::optional<Delta> delta;         // undone after the codec
  const std::byte* memory = nullptr;  // kMemory
  std::string fill;  // kFill: the bytes of one element; byte 0 of the file is
                     // the first of them
};

// Where the elements of a piece are: element (i0, i1, …) of the piece's box
// begins at byte offset + i0 * strides[0] + i1 * strides[1] + …
struct Extent {
  uint64_t offset = 0;  // bytes from the start of the file
  Dims strides;         // bytes; empty: row-major contiguous
  // Not 0: the piece is an archive of its own, of that many bytes, beginning
  // at `offset`. ckpt::locate finds the payload in it.
  uint64_t archive = 0;
  uint32_t file = 0;  // index into Catalog::files
};

// How stored elements become logical ones.
enum Transform : uint8_t {
  kNoTransform = 0,
  kSwapBytes = 1,  // stored big-endian; unit: info(dtype).swap
  kNegate = 2,     // torch's neg bit
  kConjugate = 4,  // torch's conj bit
  // Norms that one dialect stores as w and another as w - 1: the element in
  // f32, plus or minus one, rounded to the dtype again.
  kAddOne = 8,
  kSubtractOne = 16,
  // Decays of state-space models, which one dialect stores as log(-a) and
  // another as a: -exp(x) and log(-x) in f32, rounded to the dtype again.
  kNegatedExp = 32,
  kLogOfNegated = 64,
};

// A box of a tensor, or a flat range of the row-major elements of that box.
// Plans hold millions: 112 bytes each, with the transform in the padding
// behind the extent.
struct Piece {
  Box box;
  MaybeFlat flat;  // in elements of box; then the extent is contiguous
  [[no_unique_address]] Extent extent;
  uint8_t transform = kNoTransform;
};
static_assert(sizeof(Piece) == 112);

enum class Kind : uint8_t { model, optim, other };
std::string_view name(Kind kind);

// How a tensor is split over tensor-parallel ranks.
struct TpRule {
  enum class State : uint8_t { kUnknown, kReplicated, kSplit };
  State state = State::kUnknown;
  uint32_t dim = 0;     // kSplit: the dimension
  uint32_t groups = 1;  // kSplit: the dimension is split inside each of
                        // that many equal groups
  static TpRule replicated() { return {State::kReplicated, 0, 1}; }
  static TpRule split(uint32_t dim, uint32_t groups = 1) {
    return {State::kSplit, dim, groups};
  }
  friend bool operator==(const TpRule&, const TpRule&) = default;
};

struct Tensor {
  std::string name;  // the format's own
  DType dtype = DType::f32;
  Shape shape;  // global
  // Empty, or the dimensions that the boxes of pieces count in: each one of
  // `shape` cut into factors, [heads * 2 * half, width] into [heads, 2, half,
  // width]. So rows that a dialect interleaves are boxes too. Sources only.
  Shape grid;
  Kind kind = Kind::model;
  std::string param;  // optimizer state: the parameter it belongs to …
  std::string state;  // … and which state it is: exp_avg, exp_avg_sq, step …
  TpRule tp;
  // The dtype it is written with, whatever --dtype says.
  std::optional<DType> pinned;
  bool dp_replicated = false;  // a buffer: whole on every data-parallel rank
  // Pieces cover the tensor exactly once, apart from replicas: pieces with the
  // same box (and flat range) hold the same elements. The first one is read;
  // the others are compared with it.
  std::vector<Piece> pieces;
  // torch: which tensors share one storage. Tensors with the same tie (not
  // zero) and the same extent are one tensor under several names.
  uint32_t tie = 0;
  bool requires_grad = false;  // torch
  bool parameter = false;      // torch.nn.Parameter
};

// Bytes of the content (row-major, packed; bit-packed types rounded up).
// Nothing on overflow.
std::optional<uint64_t> byte_size(DType dtype, const Shape& shape);
// Of a tensor that a reader has checked.
uint64_t byte_size(const Tensor& tensor);
uint64_t element_size(DType dtype);  // bytes; 0 for bit-packed types

// A value that is not a tensor. It lives in a document (a value tree as pickle
// knows it; JSON and YAML values fit in it too).
struct Object {
  std::string name;  // dotted path in the format's own naming
  // Null: it is in an archive that nobody has opened (ckpt::load_objects).
  std::shared_ptr<const pickle::Document> document;
  uint32_t node = 0;  // index of the value in the document
  // The archive (torch.save) that holds it alone, so that it can be carried
  // over byte for byte. No bytes: there is none.
  uint32_t file = 0;  // index into Catalog::files
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// A file that is carried whole: config.json, model.yaml, tokenizer files.
struct Sidecar {
  std::string name;  // relative to the checkpoint, in the source's layout
  std::string path;
  uint64_t size = 0;
  // Not null: there is no such file yet, and this is its content. `path` is
  // then a name that no file has.
  std::shared_ptr<const std::string> text;
};

// A file of what was opened, whether tensors are read from it or not.
struct SourceFile {
  std::string path;  // relative to Catalog::file_root
  uint64_t bytes = 0;
  // "model", "optim", "scheduler", "rng", "trainer", "config", "tokenizer",
  // "dataloader" or "other"
  std::string part;
  bool sidecar = false;  // it was among the sidecars when it was listed
};

// The bytes of a storage that a value holds. Those of a record that does not
// have its checksum are an error for whoever takes them, a writer, and not for
// a reader that opens what is sound beside them.
class Content {
 public:
  Content(std::string bytes) : bytes_(std::move(bytes)) {}
  explicit Content(std::shared_ptr<const Error> damage)
      : damage_(std::move(damage)) {}

  const std::string& bytes() const;  // throws the error
  const std::shared_ptr<const Error>& damage() const { return damage_; }

 private:
  std::string bytes_;
  std::shared_ptr<const Error> damage_;
};

// The nesting that dotted names came from: a value tree with the tensors in
// it, so that a torch file can be written back as it was.
struct Skeleton {
  std::shared_ptr<const pickle::Document> document;
  uint32_t root = 0;
  // document node of a tensor -> its name in the catalog, in the order of a
  // walk. Code that renames a tensor renames it here too; a name that the
  // catalog lacks is a tensor that was left out.
  std::vector<std::pair<uint32_t, std::string>> tensors;
  // document node of a storage that no tensor of the catalog covers (scales
  // of quantized tensors, bare storages) -> its bytes, little-endian
  std::vector<std::pair<uint32_t, Content>> storages;
};

// A stored checksum of a range of a file (a zip record).
struct StoredCrc {
  uint32_t file = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t crc32 = 0;
  std::string record;  // its name, for messages
};

// Something odd or wrong that does not stop a reader: replicas of different
// sizes, a wrong total_size, a tensor that the index lacks.
struct Problem {
  enum class Severity : uint8_t { kNote, kWarning, kDamage };
  Severity severity = Severity::kWarning;
  std::string kind;  // stable word: "total_size", "unindexed_tensor" …
  std::string file;
  std::string tensor;
  std::string message;
};

// One tensor must be another, rounded to its dtype: a weight and its fp32 main
// weight. This proves what a reader inferred (the order of a flat buffer)
// before anything is written.
struct Claim {
  std::string exact;    // f32
  std::string rounded;  // bf16, f16, or f32
  std::string why;      // "the order of bucket 0 is inferred"
};

// A tensor that is not written because another says the same: a constant that
// the target's dialect has no place for, a second copy of tied weights. Proven
// from its bytes before anything is written.
struct Redundant {
  Tensor tensor;                  // with its pieces
  std::optional<double> value;    // each element is this …
  std::optional<Tensor> same_as;  // … or the tensor is this one, bit for bit
  std::string why;                // "olmo has no norm weights"
};

// A model in a folder of its own, where the loader of the whole looks for it:
// one of a diffusers pipeline, or of sentence-transformers' modules.
struct Component {
  std::string prefix;  // of its tensors' names in the catalog: "unet."
  std::string folder;  // "unet"; "": the checkpoint's own
};

// The trainer whose step a checkpoint is (docs/formats/runs.md).
struct Run {
  std::string trainer;  // "hf_trainer", "verl" …
  std::optional<uint64_t> step;
  // If there are several models, what their names begin with: "actor.",
  // "model_1.".
  std::vector<std::string> models = {};
  std::vector<Component> components = {};
};

struct Catalog;

// What an index alone does not say, looked up when it is needed: where payload
// lies in tens of thousands of small archives inside big files, and the values
// in those archives. Both work on whatever is still in the catalog.
class ArchiveOpener {
 public:
  virtual ~ArchiveOpener() = default;
  // Leaves no extent an `archive`. Throws input_error for damage.
  virtual void locate(Catalog& catalog) const = 0;
  // As `locate`, but may assume that some archives are like others, and says
  // so in the assumptions; returns how many were not opened. Sizes are exact,
  // places may not be.
  virtual uint64_t sample(Catalog& catalog) const;
  // True if no extent is an `archive` even now: both only check that payload is
  // where the extents say.
  virtual bool only_checks() const { return false; }
};
class ObjectOpener {
 public:
  virtual ~ObjectOpener() = default;
  // Leaves no object without a document. Throws input_error for damage.
  virtual void open(Catalog& catalog) const = 0;
};

struct Catalog {
  std::string format;   // "safetensors", "torch", "fairseq2" …
  std::string version;  // of the format, if it says
  std::string path;     // what was opened, after following to a step
  std::string root;     // what was given, if it was followed to `path`
  std::string family;   // "" if unknown
  std::string dialect;  // "hf", "fairseq2", … or ""
  std::optional<Run> run;
  Topology topology;
  std::vector<File> files;
  std::vector<Tensor> tensors;  // in the source's order; names are unique
  std::vector<Object> objects;
  std::vector<Sidecar> sidecars;
  // Sorted by path; ckpt's own manifest and staging are not among them.
  std::vector<SourceFile> file_list;
  std::string file_root;  // the directory that they are in
  std::optional<Skeleton> skeleton;
  std::vector<StoredCrc> crcs;
  std::vector<Problem> problems;
  // Every choice that was not read from a file: "family llama: model.yaml",
  // "step_40: newest complete step". Shown at -v and by --dry-run.
  std::vector<std::string> assumptions;
  // All globals that the pickles name, sorted, unique: "module name".
  std::vector<std::string> globals;
  std::vector<Claim> claims;
  std::vector<Redundant> redundant;
  // Null if there is nothing to do. Called through ckpt::locate, ckpt::sample
  // and ckpt::load_objects, which take them off first.
  std::shared_ptr<const ArchiveOpener> archive_opener;
  std::shared_ptr<const ObjectOpener> object_opener;

  const Tensor* find(std::string_view name) const;  // linear
};

// Afterwards no extent is an archive; plans need that.
void locate(Catalog& catalog);
// The same for what rearranges extents and reads no payload: checks that need
// no archive are left for locate.
void locate_archives(Catalog& catalog);
// The same for a plan that is only shown: ArchiveOpener::sample.
uint64_t sample(Catalog& catalog);
// Afterwards every object has a document.
void load_objects(Catalog& catalog);

}  // namespace ckpt
