# SPDX-License-Identifier: Apache-2.0
"""Writes FSDP checkpoints: make.py fs|raw|orig RANKS DIR, with torch and, for
fs, fairscale 0.4.13. DIR gets ckpt, and the full tensors as full*.pt."""
import os, sys, json

import torch, torch.distributed as dist, torch.multiprocessing as mp, torch.nn as nn
class Block(nn.Module):
    def __init__(s, d, h):
        super().__init__(); s.norm = nn.LayerNorm(d); s.w1 = nn.Linear(d, h, bias=False); s.w2 = nn.Linear(h, d)
    def forward(s, x): return x + s.w2(torch.relu(s.w1(s.norm(x))))
class Net(nn.Module):
    def __init__(s, v=11, d=7, h=10, n=2):
        super().__init__(); s.emb = nn.Embedding(v, d); s.layers = nn.ModuleList(Block(d, h) for _ in range(n)); s.out = nn.Linear(d, v, bias=False)
        s.register_buffer("freqs", torch.arange(5.))
    def forward(s, i):
        x = s.emb(i)
        for l in s.layers: x = l(x)
        return s.out(x)
def torch_rank(rank, world, out, orig):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29617")
    dist.init_process_group("gloo", rank=rank, world_size=world); torch.manual_seed(1)
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType, LocalStateDictConfig
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    m = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=orig, device_id=torch.device("cpu"))
    opt = torch.optim.AdamW(m.parameters(), lr=1e-2, foreach=False)
    for step in range(2):
        for k, p in enumerate(m.parameters()):
            p.grad = torch.sin(p.detach() * (step + 1)) if p.numel() else None
        opt.step()
    with FSDP.state_dict_type(m, StateDictType.LOCAL_STATE_DICT, LocalStateDictConfig(offload_to_cpu=False)):
        sd = m.state_dict()
    d = out + "/ckpt"; os.makedirs(d, exist_ok=True)
    torch.save(sd, f"{d}/model_rank{rank}.pt")
    if not orig: torch.save(opt.state_dict(), f"{d}/optim_rank{rank}.pt")
    full = {}
    with FSDP.summon_full_params(m, writeback=False):
        for n, p in list(m.named_parameters()) + list(m.named_buffers()): full[n.replace("_fsdp_wrapped_module.", "")] = p.detach().clone()
    info = []
    for mname, mod in m.named_modules():
        if not isinstance(mod, FSDP): continue
        key = ".".join([q for q in mname.split(".") if q and q != "_fsdp_wrapped_module"] + ["_flat_param"])
        fp = mod._handle.flat_param
        info.append({"key": key, "fqns": list(fp._fqns), "shapes": [list(s) for s in fp._shapes], "numels": list(fp._numels), "unpadded": list(fp._unpadded_unsharded_size), "sharded": list(fp._sharded_size), "pad": int(fp._shard_numel_padded)})
    if rank == 0:
        torch.save(full, out + "/full.pt"); json.dump(info, open(out + "/units.json", "w"), indent=1)
    # states: gather flats
    if not orig:
        st = opt.state_dict()["state"]
        res = {}
        for i, u in enumerate(info):
            for k in ("exp_avg", "exp_avg_sq"):
                parts = [torch.zeros_like(st[i][k]) for _ in range(world)]
                dist.all_gather(parts, st[i][k]); flat = torch.cat(parts); off = 0
                for q, s in zip(u["fqns"], u["shapes"]):
                    n = 1
                    for x in s: n *= x
                    res[u["key"][:-len("_flat_param")] + q + "." + k] = flat[off:off + n].view(s).clone(); off += n
        if rank == 0: torch.save(res, out + "/full_optim.pt")
    dist.barrier(); dist.destroy_process_group()
def fs_rank(rank, world, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29618")
    dist.init_process_group("gloo", rank=rank, world_size=world); torch.manual_seed(1)
    from fairscale.nn.data_parallel import FullyShardedDataParallel as FSDP
    net = Net()
    for i in range(len(net.layers)): net.layers[i] = FSDP(net.layers[i], flatten_parameters=True, compute_device=torch.device("cpu"))
    m = FSDP(net, flatten_parameters=True, compute_device=torch.device("cpu"))
    opt = torch.optim.AdamW(m.parameters(), lr=1e-2, foreach=False)
    for step in range(2):
        for p in m.parameters(): p.grad = torch.sin(p.detach() * (step + 1))
        opt.step()
    sd = m.local_state_dict(); meta = m.local_metadata_dict()
    d = out + "/ckpt"; os.makedirs(d, exist_ok=True)
    torch.save({"model": sd, "shard_metadata": meta, "last_optimizer_state": opt.state_dict(), "extra": {"epoch": 3}}, f"{d}/checkpoint_1_100-shard{rank}.pt")
    dist.barrier(); dist.destroy_process_group()
if __name__ == "__main__":
    what, world, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    os.makedirs(out, exist_ok=True)
    if what == "fs":
        mp.spawn(fs_rank, (world, out), nprocs=world)
        from fairscale.nn.data_parallel import FullyShardedDataParallel as FSDP
        all_ = [torch.load(f"{out}/ckpt/checkpoint_1_100-shard{r}.pt", weights_only=False) for r in range(world)]
        full = FSDP.consolidate_shard_weights([a["model"] for a in all_], [a["shard_metadata"] for a in all_])
        torch.save(full, out + "/full.pt")
        print({k: tuple(v.shape) for k, v in full.items()}); print(all_[world-1]["shard_metadata"]); print({k: v.shape for k, v in all_[0]["model"].items()}); print({k:{a:getattr(b,'shape',b) for a,b in v.items()} for k,v in all_[0]["last_optimizer_state"]["state"].items()})
    else:
        mp.spawn(torch_rank, (world, out, what == "orig"), nprocs=world)
        print(open(out + "/units.json").read()[:1500])
