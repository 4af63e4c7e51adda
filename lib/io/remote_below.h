// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ckpt::io {

// Announces that everything below a URL will be listed: where a single listing
// can tell, it is requested here once, not for each directory.
void look_below_remote(const std::string& url);
// Announces that names beside a URL will probably be asked for, once it was
// looked at itself: the listing that tells may be on its way meanwhile. Doesn't
// wait, and fails silently.
void look_beside_remote(const std::string& url);
// From here on everything is asked again: for whoever waits for a change.
void forget_remote();

}  // namespace ckpt::io
