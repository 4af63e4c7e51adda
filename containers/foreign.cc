// SPDX-License-Identifier: Apache-2.0
#include "containers/foreign.h"

#include <algorithm>
#include <array>

#include "ckpt/error.h"
#include "lib/io/file.h"

namespace ckpt::formats {
namespace {

using namespace std::string_view_literals;

struct Magic {
  size_t at;
  std::string_view bytes;
  Foreign foreign;
};

constexpr std::string_view kUnpack = "unpack it first";
constexpr std::string_view kFailedDownload =
    "the download failed and left an error page: fetch the file again";
constexpr std::string_view kMaybeTorch =
    "if it is a torch file under another name, open it with --from torch";
constexpr std::string_view kHdf5 =
    "load it with h5py or Keras and save it with safetensors.numpy.save_file";
constexpr std::string_view kOnnx =
    "open the checkpoint that it was exported from; onnx.numpy_helper reads "
    "its tensors";
constexpr std::string_view kFlax =
    "transformers converts it: from_pretrained(DIR, from_flax=True), then "
    "save_pretrained";
constexpr std::string_view kTensorFlow =
    "transformers converts it: from_pretrained(DIR, from_tf=True), then "
    "save_pretrained";
constexpr std::string_view kOrbax =
    "ckpt reads trees that have a _METADATA: restore it with orbax.checkpoint "
    "and save it again";
constexpr std::string_view kGguf =
    "open the safetensors checkpoint that it was made from, or a GGUF file";
constexpr std::string_view kBuilt =
    "open the checkpoint that it was built from";

constexpr std::string_view kToOnnx =
    "write safetensors; optimum-cli export onnx makes ONNX";

constexpr bool kWeights = true;

constexpr auto kOthers = std::to_array<OtherFormat>({
    {".ggml",
     "GGML",
     {"a GGML file, which ckpt does not read", kGguf},
     "write GGUF: --to gguf",
     kWeights},
    {".onnx",
     "ONNX",
     {"an ONNX model, which ckpt does not read", kOnnx},
     kToOnnx,
     kWeights},
    {".h5",
     "HDF5",
     {"a Keras/HDF5 file, which ckpt does not read", kHdf5},
     {},
     kWeights},
    {".hdf5",
     "HDF5",
     {"an HDF5 file, which ckpt does not read", kHdf5},
     {},
     kWeights,
     "\x89HDF\r\n\x1a\n"sv},
    {".keras",
     "Keras files",
     {"a Keras file, which ckpt does not read", kHdf5},
     {},
     kWeights},
    {".msgpack",
     "Flax files",
     {"a Flax checkpoint, which ckpt does not read", kFlax},
     {},
     kWeights},
    {".tflite",
     "TFLite",
     {"a TFLite model, which ckpt does not read", kOnnx},
     {},
     kWeights},
    {".pb",
     "TensorFlow graphs",
     {"a TensorFlow graph, which ckpt does not read", kTensorFlow}},
    {".mlmodel",
     "Core ML",
     {"a Core ML model, which ckpt does not read", kBuilt}},
    {".engine",
     "TensorRT engines",
     {"a TensorRT engine, which ckpt does not read", kBuilt}},
});

constexpr bool kStandsIn = true;
constexpr bool kPacked = true;

constexpr auto kMagics = std::to_array<Magic>({
    {0,
     "version https://git-lfs.github.com/spec/v1"sv,
     {"a git-lfs pointer, not the data",
      "run `git lfs pull` in the repository to fetch the data", kStandsIn}},
    {0, "PK\3\4"sv, {"a zip archive", kMaybeTorch}},
    {0, "\x1f\x8b"sv, {"gzip-compressed", kUnpack, !kStandsIn, kPacked}},
    {0,
     "\x28\xb5\x2f\xfd"sv,
     {"zstd-compressed", kUnpack, !kStandsIn, kPacked}},
    {0, "\xfd\x37zXZ\0"sv, {"xz-compressed", kUnpack, !kStandsIn, kPacked}},
    {0, "\x04\x22\x4d\x18"sv, {"lz4-compressed", kUnpack, !kStandsIn, kPacked}},
    {0, "\x89LZO\0\r\n"sv, {"lzo-compressed", kUnpack, !kStandsIn, kPacked}},
    {0, "\x5d\0\0\x80\0"sv, {"lzma-compressed", kUnpack, !kStandsIn, kPacked}},
    {0, "BZh"sv, {"bzip2-compressed", kUnpack, !kStandsIn, kPacked}},
    {257, "ustar"sv, {"a tar archive", kUnpack, !kStandsIn, kPacked}},
    {0, "<!DOCTYPE"sv, {"an HTML page", kFailedDownload, kStandsIn}},
    {0, "<!doctype"sv, {"an HTML page", kFailedDownload, kStandsIn}},
    {0, "<html"sv, {"an HTML page", kFailedDownload, kStandsIn}},
    {0, "<?xml"sv, {"an XML document", kFailedDownload, kStandsIn}},
    {0, "\x80\2"sv, {"a Python pickle", kMaybeTorch}},
    {0, "\x80\3"sv, {"a Python pickle", kMaybeTorch}},
    {0, "\x80\4"sv, {"a Python pickle", kMaybeTorch}},
    {0, "\x80\5"sv, {"a Python pickle", kMaybeTorch}},
});

constexpr auto kDirectories = std::to_array<ForeignDirectory>({
    {"_CHECKPOINT_METADATA", true, {"an Orbax checkpoint", kOrbax}},
    {"_METADATA", true, {"an Orbax checkpoint", kOrbax}},
    {"manifest.ocdbt", true, {"an Orbax checkpoint", kOrbax}},
    {"orbax.checkpoint", true, {"an Orbax checkpoint", kOrbax}},
    {"saved_model.pb", true, {"a TensorFlow SavedModel", kTensorFlow}},
    {".ckpt.index", false, {"a TensorFlow checkpoint", kTensorFlow}},
    {".data-00000-of-00001", false, {"a TensorFlow checkpoint", kTensorFlow}},
    {"flax_model.msgpack", true, {"a Flax checkpoint", kFlax}},
    {"rank0.engine", true, {"a TensorRT-LLM engine", kBuilt}},
});

}  // namespace

std::span<const OtherFormat> other_formats() { return kOthers; }

std::optional<Foreign> recognise(std::string_view head,
                                 std::string_view file_name) {
  const auto magic = std::ranges::find_if(kMagics, [&](const Magic& one) {
    return head.size() > one.at && head.substr(one.at).starts_with(one.bytes);
  });
  // What stands in for a file has that file's name; a format's archive (.keras)
  // begins like any other.
  if (magic != kMagics.end() && magic->foreign.stands_in) return magic->foreign;
  for (const OtherFormat& other : kOthers)
    if (file_name.ends_with(other.ending)) return other.file;
  for (const OtherFormat& other : kOthers)
    if (!other.magic.empty() && head.starts_with(other.magic))
      return other.file;
  if (magic != kMagics.end()) return magic->foreign;
  return std::nullopt;
}

std::span<const ForeignDirectory> foreign_directories() { return kDirectories; }

std::optional<Foreign> recognise_file(const std::string& path) {
  try {
    const io::Handle file = io::Handle::open_read(path);
    const uint64_t size = std::min<uint64_t>(file.size(), kForeignHead);
    return recognise(file.read_string(0, size), io::base_name(path));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace ckpt::formats
