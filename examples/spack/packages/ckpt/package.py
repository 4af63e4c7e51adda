# SPDX-License-Identifier: Apache-2.0
# In a checkout of ckpt:
# spack repo add examples/spack && spack dev-build ckpt@main+mpi
from spack.package import *

try:  # since Spack 1.0 they are no longer in spack.package
    from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
except ImportError:
    pass


class Ckpt(CMakePackage):
    """Opens, verifies, converts and reshards training checkpoints of large
    models."""

    license("Apache-2.0")

    # A release's archive will go here with its sha256; until then, dev-build
    # uses the checkout, and there is nothing to fetch.
    version("main", branch="main")

    variant("mpi", default=True, description="Runs of several ranks")
    variant("cuda", default=False, description="--device cuda")
    variant("torch", default=False, description="Casts from integers")

    depends_on("cxx", type="build")
    depends_on("cuda", when="+cuda")
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("cli11@2.1:", type="build")
    depends_on("nlohmann-json@3.10:")
    depends_on("fmt@8:9")  # newer ones have not been tried
    depends_on("spdlog@1.9:")
    depends_on("yaml-cpp@0.7:")
    depends_on("isa-l")
    depends_on("zlib-api")
    depends_on("bzip2")
    depends_on("zstd")
    depends_on("c-blosc")
    depends_on("liburing")
    depends_on("curl", type=("build", "run"))
    depends_on("mpi", when="+mpi")
    depends_on("py-torch", when="+torch")

    conflicts("%gcc@:11", msg="needs C++20 as GCC 12 has it")

    generator("ninja")

    def cmake_args(self):
        return [
            self.define("CKPT_TESTS", False),
            self.define("CKPT_WITH_CURL", "ON"),
            self.define_from_variant("CKPT_WITH_MPI", "mpi"),
            self.define_from_variant("CKPT_WITH_CUDA", "cuda"),
            self.define_from_variant("CKPT_WITH_TORCH", "torch"),
        ]
