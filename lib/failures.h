// SPDX-License-Identifier: Apache-2.0
// Reads that failed, of sources. Readers try things: whether a file is of a
// format, whether a configuration is there. What they catch then is meant to be
// a file's contents; a disk that doesn't answer must not look like one that
// answered "no". So every error of the kind I/O is noted when it is made, and
// who is about to give a result asks whether one was caught on the way to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ckpt {

class Error;

namespace failures {

// Called for every Error of the kind I/O, and for whatever a request to a
// server ended with.
void note(const Error& error);

// A position in the list of failures.
uint64_t mark();
// The first failure since `mark` at `root` or below it.
std::optional<Error> since(uint64_t mark, const std::string& root);

// What a command read from: see any().
void add_source(const std::string& root);
// The first failure at or below any source.
std::optional<Error> any();
// It was read in another way.
void withdraw(const Error& error);
// They were told, or waited for.
void forget();

// What this thread fails to read while one of these is alive does not matter
// for any result: suggestions in an error message.
class Unimportant {
 public:
  Unimportant();
  ~Unimportant();
  Unimportant(const Unimportant&) = delete;
  Unimportant& operator=(const Unimportant&) = delete;
};

}  // namespace failures
}  // namespace ckpt
