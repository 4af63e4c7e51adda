// SPDX-License-Identifier: Apache-2.0
#include "reshard/run/staged.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "ckpt/error.h"
#include "reshard/numbers/cast.h"
#include "reshard/plan/planner.h"
#include "tests/support/recut.h"

namespace ckpt::reshard {
namespace {

using test::Random;
using test::Recut;

constexpr uint64_t kWork = 7;

// A target on disk, with the journal of the run that wrote it.
struct Written {
  Recut c;
  test::TempDir source, out;
  Plan plan;
  RunOptions options;

  Written(Random& random, bool casts)
      : c(test::random_recut(random, [&](Tensor& tensor) {
          if (casts && tensor.dtype == DType::f32) tensor.dtype = DType::bf16;
        })) {
    test::write_source(c.source, source);
    for (const TargetFile& file : c.target.files)
      io::Handle::create(out.file(file.path)).allocate(file.size);
    plan = make_plan(c.source, c.target);
    options.threads = static_cast<uint32_t>(1 + random() % 3);
    options.max_mem = random() % 2 ? uint64_t{512} << 10 : uint64_t{1} << 30;
    options.cast = Caster();
    Journal journal = Journal::create(path(), kWork);
    fill(journal);
  }
  std::string path() const { return out.file("journal"); }
  void fill(Journal& journal) {
    Output output(c.target, out.path);
    options.journal = &journal;
    run(plan, c.source, output, options);
    options.journal = nullptr;
  }
  StagedProof prove(const std::vector<Outcome>& done) const {
    return prove_staged(plan, c.target, out.path, done, options, true);
  }
  std::vector<std::string> files() const {
    std::vector<std::string> all;
    for (const TargetFile& file : c.target.files)
      all.push_back(io::read_file(out.file(file.path), file.size));
    return all;
  }
  // Flips a bit, cuts or deletes a file. False if there is nothing to harm.
  bool harm(Random& random) const {
    const TargetFile& file = c.target.files[random() % c.target.files.size()];
    if (file.size == 0) return false;
    const std::string name = out.file(file.path);
    switch (random() % 3) {
      case 0: {
        const io::Handle handle = io::Handle::open_write(name);
        const uint64_t at = random() % file.size;
        std::string byte = handle.read_string(at, 1);
        byte[0] = static_cast<char>(byte[0] ^ (1 << random() % 8));
        handle.write(at, std::string_view(byte));
        break;
      }
      case 1:
        REQUIRE(::truncate(name.c_str(),
                           static_cast<off_t>(random() % file.size)) == 0);
        REQUIRE(::truncate(name.c_str(), static_cast<off_t>(file.size)) == 0);
        break;
      default:
        REQUIRE(::unlink(name.c_str()) == 0);
        io::Handle::create(name).allocate(file.size);
    }
    return true;
  }
};

}  // namespace

TEST_CASE("staged: what was written is proven, what was harmed is found") {
  Random random(19);
  size_t items = 0, unknown = 0, wrong = 0;
  for (int round = 0; round < 150; ++round) {
    CAPTURE(round);
    Written written(random, round % 2 == 1);
    const std::vector<std::string> wanted = written.files();
    {
      auto journal = Journal::open(written.path(), kWork);
      REQUIRE(journal.has_value());
      const StagedProof whole = written.prove(journal->done());
      CHECK(whole.wrong == 0);
      CHECK(whole.good.size() + whole.unknown == journal->done().size());
      items += journal->done().size();
      unknown += whole.unknown;
    }
    for (uint64_t n = 1 + random() % 3; n; --n) written.harm(random);
    auto journal = Journal::open(written.path(), kWork);
    StagedProof proof = written.prove(journal->done());
    wrong += proof.wrong;
    journal->replace(std::move(proof.good));
    written.fill(*journal);
    CHECK(written.files() == wanted);
  }
  CHECK(wrong > 50);
  // Unknown items are done again, which is correct but saves nothing.
  CHECK(unknown * 10 < items);
  MESSAGE(items << " items, " << unknown << " unknown, " << wrong << " wrong");
}

TEST_CASE("staged: lines of a journal that are damaged don't count") {
  Random random(20);
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    Written written(random, false);
    const std::vector<std::string> wanted = written.files();
    std::string text = io::read_file(written.path(), 1 << 20);
    text[random() % text.size()] ^= static_cast<char>(1 << random() % 7);
    ::unlink(written.path().c_str());
    io::Handle::create(written.path()).write(0, std::string_view(text));
    INFO(text.substr(0, 90));
    auto journal = Journal::open(written.path(), kWork);
    if (!journal) continue;  // its head
    CHECK(written.prove(journal->done()).wrong == 0);
    written.fill(*journal);
    CHECK(written.files() == wanted);
  }
}

TEST_CASE("staged: a journal that doubts says so to whoever opens it") {
  const test::TempDir dir;
  const std::string path = dir.file("journal");
  {
    Journal journal = Journal::create(path, kWork);
    journal.append({.item = 3});
    journal.doubt();
  }
  auto journal = Journal::open(path, kWork);
  REQUIRE(journal.has_value());
  CHECK(journal->is_doubtful());
  CHECK_FALSE(journal->is_lost());
  CHECK(journal->done().size() == 1);
  journal->replace({});
  CHECK_FALSE(Journal::open(path, kWork)->is_doubtful());
  journal->doubt(Journal::Doubt::kFlush);
  auto lost = Journal::open(path, kWork);
  CHECK(lost->is_doubtful());
  CHECK(lost->is_lost());
  lost->doubt();  // does not take it back
  CHECK(Journal::open(path, kWork)->is_lost());
  CHECK_THROWS_AS(Journal::open(path, kWork + 1), Error);
}

}  // namespace ckpt::reshard
