// The CUDA module. Run twice: with CKPT_CUDA_HOST=1, where loops on the host
// stand for the GPU (reshard/cuda/abi.h), and without, on a machine that has
// one.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ckpt/error.h"
#include "reshard/cast.h"
#include "reshard/cast_kernel.h"
#include "reshard/cuda/load.h"
#include "reshard/engine.h"
#include "reshard/plan.h"
#include "tests/support/casts.h"
#include "tests/support/random_catalog.h"
#include "tests/support/temp_file.h"

namespace ckpt::reshard {
namespace {

using test::Random;
using Bytes = std::vector<std::byte>;

// Null, and the reason said, where the device can't be used.
const CudaModule* device() {
  try {
    return &CudaModule::get();
  } catch (const Error& error) {
    std::cout << "skipped: " << error.what() << "\n";
    return nullptr;
  }
}

Bytes noise(Random& random, size_t count) {
  Bytes bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// A ring of one slot, used for one piece of work after the other.
class Bench {
 public:
  Bench(const CudaModule& module, uint64_t bytes)
      : module_(module), bytes_(bytes), ring_(module, 1, bytes) {}

  Bytes run(const Bytes& in, uint64_t out_bytes,
            const std::vector<CkptCudaCopy>& copies,
            const std::vector<CkptCudaDigest>& digests = {},
            std::vector<CkptCudaSum>* sums = nullptr) {
    const CkptCudaApi& api = module_.api();
    REQUIRE(in.size() <= bytes_);
    std::ranges::copy(in, static_cast<std::byte*>(api.ring_in(ring_.get(), 0)));
    const CkptCudaWork work{.in_bytes = in.size(),
                            .out_bytes = out_bytes,
                            .copies = copies.data(),
                            .copy_count = copies.size(),
                            .digests = digests.data(),
                            .digest_count = digests.size()};
    std::vector<CkptCudaSum> found(digests.size());
    module_.require(api.ring_submit(ring_.get(), 0, &work));
    module_.require(api.ring_wait(ring_.get(), 0, found.data()));
    if (sums) *sums = found;
    const auto* out =
        static_cast<const std::byte*>(api.ring_out(ring_.get(), 0));
    return {out, out + out_bytes};
  }

 private:
  const CudaModule& module_;
  uint64_t bytes_;
  CudaRing ring_;
};

// Calls visit(in, out) with the byte offsets of every element of a copy.
template <class Visit>
void each_element(const CkptCudaCopy& copy, Visit visit) {
  uint64_t count = 1;
  for (uint32_t d = 0; d < copy.dims; ++d) count *= copy.shape[d];
  for (uint64_t n = 0; n < count; ++n) {
    uint64_t rest = n, in = copy.in, out = copy.out;
    for (uint32_t d = copy.dims; d-- > 0;) {
      in += rest % copy.shape[d] * copy.in_stride[d];
      out += rest % copy.shape[d] * copy.out_stride[d];
      rest /= copy.shape[d];
    }
    visit(in, out);
  }
}

// A box of elements in any order of the source's dimensions, with gaps
// between rows here and there; packed in the target.
CkptCudaCopy random_copy(Random& random, uint32_t element, uint64_t room) {
  CkptCudaCopy copy{};
  copy.in_buffer = CKPT_CUDA_IN;
  copy.out_buffer = CKPT_CUDA_OUT;
  copy.element = element;
  copy.dims = static_cast<uint32_t>(random() % 5);
  uint64_t left = 1 + random() % (room / 4 / element);
  for (uint32_t d = 0; d < copy.dims; ++d) {
    copy.shape[d] = static_cast<uint32_t>(
        1 + random() % std::min<uint64_t>(left, 1 + random() % 400));
    left = std::max<uint64_t>(1, left / copy.shape[d]);
  }
  std::vector<uint32_t> order(copy.dims);
  for (uint32_t d = 0; d < copy.dims; ++d) order[d] = d;
  if (random() % 3) std::ranges::shuffle(order, random);
  uint64_t in = element, out = element;
  for (uint32_t k = copy.dims; k-- > 0;) {
    copy.in_stride[order[k]] = in;
    in *= copy.shape[order[k]];
    if (random() % 4 == 0) in += random() % 2 ? 16 : random() % 7 * element;
    copy.out_stride[k] = out;
    out *= copy.shape[k];
    if (random() % 8 == 0) out += random() % 2 ? 16 : random() % 7 * element;
  }
  const uint64_t unit = random() % 2 ? element : 1;
  copy.in = random() % 40 * unit;
  copy.out = random() % 40 * unit;
  return copy;
}

uint64_t end_of(const CkptCudaCopy& copy, bool in) {
  uint64_t end = (in ? copy.in : copy.out) + copy.element;
  for (uint32_t d = 0; d < copy.dims; ++d)
    end += (copy.shape[d] - 1) * (in ? copy.in_stride[d] : copy.out_stride[d]);
  return end;
}

// Where the source begins or ends in a file that is mapped, a load beyond it
// would be a fault; the sanitizers' build sees it in the host's memory.
constexpr uint64_t kRoom = 256 << 10;

}  // namespace

TEST_CASE("cuda: boxes of elements of every size, order and alignment") {
  const CudaModule* module = device();
  if (!module) return;
  Bench bench(*module, kRoom);
  Random random(1);
  int done = 0;
  for (int round = 0; round < 1500; ++round) {
    CAPTURE(round);
    const uint32_t sizes[] = {1, 2, 4, 8, 16, 3, 12};
    const CkptCudaCopy copy = random_copy(random, sizes[random() % 7], kRoom);
    const uint64_t in_bytes = end_of(copy, true);
    const uint64_t out_bytes = end_of(copy, false);
    if (in_bytes > kRoom || out_bytes > kRoom) continue;
    const Bytes in = noise(random, in_bytes);
    const Bytes found = bench.run(in, out_bytes, {copy});
    bool same = true;
    each_element(copy, [&](uint64_t from, uint64_t to) {
      same &= std::memcmp(&in[from], &found[to], copy.element) == 0;
    });
    CHECK(same);
    ++done;
  }
  CHECK(done > 1000);
}

TEST_CASE("cuda: neighbours of what is written stay as they were") {
  const CudaModule* module = device();
  if (!module) return;
  Bench bench(*module, kRoom);
  Random random(2);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    // Rows that interleave with others: a vector may hold parts of both.
    const uint32_t rows = 1 + static_cast<uint32_t>(random() % 50);
    const uint32_t a = 1 + static_cast<uint32_t>(random() % 70);
    const uint32_t b = 1 + static_cast<uint32_t>(random() % 70);
    CkptCudaCopy copy{};
    copy.out_buffer = CKPT_CUDA_OUT;
    copy.element = 1;
    copy.dims = 2;
    copy.shape[0] = rows;
    copy.shape[1] = a;
    copy.in_stride[0] = a;
    copy.out_stride[0] = a + b;
    copy.in_stride[1] = copy.out_stride[1] = 1;
    CkptCudaCopy other = copy;
    other.in = uint64_t{rows} * a;
    other.out = a;
    other.shape[1] = b;
    other.in_stride[0] = b;
    const Bytes in = noise(random, uint64_t{rows} * (a + b));
    const Bytes found = bench.run(in, in.size(), {copy, other});
    bool same = true;
    for (const CkptCudaCopy* one : {&copy, &other})
      each_element(*one, [&](uint64_t from, uint64_t to) {
        same &= in[from] == found[to];
      });
    CHECK(same);
  }
}

TEST_CASE("cuda: digests are those of the processor") {
  const CudaModule* module = device();
  if (!module) return;
  Bench bench(*module, kRoom);
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    CkptCudaDigest digest{};
    digest.buffer = CKPT_CUDA_IN;
    digest.at = random() % 50;
    digest.bytes =
        static_cast<uint32_t>(1 + random() % (random() % 4 ? 300 : 60'000));
    digest.dims = 1;
    const uint64_t most = (kRoom - 100) / digest.bytes;
    digest.shape[0] =
        static_cast<uint32_t>(1 + random() % std::min<uint64_t>(most, 300));
    digest.stride[0] =
        digest.bytes +
        (most > 2 * digest.shape[0] ? random() % digest.bytes : 0);
    digest.content = random() % 3 ? random() % 100'000 : uint64_t{4} * random();
    digest.content %= uint64_t{1} << 60;
    digest.content_stride[0] =
        random() % 2 ? digest.bytes : digest.bytes + random() % 9000;
    const Bytes in =
        noise(random, digest.at + (digest.shape[0] - 1) * digest.stride[0] +
                          digest.bytes);
    std::vector<CkptCudaSum> sums;
    bench.run(in, 0, {}, {digest, digest}, &sums);
    const Digest expected = digest_rows(
        digest.content, digest.content_stride[0], in.data() + digest.at,
        digest.stride[0], digest.bytes, digest.shape[0]);
    for (const CkptCudaSum& sum : sums) {
      CHECK(sum.d0 == expected.d0);
      CHECK(sum.d1 == expected.d1);
    }
  }
}

namespace {

CkptCudaCopy cast_copy(const CudaModule::Cast& cast, uint64_t count,
                       uint64_t from, uint64_t to) {
  CkptCudaCopy copy{};
  copy.out_buffer = CKPT_CUDA_OUT;
  copy.from = cast.from;
  copy.to = cast.to;
  copy.element = static_cast<uint32_t>(from);
  copy.dims = 1;
  copy.shape[0] = static_cast<uint32_t>(count);
  copy.in_stride[0] = from;
  copy.out_stride[0] = to;
  return copy;
}

// Index of the first element that differs, or count.
uint64_t first_difference(const Bytes& a, const Bytes& b, uint64_t size) {
  for (uint64_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) return i / size;
  return a.size() / size;
}

}  // namespace

TEST_CASE("cuda: casts have PyTorch's bits, NaNs and all") {
  const CudaModule* module = device();
  if (!module) return;
  if (!test::have_torch()) return;
  Random random(4);
  int pairs = 0;
  for (const DType from : test::kNumbers) {
    const Bytes in = test::cast_values(from, random);
    const uint64_t count = in.size() / element_size(from);
    Bench bench(*module, std::max<uint64_t>(in.size(), count * 8) + 64);
    for (const DType to : test::kNumbers) {
      const auto cast = module->cast(from, to);
      if (from == to || !cast) continue;
      CAPTURE(name(from));
      CAPTURE(name(to));
      const uint64_t size = element_size(to);
      const Bytes expected = test::cast_by_torch(from, to, in);
      CkptCudaCopy copy = cast_copy(*cast, count, element_size(from), size);
      const Bytes found = bench.run(in, count * size, {copy});
      const uint64_t at = first_difference(expected, found, size);
      CAPTURE(at);
      CHECK(at == count);
      // From odd places, where no vector fits.
      copy.in = 1;
      copy.out = 3;
      Bytes shifted(in.size() + 1);
      std::ranges::copy(in, shifted.begin() + 1);
      const Bytes moved = bench.run(shifted, count * size + 3, {copy});
      CHECK(std::equal(expected.begin(), expected.end(), moved.begin() + 3));
      ++pairs;
    }
  }
  CHECK(pairs == 234);  // all of 18 types but floats to integers
  CHECK(!module->cast(DType::f32, DType::i32));
  CHECK(!module->cast(DType::c64, DType::c128));
}

namespace {

struct Case {
  Catalog source;
  Target target;
};

// The same tensors cut in two unrelated ways, some of them cast, some stored
// transposed.
Case random_case(Random& random) {
  Case c;
  const size_t tensors = 1 + random() % 5;
  for (size_t i = 0; i < tensors; ++i) {
    Tensor tensor = test::random_tensor(random, "t" + std::to_string(i));
    c.source.tensors.push_back(tensor);
    c.source.tensors.back().pieces =
        test::random_pieces(random, tensor.shape, random() % 2);
    const bool number = std::ranges::count(test::kNumbers, tensor.dtype) > 0;
    if (number && tensor.dtype != DType::bool_ && random() % 2 &&
        (is_float(tensor.dtype) || test::have_torch())) {
      const DType to[] = {DType::f32, DType::bf16, DType::f16, DType::f64,
                          DType::f8_e4m3};
      tensor.dtype = to[random() % 5];
    }
    c.target.catalog.tensors.push_back(tensor);
    c.target.catalog.tensors.back().pieces =
        test::random_pieces(random, tensor.shape, random() % 2);
  }
  test::place_randomly(random, c.source,
                       static_cast<uint32_t>(1 + random() % 4), true);
  test::place_randomly(random, c.target.catalog,
                       static_cast<uint32_t>(1 + random() % 4), false);
  for (const File& file : c.target.catalog.files)
    c.target.files.push_back({.size = file.size});
  return c;
}

void write_files(Catalog& catalog, const test::TempDir& dir) {
  const auto files = test::files_of(catalog);
  for (size_t f = 0; f < files.size(); ++f)
    catalog.files[f].path = dir.write(
        "f" + std::to_string(f),
        {reinterpret_cast<const char*>(files[f].data()), files[f].size()});
}

struct Ran {
  std::vector<Bytes> files;
  RunResult result;
};

Ran run_to_memory(const Case& c, const RunOptions& options) {
  const Plan plan = make_plan(c.source, c.target);
  Ran ran;
  std::vector<std::span<std::byte>> spans;
  for (const TargetFile& file : c.target.files)
    ran.files.emplace_back(file.size, std::byte{0x55});
  for (Bytes& file : ran.files) spans.emplace_back(file);
  Output output(std::move(spans));
  ran.result = run(plan, c.source, output, options);
  return ran;
}

void check_same(const Ran& a, const Ran& b) {
  CHECK(a.files == b.files);
  CHECK(a.result.source == b.result.source);
  CHECK(a.result.target == b.result.target);
  CHECK(a.result.bytes_written == b.result.bytes_written);
}

}  // namespace

TEST_CASE("cuda: any pieces to any other pieces, as the processor does it") {
  const CudaModule* module = device();
  if (!module) return;
  Random random(20261122);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    Case c = random_case(random);
    const test::TempDir dir;
    write_files(c.source, dir);
    RunOptions options;
    options.cast = Caster();
    options.threads = static_cast<uint32_t>(1 + random() % 3);
    options.max_mem = random() % 2 ? uint64_t{1} << 20 : uint64_t{1} << 30;
    const Ran expected = run_to_memory(c, options);
    options.device = module;
    check_same(expected, run_to_memory(c, options));
  }
}

TEST_CASE("cuda: matrices stored transposed, of every element size") {
  const CudaModule* module = device();
  if (!module) return;
  Random random(6);
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::i64}) {
    for (const bool casts : {false, true}) {
      if (casts && dtype == DType::i64) continue;
      if (casts && dtype == DType::u8 && !test::have_torch()) continue;
      CAPTURE(name(dtype));
      const uint64_t rows = 1 + random() % 300, columns = 1 + random() % 300;
      const uint64_t element = element_size(dtype);
      Tensor tensor{.name = "t", .dtype = dtype, .shape = Shape{rows, columns}};
      const test::TempDir dir;
      const Bytes stored = noise(random, rows * columns * element);
      Case c;
      c.source.files.push_back(
          {.path = dir.write("s", {reinterpret_cast<const char*>(stored.data()),
                                   stored.size()}),
           .size = stored.size()});
      Piece piece{.box = Box::whole(tensor.shape), .flat = {}, .extent = {}};
      piece.extent = {0, 0, Dims{element, rows * element}};
      tensor.pieces = {piece};
      c.source.tensors = {tensor};
      tensor.pieces[0].extent.strides = {};
      if (casts) tensor.dtype = DType::f32;
      if (casts && dtype == DType::f32) tensor.dtype = DType::bf16;
      c.target.catalog.tensors = {tensor};
      c.target.catalog.files = {{}};
      c.target.files.push_back(
          {.size = rows * columns * element_size(tensor.dtype)});
      RunOptions options;
      options.cast = Caster();
      const Ran expected = run_to_memory(c, options);
      for (const uint64_t max_mem : {uint64_t{1} << 20, uint64_t{1} << 30}) {
        options.device = module;
        options.max_mem = max_mem;
        check_same(expected, run_to_memory(c, options));
      }
    }
  }
}

namespace {

// Threads that play ranks can't meet by NCCL: it wants a GPU for each.
bool ranks_are_threads(const CudaModule* module) {
  return module &&
         std::string_view(module->api().version).ends_with("threads for ranks");
}

CkptCudaPeers* open_peers(const CudaModule& module, uint32_t rank,
                          uint32_t size, const unsigned char* id,
                          double seconds) {
  CkptCudaPeers* peers = nullptr;
  const int32_t status =
      module.api().peers_open(0, rank, size, id, kRoom, seconds, &peers);
  return status == 0 ? peers : nullptr;
}

// Bytes that one rank sends another in a round; both know it.
uint64_t share_of(uint32_t round, uint32_t from, uint32_t to) {
  return from == to ? 0 : (round * 7919 + from * 613 + to * 127) % 5000;
}

std::byte byte_of(uint32_t round, uint32_t from, uint32_t to, uint64_t i) {
  return static_cast<std::byte>(round + 3 * from + 5 * to + i);
}

uint64_t padded(uint64_t bytes) { return (bytes + 15) / 16 * 16; }

// Returns how many bytes arrived wrong, and rounds that failed. `peers` is to
// be closed when all ranks are done: an end ends the others' waits.
uint64_t play_rank(const CudaModule& module, uint32_t rank, uint32_t size,
                   const unsigned char* id, CkptCudaPeers*& peers) {
  const CkptCudaApi& api = module.api();
  peers = open_peers(module, rank, size, id, 20);
  if (!peers) return 1;
  uint64_t wrong = 0;
  for (uint32_t round = 0; round < 8; ++round) {
    std::vector<uint64_t> send(size), receive(size);
    auto* out = static_cast<std::byte*>(api.peers_outbox(peers));
    for (uint32_t r = 0; r < size; ++r) {
      send[r] = share_of(round, rank, r);
      receive[r] = share_of(round, r, rank);
      for (uint64_t i = 0; i < send[r]; ++i)
        out[i] = byte_of(round, rank, r, i);
      out += padded(send[r]);
    }
    wrong += api.peers_exchange(peers, send.data(), receive.data(), 20) != 0;
    const auto* in = static_cast<const std::byte*>(api.peers_inbox(peers));
    for (uint32_t r = 0; r < size; ++r) {
      for (uint64_t i = 0; i < receive[r]; ++i)
        wrong += in[i] != byte_of(round, r, rank, i);
      in += padded(receive[r]);
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("cuda: rounds between ranks bring each what it is sent") {
  const CudaModule* module = device();
  if (!ranks_are_threads(module)) return;
  unsigned char id[CKPT_CUDA_ID_BYTES];
  module->require(module->api().peers_id(id));
  std::vector<uint64_t> wrong(3, 1);
  std::vector<CkptCudaPeers*> peers(3);
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < 3; ++r)
    ranks.emplace_back(
        [&, r] { wrong[r] = play_rank(*module, r, 3, id, peers[r]); });
  for (std::thread& rank : ranks) rank.join();
  for (CkptCudaPeers* one : peers)
    if (one) module->api().peers_close(one);
  CHECK(wrong == std::vector<uint64_t>(3, 0));
}

TEST_CASE("cuda: a rank that does not come ends the others' wait") {
  const CudaModule* module = device();
  if (!ranks_are_threads(module)) return;
  const CkptCudaApi& api = module->api();
  unsigned char id[CKPT_CUDA_ID_BYTES];
  module->require(api.peers_id(id));
  CHECK(open_peers(*module, 0, 2, id, 0.05) == nullptr);  // alone
  CHECK(std::string(api.error()).find("may have ended") != std::string::npos);

  module->require(api.peers_id(id));
  CkptCudaPeers* late = nullptr;
  std::thread other([&] { late = open_peers(*module, 1, 2, id, 20); });
  CkptCudaPeers* peers = open_peers(*module, 0, 2, id, 20);
  other.join();
  REQUIRE(peers);
  REQUIRE(late);
  const uint64_t send[] = {0, 100}, receive[] = {0, 100};
  CHECK(api.peers_exchange(peers, send, receive, 0.05) != 0);
  // Torn down: the next call fails at once, and so does the other's round.
  CHECK(api.peers_exchange(peers, send, receive, 20) != 0);
  CHECK(std::string(api.error()).find("failed before") != std::string::npos);
  const uint64_t back[] = {100, 0};
  CHECK(api.peers_exchange(late, back, back, 20) != 0);
  CHECK(std::string(api.error()).find("has ended") != std::string::npos);
  api.peers_close(peers);
  api.peers_close(late);
}

TEST_CASE("cuda: what is no work of a plan is refused") {
  const CudaModule* module = device();
  if (!module) return;
  Bench bench(*module, 4096);
  CHECK_THROWS_WITH_AS(bench.run({}, 5000, {}),
                       doctest::Contains("larger than its buffers"), Error);
  CkptCudaCopy copy{};
  copy.from = CKPT_CUDA_F32;
  copy.to = CKPT_CUDA_I8;
  CHECK_THROWS_AS(bench.run({}, 0, {copy}), Error);
  copy = {};
  copy.dims = 9;
  CHECK_THROWS_AS(bench.run({}, 0, {copy}), Error);
}

}  // namespace ckpt::reshard
