"""Counter-based random numbers: Philox 4x32-10. No state: a number is a function of its key and counter only.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words = NDArray[np.uint64]
"""32-bit words, held in 64 bits so that products fit."""

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_NUM_ROUNDS = 10


def philox(counter: Words, key: Words) -> Words:
    """Encrypt counters; counter is (4, n), key (2, n), the result (4, n): 32-bit words in the paper's order."""
    even, odd = counter[0::2], counter[1::2]
    for _ in range(_NUM_ROUNDS):
        products = (_MULTIPLIERS * even)[::-1]
        even = (products >> _32) ^ odd ^ key
        odd = products & _LOW
        key = (key + _KEY_STEPS) & _LOW
    return np.stack((even[0], odd[0], even[1], odd[1]))


def uniforms(seeds: Words, positions: ArrayLike) -> NDArray[np.float64]:
    """Return one number in [0, 1) per (seed, position), both (n,); seeds are 64-bit, negative ones modulo 2**64.

    The key is the seed, low word first; the counter is (position, 0, 0, 0). The first two words of the result, the
    first one as the higher, give the number's 53 bits. All runners agree on these, bit by bit.
    """
    counter = np.zeros((4, len(seeds)), dtype=np.uint64)
    counter[0] = positions
    words = philox(counter, np.stack((seeds & _LOW, seeds >> _32)))
    bits: Words = (words[0] << _32 | words[1]) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53
