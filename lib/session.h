// SPDX-License-Identifier: Apache-2.0
// What one call of the library knows of its own doing, however many others run
// in the process: the files it read, what it failed to write, the part of a
// checkpoint it is to read.
//
//   Preview run(…) {
//     const Session::Own session;
//     … Session::current()->watch …
//
// Where files are opened is far below where a call begins, and readers of other
// people's formats lie between (ckpt/format.h): a thread has a session, and
// does not pass it on from function to function. Threads that work for a call
// enter its session: parallel_for, try_thread and in_session() see to that.
// What the caller gave to be called is called outside().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "lib/io/watch.h"
#include "lib/tensor_part.h"

namespace ckpt {

struct Session {
  io::Watch watch;
  // See lib/io/writeback.h.
  std::atomic<int> lost_write = 0;
  std::atomic<bool> flush_failed = false;
  TensorPart::Which part;

  // The thread's; null: nobody asks what it does.
  static const std::shared_ptr<Session>& current();

  // While it lives, the thread has that session; then the former one again.
  class Within {
   public:
    explicit Within(std::shared_ptr<Session> session);
    ~Within();
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

   private:
    std::shared_ptr<Session> outer_;
  };

  // A new one.
  struct Own : Within {
    Own() : Within(std::make_shared<Session>()) {}
  };
  // The thread's, or a new one if it has none: for steps of a call.
  struct Joined : Within {
    Joined() : Within(current() ? current() : std::make_shared<Session>()) {}
  };
};

// `work`, to be done by another thread for this one's session.
template <class Work>
auto in_session(Work work, std::shared_ptr<Session> session) {
  return
      [session = std::move(session), work = std::move(work)]<class... Given>(
          Given&&... given) mutable -> std::invoke_result_t<Work&, Given...> {
        const Session::Within within(session);
        return work(std::forward<Given>(given)...);
      };
}
template <class Work>
auto in_session(Work work) {
  return in_session(std::move(work), Session::current());
}

// A function of the caller's, which opens files of its own. Empty if it is.
template <class Function>
Function outside(Function function) {
  if (!function) return function;
  return in_session(std::move(function), nullptr);
}

}  // namespace ckpt
