// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/pack.h"
#include "reshard/ranks/share.h"

namespace ckpt::ranks {
namespace {

using reshard::Gather;
using reshard::Item;
using reshard::Job;
using reshard::kNone;
using reshard::Lane;
using reshard::Move;
using reshard::Plan;

void put_shape(Packer& out, const Dims& dims) {
  out.list(std::vector<uint64_t>(dims.begin(), dims.end()));
}
Dims take_shape(Unpacker& in) {
  Dims dims;
  for (const uint64_t n : in.list<uint64_t>()) dims.push_back(n);
  return dims;
}

void put_gather(Packer& out, const Gather& gather) {
  out.put(gather.tensor);
  out.put(gather.source_file);
  out.put(gather.target_file);
  out.put(gather.transform);
  out.put(gather.source_offset);
  out.put(gather.target_offset);
  out.put(gather.content);
  for (const Dims* dims : {&gather.shape, &gather.source_strides,
                           &gather.target_strides, &gather.content_strides})
    put_shape(out, *dims);
  out.put(gather.digest);
  out.put(gather.check);
}

Gather take_gather(Unpacker& in) {
  Gather gather;
  gather.tensor = in.take<uint32_t>();
  gather.source_file = in.take<uint32_t>();
  gather.target_file = in.take<uint32_t>();
  gather.transform = in.take<uint8_t>();
  gather.source_offset = in.take<uint64_t>();
  gather.target_offset = in.take<uint64_t>();
  gather.content = in.take<uint64_t>();
  for (Dims* dims : {&gather.shape, &gather.source_strides,
                     &gather.target_strides, &gather.content_strides})
    *dims = take_shape(in);
  gather.digest = in.take<uint32_t>();
  gather.check = in.take<uint32_t>();
  return gather;
}

void put_plan(Packer& out, const Plan& plan) {
  out.list(plan.jobs);
  out.list(plan.lanes);
  out.list(plan.moves);
  out.put(uint64_t{plan.gathers.size()});
  for (const Gather& gather : plan.gathers) put_gather(out, gather);
  out.put(plan.slots);
  out.put(plan.bytes_read);
}

void take_plan(Unpacker& in, Plan& plan) {
  plan.jobs = in.list<Job>();
  plan.lanes = in.list<Lane>();
  plan.moves = in.list<Move>();
  plan.gathers.resize(in.count(64));
  for (Gather& gather : plan.gathers) gather = take_gather(in);
  plan.slots = in.take<uint32_t>();
  plan.bytes_read = in.take<uint64_t>();
}

struct CrcPlace {
  uint64_t begin, end;
  uint32_t index, zero;
};

// Sends only the existing entries of mostly empty lists: the total number, then
// the numbers of those entries, then the entries.
void put_tensors(Packer& out, const Share& share) {
  out.put(uint64_t{share.plan.tensors.size()});
  out.list(share.tensors);
  for (const uint32_t i : share.tensors) {
    const reshard::PlannedTensor& tensor = share.plan.tensors[i];
    out.text(tensor.name);
    out.put(tensor.source_dtype);
    out.put(tensor.target_dtype);
  }
}

void take_tensors(Unpacker& in, Share& share) {
  share.plan.tensors.resize(in.take<uint64_t>());
  share.tensors = in.list<uint32_t>();
  for (const uint32_t i : share.tensors) {
    reshard::PlannedTensor& tensor = share.plan.tensors.at(i);
    tensor.name = in.text();
    tensor.source_dtype = in.take<DType>();
    tensor.target_dtype = in.take<DType>();
  }
}

// Leaves out the owners of files that this rank neither touches nor writes.
void put_target(Packer& out, const Share& share) {
  const Target& target = share.target;
  std::vector<uint32_t> used, owners;
  for (uint32_t i = 0; i < target.files.size(); ++i)
    if (!target.files[i].path.empty()) used.push_back(i);
  out.put(uint64_t{target.files.size()});
  out.list(used);
  if (share.mailing.round)
    for (const uint32_t i : used) owners.push_back(share.mailing.owners[i]);
  out.list(owners);
  for (const uint32_t i : used) {
    out.text(target.files[i].path);
    out.put(target.files[i].size);
    std::vector<CrcPlace> crcs;
    for (size_t c = 0; c < target.files[i].crcs.size(); ++c)
      crcs.push_back({target.files[i].crcs[c].begin,
                      target.files[i].crcs[c].end, share.target_crcs[i][c], 0});
    out.list(crcs);
  }
}

void take_target(Unpacker& in, Share& share) {
  Target& target = share.target;
  target.files.resize(in.take<uint64_t>());
  share.target_crcs.resize(target.files.size());
  const auto used = in.list<uint32_t>();
  const auto owners = in.list<uint32_t>();
  if (!owners.empty()) share.mailing.owners.assign(target.files.size(), kNone);
  for (size_t n = 0; n < used.size(); ++n) {
    const uint32_t i = used[n];
    TargetFile& file = target.files.at(i);
    if (!owners.empty()) share.mailing.owners[i] = owners.at(n);
    file.path = in.text();
    file.size = in.take<uint64_t>();
    for (const CrcPlace& crc : in.list<CrcPlace>()) {
      file.crcs.push_back({crc.begin, crc.end, {}});
      share.target_crcs[i].push_back(crc.index);
    }
  }
}

struct Record {
  uint64_t begin, end;
  uint32_t file, crc32;
};

}  // namespace

void put_source(Packer& out, const Catalog& source) {
  put_files(out, source.files);
  std::vector<Record> crcs;
  for (const StoredCrc& crc : source.crcs)
    crcs.push_back({crc.begin, crc.end, crc.file, crc.crc32});
  out.list(crcs);
}

void take_source(Unpacker& in, Catalog& source, Kept& kept) {
  source.files = take_files(in, kept);
  for (const Record& crc : in.list<Record>())
    source.crcs.push_back({crc.file, crc.begin, crc.end, crc.crc32, ""});
}

std::string pack(const Share& share) {
  Packer out;
  put_plan(out, share.plan);
  put_tensors(out, share);
  out.list(share.items);
  put_source(out, share.source);
  out.list(share.crcs);
  out.put(share.mailing.round);
  out.put(share.mailing.rank);
  out.put(share.mailing.buffer);
  out.list(share.mailing.away);
  out.text(share.mailing.gpus);
  put_target(out, share);
  out.text(share.root);
  out.text(share.journal);
  out.put(share.work);
  out.put(share.max_mem);
  out.put(share.block);
  out.put(share.threads);
  out.put(share.neighbours);
  out.put(share.io);
  for (const bool flag :
       {share.digest, share.check_crcs, share.stats, share.sync, share.cuda,
        share.count_losses, share.saturate})
    out.put(flag);
  return out.take();
}

Share unpack_share(std::string_view bytes) {
  Unpacker in(bytes);
  Share share;
  take_plan(in, share.plan);
  take_tensors(in, share);
  share.items = in.list<Item>();
  take_source(in, share.source, share.kept);
  share.crcs = in.list<uint32_t>();
  share.mailing.round = in.take<uint32_t>();
  share.mailing.rank = in.take<uint32_t>();
  share.mailing.buffer = in.take<uint64_t>();
  share.mailing.away = in.list<uint8_t>();
  share.mailing.gpus = in.text();
  take_target(in, share);
  share.root = in.text();
  share.journal = in.text();
  share.work = in.take<uint64_t>();
  share.max_mem = in.take<uint64_t>();
  share.block = in.take<uint64_t>();
  share.threads = in.take<uint32_t>();
  share.neighbours = in.take<uint32_t>();
  share.io = in.take<ReadMode>();
  for (bool* flag :
       {&share.digest, &share.check_crcs, &share.stats, &share.sync,
        &share.cuda, &share.count_losses, &share.saturate})
    *flag = in.take<bool>();
  return share;
}

}  // namespace ckpt::ranks
