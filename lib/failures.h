// SPDX-License-Identifier: Apache-2.0
// Failed reads of sources. Readers try things: whether a file is of a format,
// whether a configuration exists. The errors they catch should be about a
// file's contents; a disk that doesn't answer must not look like one that
// answered "no". So every I/O error is noted when it is created, and code about
// to give a result asks whether one was caught along the way.
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

// Adds something that a command read from: see any().
void add_source(const std::string& root);
// The first failure at or below any source.
std::optional<Error> any();
// The data was read in another way.
void withdraw(const Error& error);
// Whether a reader may have thrown `error` because it couldn't read a file: it
// took the checkpoint for another one, or missed a part of it.
bool may_hide_behind(const Error& error);
// The failures were reported, or waited out.
void forget();

// While one is alive, what this thread fails to read does not affect any
// result: suggestions in an error message.
class Unimportant {
 public:
  Unimportant();
  ~Unimportant();
  Unimportant(const Unimportant&) = delete;
  Unimportant& operator=(const Unimportant&) = delete;
};

}  // namespace failures
}  // namespace ckpt
