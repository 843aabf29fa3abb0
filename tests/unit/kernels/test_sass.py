"""Instructions of a GPU are counted by the rounds of the loops that move data."""

from __future__ import annotations

import shutil

import pytest

from tests.kernels import sass
from tests.kernels.sass import Round
from tests.kernels.stand_in import CUDA

# Cut from cuobjdump's output. A loop, in it a part that is jumped over unless P1, a division's rare
# case, and a loop that moves nothing; a self-jump with which every kernel ends. Then a kernel
# without a loop, in which a thread that has nothing to do leaves, and one that only leaves.
LISTING = """
		Function : _ZN1a6kernelEv
        /*0000*/                   S2R R0, SR_TID.X ;                 /* 0x0000000000007919 */
                                                                      /* 0x000e220000002100 */
        /*0010*/               @P0 EXIT ;                             /* 0x000000000000094d */
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;   /* 0x0000000402047981 */
        /*0030*/              @!P1 BRA 0x60 ;                         /* 0x0000003000009947 */
        /*0040*/                   IMAD.WIDE.U32 R6, R2, -0x2daee0ad, RZ ;
        /*0050*/                   LOP3.LUT R6, R7, R2, RZ, 0x3c, !PT ;
        /*0060*/               @P3 BRA 0x80 ;
        /*0070*/                   CALL.REL.NOINC 0xe0 ;
        /*0080*/                   SHFL.BFLY PT, R6, R6, R9, 0x1f ;
        /*0090*/               @P4 BRA 0x80 ;
        /*00a0*/                   STG.E.U16 desc[UR4][R2.64], R4 ;
        /*00b0*/                   STG.E.64 desc[UR4][R2.64], R4 ;
        /*00c0*/              @!P2 BRA 0x20 ;
        /*00d0*/                   EXIT ;
        /*00e0*/                   RET.REL.NODEC R10 `(_ZN1a6kernelEv) ;
        /*00f0*/                   BRA 0xf0;
        /*0100*/                   NOP;
		Function : second
        /*0000*/               @P0 BRA 0x50 ;
        /*0010*/                   LDG.E R4, desc[UR4][R2.64] ;
        /*0020*/               @P1 BRA 0x40 ;
        /*0030*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0040*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0050*/                   EXIT ;
		Function : third
        /*0000*/                   EXIT ;
"""


def test_instructions_are_counted_per_round_or_per_pass_without_a_loop() -> None:
    first, second, third = sass.kernels(LISTING)
    assert len(first) == 16
    # All of the loop but the call, and the shuffle's loop once.
    assert first.rounds() == [Round("round", instructions=10, read=16, written=2 + 8)]
    assert second.rounds() == [Round("way", instructions=6, read=4 + 16, written=16)]
    assert third.rounds() == []
    assert Round("", instructions=36, read=32, written=16).per_pack == 12.0


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("nvcc") and shutil.which("cuobjdump", path=sass.tools())),
    reason="needs nvcc and cuobjdump",
)
def test_every_kernel_is_counted_and_the_main_ones_stay_below_a_limit() -> None:
    """Memory takes longer than the instructions, by the data sheet of an H200.

    A warp that reads and writes 256 values of bfloat16, 1 KB, has 223 cycles of its scheduler;
    with float32 targets, 448.
    """
    every = {
        sass.demangled(kernel.name): kernel.rounds()
        for source in sorted(CUDA.glob("*.cu"))
        for kernel in sass.kernels(sass.listing(source, "sm_90"))
    }
    assert not [name for name, rounds in every.items() if not rounds]
    packed = [rounds for name, rounds in every.items() if "forward_kernel<(Layout)2" in name]
    assert len(packed) == 5
    assert max(each.instructions for rounds in packed for each in rounds) <= 160
    sigmoid = every["pointwise_kernel<true, __nv_bfloat16, SigmoidBce>"]
    assert max(each.instructions for each in sigmoid) <= 36 * 8  # values of a round
