// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <filesystem>
#include <system_error>

// Test data is named from the root of the tree, wherever a test is run from.
// One file knows where that is: a compiler cache then has the others for all
// checkouts.
int main(int argc, char** argv) {
  std::error_code absent;  // a tree that was moved: run from its root
  std::filesystem::current_path(CKPT_TEST_ROOT, absent);
  return doctest::Context(argc, argv).run();
}
