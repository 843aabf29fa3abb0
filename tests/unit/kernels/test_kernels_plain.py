"""Plain torch's own properties; its values are tested as operators, in test_kernels_ops.py."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kernels import kernel_cases as cases
from trialfleet.nodes.kernels import plain

WORD = st.integers(0, 2**32 - 1)

KNOWN = [  # Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, words
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([2**32 - 1] * 4, [2**32 - 1] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_answers(
    counter: list[int], key: list[int], words: list[int]
) -> None:
    assert cases.philox(counter, key) == words
    assert torch_philox(counter, key) == words


@given(counter=st.lists(WORD, min_size=4, max_size=4), key=st.lists(WORD, min_size=2, max_size=2))
def test_philox_in_torch_equals_philox_in_python(counter: list[int], key: list[int]) -> None:
    assert torch_philox(counter, key) == cases.philox(counter, key)


def torch_philox(counter: list[int], key: list[int]) -> list[int]:
    words = plain.philox([torch.tensor(c) for c in counter], [torch.tensor(k) for k in key])
    return [int(word) for word in words]


def test_the_mask_is_right_for_large_seeds_steps_and_layers() -> None:
    seed, step, layer = -(2**63) + 12345, 2**40 + 17, 2**32 - 1
    mask = plain.dropout_mask(torch.Size([13, 7]), torch.tensor([seed, step]), layer, 0.4)
    assert torch.equal(mask, cases.kept([13, 7], seed, step, layer, 0.4))


@pytest.mark.parametrize("name", cases.arguments())
def test_no_function_reads_a_value_of_a_tensor(name: str) -> None:
    """A tensor without data has none to look at: so all of it can be captured in a CUDA graph."""
    function = getattr(plain, name)
    with torch.no_grad():
        function(*cases.on("meta", cases.arguments()[name]))
