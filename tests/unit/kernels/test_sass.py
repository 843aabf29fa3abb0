"""Instructions of a GPU are counted along the way that a thread takes."""

from __future__ import annotations

import shutil

import pytest

from tests.kernels import sass
from tests.kernels.stand_in import CUDA

# Cut from cuobjdump's output: a loop, in it a part that is jumped over unless P1, and a self-jump
# with which every kernel ends.
LISTING = """
		Function : _ZN1a6kernelEv
        /*0000*/                   S2R R0, SR_TID.X ;                 /* 0x0000000000007919 */
                                                                      /* 0x000e220000002100 */
        /*0010*/               @P0 EXIT ;                             /* 0x000000000000094d */
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;   /* 0x0000000402047981 */
        /*0030*/              @!P1 BRA 0x60 ;                         /* 0x0000003000009947 */
        /*0040*/                   IMAD.WIDE.U32 R6, R2, -0x2daee0ad, RZ ;
        /*0050*/                   LOP3.LUT R6, R7, R2, RZ, 0x3c, !PT ;
        /*0060*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0070*/              @!P2 BRA 0x20 ;
        /*0080*/                   EXIT ;
        /*0090*/                   BRA 0x90;
        /*00a0*/                   NOP;
		Function : second
        /*0000*/                   EXIT ;
"""


def test_the_way_and_a_further_round_are_counted() -> None:
    kernel, second = sass.kernels(LISTING)
    assert (len(kernel), kernel.way(), kernel.round()) == (
        10,
        2,
        4,
    )  # a thread beyond the end leaves
    assert kernel.way("0x2daee0ad") == 9
    assert kernel.round("0x2daee0ad") == 6
    assert (len(second), second.way(), second.round()) == (1, 1, None)


needs_tools = pytest.mark.skipif(
    not (shutil.which("nvcc") and shutil.which("cuobjdump")), reason="needs nvcc and cuobjdump"
)


@pytest.mark.slow
@needs_tools
def test_dropout_leaves_room_for_memory() -> None:
    """A warp moves 1 KB for 256 values of bfloat16: 223 cycles by the data sheet of an H200."""
    listing = sass.listing(CUDA / "activation.cu", "sm_90")
    rounds = [
        kernel.round("0x2daee0ad")
        for kernel in sass.kernels(listing)
        if "forward_kernel<(Layout)2" in sass.demangled(kernel.name)
    ]
    assert len(rounds) == 5
    assert max(filter(None, rounds)) <= 160


@pytest.mark.slow
@needs_tools
def test_losses_leave_room_for_memory() -> None:
    """32 values of bfloat16 move 256 bytes, with their gradients and float32 targets, or 128.

    By the data sheet of an H200 that is 56 cycles or 28 of a scheduler.
    """
    found = {
        sass.demangled(kernel.name): kernel
        for kernel in sass.kernels(sass.listing(CUDA / "losses.cu", "sm_90"))
    }
    sigmoid = found["pointwise_kernel<true, __nv_bfloat16, SigmoidBce>"].round("STG.E.128")
    assert sigmoid is not None
    assert sigmoid <= 36 * 8  # values of a round
    # All of it, as the shortest way leaves out what a row of 1024 goes through.
    softmax = found["softmax_kernel<HeldRow<true, 8, 4, __nv_bfloat16>, __nv_bfloat16>"]
    assert len(softmax) <= 24 * 32
