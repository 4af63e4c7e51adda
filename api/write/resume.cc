// SPDX-License-Identifier: Apache-2.0
#include "api/write/resume.h"

#include <fmt/format.h>

#include "api/write/write_steps.h"
#include "lib/session.h"
#include "reshard/ranks/run.h"
#include "reshard/run/staged.h"

namespace ckpt::library {

reshard::Journal start_journal(uint64_t work, io::Staging& staging,
                               const SaveOptions& options) {
  if (options.resume) {
    try {
      ranks::collect_journals(staging.journal_path(), work);
      auto journal = reshard::Journal::open(staging.journal_path(), work);
      // What is sent to a server is made once more: a spool is not copied.
      const bool useful = journal && journal->items() != 0 &&
                          !(journal->is_lost() && staging.is_spool());
      if (useful) return std::move(*journal);
    } catch (const Error&) {
      staging.keep();  // the options may be to blame
      throw;
    }
    staging.clear();
  }
  return reshard::Journal::create(staging.journal_path(), work);
}

namespace {

void copy_staged(const Prepared& prepared, io::Staging& staging,
                 reshard::Journal& journal, const SaveOptions& options) {
  if (options.note)
    options.note(
        "--resume: the earlier run failed to flush what it wrote: its files "
        "are copied to new ones first");
  staging.renew([&] { make_files(prepared, staging, true); });
  journal.replace(journal.done());
  journal.doubt();  // until they are proven
  Session::current()->flush_failed = false;
}

// A flush that fails now, of a run that was killed before it could know, is one
// that had failed; the next one is today's.
reshard::StagedProof prove_files(const Prepared& prepared, io::Staging& staging,
                                 const std::vector<reshard::Outcome>& doubted,
                                 reshard::Journal& journal,
                                 const SaveOptions& options,
                                 const reshard::RunOptions& run) {
  const auto prove = [&] {
    return reshard::prove_staged(prepared.plan, prepared.target, staging.root(),
                                 doubted, run, options.sync);
  };
  if (journal.is_lost()) copy_staged(prepared, staging, journal, options);
  reshard::StagedProof proof = prove();
  if (proof.lost && !staging.is_spool()) {
    copy_staged(prepared, staging, journal, options);
    proof = prove();
  }
  if (proof.lost)
    throw Error(ExitCode::kIo, {staging.root(), {}},
                "what an earlier run wrote can't be flushed");
  return proof;
}

}  // namespace

void prove_journal(const Prepared& prepared, io::Staging& staging,
                   const Sending* sending, reshard::Journal& journal,
                   const SaveOptions& options, const reshard::RunOptions& run) {
  const size_t items = journal.done().size();
  const bool doubtful = journal.is_doubtful();
  if (!options.resume || items == 0) return;
  Sending::Earlier earlier;
  if (sending) earlier = sending->sort(journal.done());
  const auto& doubted = sending ? earlier.here : journal.done();
  reshard::StagedProof proof;
  if (options.trust_staging && !doubtful) {
    if (earlier.gone == 0) return;
    proof.good = earlier.here;
  } else {
    if (options.trust_staging && options.note)
      options.note(
          "--trust-staging: the earlier run failed to write, or the machine "
          "was restarted since: what it wrote is checked all the same");
    proof = prove_files(prepared, staging, doubted, journal, options, run);
  }
  const size_t wrong = proof.wrong, unknown = proof.unknown;
  proof.good.insert(proof.good.end(), earlier.sent.begin(), earlier.sent.end());
  if (proof.good.size() != items || doubtful)
    journal.replace(std::move(proof.good));
  if (wrong && options.note)
    options.note(fmt::format(
        "--resume: {} of {} finished parts are not in the staged files as "
        "they were written; they are done again",
        wrong, items));
  if (unknown && options.note)
    options.note(fmt::format(
        "--resume: {} of {} finished parts have no digest to be checked by; "
        "they are done again",
        unknown, items));
}

}  // namespace ckpt::library
