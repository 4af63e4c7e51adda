// SPDX-License-Identifier: Apache-2.0
// What a quantization cost can be said of numbers alone: codes are compared
// with codes only where both sides have the same ones.
#pragma once

#include <map>
#include <string>

#include "api/engine.h"
#include "ckpt/catalog.h"
#include "ckpt/check.h"

namespace ckpt::library {

// Of each weight that is read as numbers: "B has int4 (group 32)".
using ReadAsNumbers = std::map<std::string, std::string>;

// If the two are quantized in different ways, or only one is, replaces codes by
// the numbers that they stand for, in f32. What can't be is left as it is, and
// the engine's note says why.
ReadAsNumbers as_numbers(Catalog& a, Catalog& b, const Engine& engine);

// Lets differences say what the numbers were made of.
void say_read(const ReadAsNumbers& read, Comparison& result);

}  // namespace ckpt::library
