// SPDX-License-Identifier: Apache-2.0
// What lies beside model/ and optim/: the trainer's state of each rank,
// config.yaml. All of it is carried as it is.
#pragma once

#include "ckpt/catalog.h"
#include "formats/olmo_core/v1/locate.h"

namespace ckpt::olmo_core::v1 {

// All other files below the checkpoint's directory; links to folders are not
// followed (a problem says so).
void add_sidecars(const Found& found, Catalog& catalog);

}  // namespace ckpt::olmo_core::v1
