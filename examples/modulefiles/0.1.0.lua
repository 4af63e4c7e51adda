-- Lmod: in $MODULEPATH/ckpt/0.1.0.lua, with the .tar.gz unpacked below
-- /apps/ckpt. The binary brings all it needs except glibc.
help([[ckpt opens, verifies, converts and reshards training checkpoints.
ckpt --help lists its commands; man ckpt says more.]])
whatis("Name: ckpt")
whatis("Version: 0.1.0")
whatis("Description: training checkpoints of large models")

local machine = subprocess("uname -m"):gsub("%s", "")
local root = "/apps/ckpt/ckpt-0.1.0-linux-" .. machine
prepend_path("PATH", pathJoin(root, "bin"))
prepend_path("PYTHONPATH", pathJoin(root, "share/ckpt/python"))
-- Either replaces the system's own places once it is set. man needs none: it
-- looks beside what is on the PATH.
if (os.getenv("MANPATH") or "") ~= "" then
  prepend_path("MANPATH", pathJoin(root, "share/man"))
end
if (os.getenv("XDG_DATA_DIRS") or "") == "" then
  append_path("XDG_DATA_DIRS", "/usr/local/share:/usr/share")
end
prepend_path("XDG_DATA_DIRS", pathJoin(root, "share"))
-- Put modules for MPI and CUDA that this site has built there.
prepend_path("CKPT_MODULE_PATH", pathJoin(root, "lib"))
