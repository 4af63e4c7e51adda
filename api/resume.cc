// SPDX-License-Identifier: Apache-2.0
#include "api/resume.h"

#include <fmt/format.h>

#include "reshard/ranks/run.h"
#include "reshard/staged.h"

namespace ckpt::library {

reshard::Journal start_journal(uint64_t work, io::Staging& staging,
                               const SaveOptions& options) {
  if (options.resume) {
    try {
      ranks::collect_journals(staging.journal_path(), work);
      auto journal = reshard::Journal::open(staging.journal_path(), work);
      if (journal) return std::move(*journal);
    } catch (const Error&) {
      staging.keep();  // the options may be to blame
      throw;
    }
    staging.clear();
  }
  return reshard::Journal::create(staging.journal_path(), work);
}

void prove_journal(const Prepared& prepared, const io::Staging& staging,
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
    proof = reshard::prove_staged(prepared.plan, prepared.target,
                                  staging.root(), doubted, run, options.sync);
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
