// SPDX-License-Identifier: Apache-2.0
// What ends a command early, on stderr: for people, or as JSON.
#pragma once

namespace ckpt::app {

// Inside a catch block: reports the exception on stderr and returns its exit
// status.
int report_current_exception();

}  // namespace ckpt::app
