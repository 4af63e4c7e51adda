// SPDX-License-Identifier: Apache-2.0
// The modules of a base that an adapter's own names mean, where no family says
// it: diffusers' and kohya's.
//
//   unet: down_blocks_0_attentions_0_proj_in    down_blocks.0.attentions.0.
//                                               proj_in
//   a prefix of the base (model.diffusion_model.) is found by the names.
#pragma once

#include <map>
#include <set>
#include <string>

#include "ckpt/catalog.h"

namespace ckpt::families {

using Places = std::map<std::string, std::string>;  // to the base's modules

// Modules by component: "unet" -> names. `flat`: with '_' for '.'. Components
// of which the base has nothing are left out. Throws unfaithful_error, with a
// module that the base lacks or has twice.
std::map<std::string, Places> find_places(
    const Catalog& adapter, const Catalog& base,
    const std::map<std::string, std::set<std::string>>& modules, bool flat);

}  // namespace ckpt::families
