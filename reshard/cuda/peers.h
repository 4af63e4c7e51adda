// The exchange between ranks' GPUs (abi.h).
#pragma once

#include <string>

#include "reshard/cuda/abi.h"

namespace ckpt::cuda {

std::string peers_version();  // ", NCCL 2.28.3", or "" without it

}  // namespace ckpt::cuda
