// SPDX-License-Identifier: Apache-2.0
// `inspect --html`: one self-contained page. It loads nothing, and every name
// in it is escaped.
#pragma once

#include <string>

#include "ckpt/catalog.h"

namespace ckpt::app {

std::string inspect_html(const Catalog& catalog);

}  // namespace ckpt::app
