// SPDX-License-Identifier: Apache-2.0
// Prints the names of a checkpoint's tensors and the bytes of the first one.
#include <ckpt/ckpt.h>
#include <ckpt/version.h>

#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const ckpt::Checkpoint checkpoint = ckpt::open(argv[1]);
  for (const ckpt::Tensor& tensor : checkpoint.catalog().tensors)
    std::cout << tensor.name << "\n";
  const std::string first = checkpoint.catalog().tensors.at(0).name;
  std::cout << checkpoint.read(first).bytes.size() << " bytes in " << first
            << "\n";
  return 0;
} catch (const ckpt::Error& error) {
  std::cerr << error.what() << "\n";
  return static_cast<int>(error.code());
}
