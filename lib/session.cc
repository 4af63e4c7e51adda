// SPDX-License-Identifier: Apache-2.0
#include "lib/session.h"

namespace ckpt {
namespace {

std::shared_ptr<Session>& of_this_thread() {
  thread_local std::shared_ptr<Session> session;
  return session;
}

}  // namespace

const std::shared_ptr<Session>& Session::current() { return of_this_thread(); }

Session::Within::Within(std::shared_ptr<Session> session)
    : outer_(std::exchange(of_this_thread(), std::move(session))) {}
Session::Within::~Within() { of_this_thread() = std::move(outer_); }

}  // namespace ckpt
