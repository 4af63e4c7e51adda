// SPDX-License-Identifier: Apache-2.0
// A legacy stream of torch.save inside another pickle: pickle.dump keeps each
// storage of a tensor as torch.storage._load_from_bytes(b"magic … n | data").
#pragma once

#include <string>
#include <string_view>

#include "containers/torch/container.h"

namespace ckpt::torch {

// Like open_container, but adds no File: offsets count from the first byte of
// `bytes`. `path` is for messages.
Container open_nested(std::string_view bytes, const std::string& path,
                      Catalog& catalog, const Limits& limits = {});

}  // namespace ckpt::torch
