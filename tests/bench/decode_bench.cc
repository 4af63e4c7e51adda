// SPDX-License-Identifier: Apache-2.0
// GB of bf16 made from quantized weights, or the other way round, per second of
// processor time. Codes and scales are in memory; the engine's 1 MiB blocks are
// read one after the other.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "reshard/sources/decode.h"
#include "reshard/sources/sources.h"

namespace {

using namespace ckpt;

constexpr uint64_t kRows = 4096, kColumns = 4096;

struct Weight {
  explicit Weight(Coding coding) : bytes(kRows * kColumns + (1 << 20)) {
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>((i * 131 >> 3) % 120);
    auto files = std::make_shared<std::vector<File>>();
    files->push_back({.path = "codes",
                      .size = bytes.size(),
                      .codec = Codec::kMemory,
                      .memory = bytes.data()});
    scale.assign(kRows * kColumns / 32, 0.01F);
    files->push_back(
        {.path = "scales",
         .size = 4 * scale.size(),
         .codec = Codec::kMemory,
         .memory = reinterpret_cast<const std::byte*>(scale.data())});
    made.coding = coding;
    made.dtype = DType::bf16;
    made.rows = kRows;
    made.columns = kColumns;
    made.files = files;
  }
  static void place(Tensor& tensor, DType dtype, uint64_t rows,
                    uint64_t columns, uint32_t file, uint64_t element) {
    tensor.name = "weight";
    tensor.dtype = dtype;
    tensor.shape = {1, rows, columns};
    tensor.pieces = {{.box = Box::whole(tensor.shape),
                      .flat = {},
                      .extent = {.offset = 0,
                                 .strides = {rows * columns * element,
                                             columns * element, element},
                                 .file = file}}};
  }
  std::vector<std::byte> bytes;
  std::vector<float> scale;
  Decoding made;
};

// The best of ten sweeps.
double rate(const Decoding& made) {
  constexpr uint64_t kBlock = 1 << 20;
  reshard::HandleCache handles;
  reshard::DecodeReader reader(handles);
  std::vector<std::byte> out(kBlock);
  uint64_t size = made.rows * made.columns * element_size(made.dtype);
  if (made.coding == Coding::kGgmlBlocks)
    size = size / ggml_info(made.ggml)->elements * ggml_info(made.ggml)->bytes;
  size = size / kBlock * kBlock;
  double best = 0;
  for (int sample = 0; sample < 10; ++sample) {
    const std::clock_t start = std::clock();
    for (uint64_t at = 0; at < size; at += kBlock) reader.read(made, at, out);
    const double seconds =
        static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    best = std::max(best, static_cast<double>(size) / seconds / 1e9);
  }
  return best;
}

void ggml(GgmlType type) {
  const GgmlInfo& info = *ggml_info(type);
  Weight blocks(Coding::kGgml);
  blocks.made.ggml = type;
  Weight::place(blocks.made.codes, DType::u8, kRows,
                kColumns / info.elements * info.bytes, 0, 1);
  fmt::print("{:<16}{:>6.1f} GB/s\n", info.name, rate(blocks.made));
  if (!info.encodes) return;
  Weight numbers(Coding::kGgmlBlocks);
  numbers.made.dtype = DType::u8;
  numbers.made.ggml = type;
  numbers.made.columns = kColumns / 2;
  Weight::place(numbers.made.codes, DType::bf16, kRows, kColumns / 2, 0, 2);
  for (size_t i = 1; i < numbers.bytes.size(); i += 2)
    numbers.bytes[i] &= std::byte{0x3F};  // below 2
  // Of numbers, not of the fewer bytes of blocks.
  const double times = 2.0 * info.elements / info.bytes;
  fmt::print("{:<16}{:>6.1f} GB/s\n", fmt::format("bf16 to {}", info.name),
             times * rate(numbers.made));
}

}  // namespace

int main() {
  Weight fp8(Coding::kScaled);
  Weight::place(fp8.made.codes, DType::f8_e4m3, kRows, kColumns, 0, 1);
  Weight::place(fp8.made.scales, DType::f32, kRows / 128, kColumns / 128, 1, 4);
  fp8.made.block_rows = fp8.made.block_columns = 128;
  fmt::print("{:<16}{:>6.1f} GB/s\n", "fp8 128x128", rate(fp8.made));

  Weight codes(Coding::kFp8Codes);
  codes.made.dtype = DType::f8_e4m3;
  codes.made.block_rows = codes.made.block_columns = 128;
  Weight::place(codes.made.codes, DType::bf16, kRows, kColumns / 2, 0, 2);
  codes.made.columns = kColumns / 2;
  fmt::print("{:<16}{:>6.1f} GB/s\n", "bf16 to fp8", rate(codes.made));

  Weight mxfp4(Coding::kE2m1);
  mxfp4.made.bits = 4;
  mxfp4.made.transposed = true;
  mxfp4.made.block_columns = 32;
  Weight::place(mxfp4.made.codes, DType::u8, kRows, kColumns / 2, 0, 1);
  // The bytes of 0.01F: powers of two typical of weights, none at an extreme.
  Weight::place(mxfp4.made.scales, DType::u8, kRows, kColumns / 32, 1, 1);
  fmt::print("{:<16}{:>6.1f} GB/s\n", "mxfp4", rate(mxfp4.made));

  for (const Coding coding : {Coding::kGptq, Coding::kAwq}) {
    Weight four(coding);
    four.made.bits = 4;
    four.made.transposed = true;
    four.made.block_rows = 128;
    const bool gptq = coding == Coding::kGptq;
    Weight::place(four.made.codes, DType::i32, gptq ? kRows / 8 : kRows,
                  gptq ? kColumns : kColumns / 8, 0, 4);
    Weight::place(four.made.scales, DType::f32, kRows / 128, kColumns, 1, 4);
    Weight::place(four.made.zeros, DType::i32, kRows / 128, kColumns / 8, 0, 4);
    fmt::print("{:<16}{:>6.1f} GB/s\n", gptq ? "gptq" : "awq", rate(four.made));
  }

  for (const GgmlType type : {GgmlType::q4_0, GgmlType::q8_0, GgmlType::q4_k,
                              GgmlType::q6_k, GgmlType::iq2_xxs})
    ggml(type);
}
