"""The inner loops of both legs, compiled by numba on first use (then from its cache) and run without the interpreter's lock.

Vectors are stored as float16 and compared as float32: half the memory traffic (``assay.index.halves``).
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from assay.index.atomics import tell, told
from assay.index.halves import wide

Float = NDArray[np.float32]
Int = NDArray[np.int64]
Mask = NDArray[np.bool_]

BLOCK = 16_384  # rows whose scores are summed at a time: 64 KiB, which stay in a core's own cache
HUNDREDS = 500  # rows, up to which to get the interpreter's lock back takes longer than to score them
FIRST, LATE = 10, 0.4  # see ``scan``
NEAREST = 64  # lists, of which few searches want more: to put all in order would take longer
LANES = 256  # of a block, each every 256th row: the processor compares eight of them at once


@njit(nogil=True, cache=True, fastmath=True)
def _dot(vectors, at, query):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for i in range(len(query)):
        total += wide(vectors[at, i]) * query[i]
    return total


@njit(nogil=True, cache=True)
def dots(vectors, at, query):  # type: ignore[no-untyped-def]
    """Inner products of a float32 vector with the float16 rows (as uint16) at some places."""
    out = np.empty(len(at), np.float32)
    for i in range(len(at)):
        out[i] = _dot(vectors, at[i], query)
    return out


@njit(cache=True)
def dots_few(vectors, at, query):  # type: ignore[no-untyped-def]
    """With the interpreter's lock: between two searches that want it, to get it back takes longer than a few hundred rows."""
    return dots(vectors, at, query)


@njit(nogil=True, cache=True)
def dots_all(vectors, query):  # type: ignore[no-untyped-def]
    out = np.empty(len(vectors), np.float32)
    for i in range(len(vectors)):
        out[i] = _dot(vectors, i, query)
    return out


@njit(cache=True, fastmath={"reassoc", "contract"})
def moments(mean, covariance, query):  # type: ignore[no-untyped-def]
    """Mean and variance of a query's products with vectors of which these are known; NaN where they are not. As ``dots_few``.
    BLAS would read the whole matrix, not half of it, in two threads, of which the other is busy with the dense leg."""
    total, spread = np.float32(0), np.float32(0)
    for i in range(len(query)):
        total += mean[i] * query[i]
        part = np.float32(0)
        for j in range(i):
            part += covariance[i, j] * query[j]
        spread += query[i] * (np.float32(2) * part + covariance[i, i] * query[i])
    return total, spread


# ---- a heap of the best k: its root is the worst of them, ties lose to the lower row -------------------------------------


@njit(inline="always")
def _worse(scores, rows, a, b):  # type: ignore[no-untyped-def]
    return scores[a] < scores[b] or (scores[a] == scores[b] and rows[a] > rows[b])


@njit(nogil=True, cache=True)
def _sink(scores, rows, size, at):  # type: ignore[no-untyped-def]
    while True:
        child = 2 * at + 1
        if child >= size:
            return
        if child + 1 < size and _worse(scores, rows, child + 1, child):
            child += 1
        if not _worse(scores, rows, child, at):
            return
        scores[at], scores[child] = scores[child], scores[at]
        rows[at], rows[child] = rows[child], rows[at]
        at = child


@njit(nogil=True, cache=True)
def _offer(scores, rows, size, k, score, row):  # type: ignore[no-untyped-def]
    """The heap's new size."""
    if size < k:
        at = size
        scores[at], rows[at] = score, row
        while at and _worse(scores, rows, at, (at - 1) // 2):
            up = (at - 1) // 2
            scores[at], scores[up] = scores[up], scores[at]
            rows[at], rows[up] = rows[up], rows[at]
            at = up
        return size + 1
    if score > scores[0] or (score == scores[0] and row < rows[0]):
        scores[0], rows[0] = score, row
        _sink(scores, rows, size, 0)
    return size


@njit(nogil=True, cache=True)
def _ordered(scores, rows, size):  # type: ignore[no-untyped-def]
    """Best first: the worst is taken off the heap to its end, again and again."""
    left = size
    while left > 1:
        left -= 1
        scores[0], scores[left] = scores[left], scores[0]
        rows[0], rows[left] = rows[left], rows[0]
        _sink(scores, rows, left, 0)
    return rows[:size].copy(), scores[:size].copy()


# ---- dense -------------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def best_of(positions, values, k):  # type: ignore[no-untyped-def]
    """The best k of some scored positions, best first."""
    k = min(k, len(positions))
    scores, found, size = np.empty(k, values.dtype), np.empty(k, np.int64), 0
    for i in range(len(positions)):
        size = _offer(scores, found, size, k, values[i], positions[i])
    return _ordered(scores, found, size)


@njit(nogil=True, cache=True)
def bytes_of(vectors, codes, steps, first, last):  # type: ignore[no-untyped-def]
    """Fill ``codes``, int8, and ``steps``, float32, of some float16 rows (as uint16), each by its own largest number: a row
    is about its step times its code."""
    for row in range(first, last):
        # Halves without a sign are ordered as their bits are, and of those many are compared at a time.
        bits = np.uint16(0)
        for i in range(vectors.shape[1]):
            bits = max(bits, np.uint16(vectors[row, i] & np.uint16(0x7FFF)))
        most = wide(bits)
        steps[row] = most / np.float32(127)
        by = np.float32(127) / most if most > 0 else np.float32(0)
        for i in range(vectors.shape[1]):
            codes[row, i] = np.int8(np.rint(wide(vectors[row, i]) * by))


@njit(nogil=True, cache=True, fastmath=True)
def _dot_of_code(codes, at, query):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for i in range(len(query)):
        total += np.float32(codes[at, i]) * query[i]
    return total


@njit(nogil=True, cache=True)
def scan(vectors, codes, steps, positions, starts, centres, lengths, query, k, spare, allowed, wanted):  # type: ignore[no-untyped-def]
    """The best k rows of the lists (slots ``starts[l]:starts[l + 1]``), the nearest list first, until ``wanted`` allowed rows
    were seen (any, where ``allowed`` is empty), and the best ten of them among the first .4: k and ``spare`` by their codes
    (``bytes_of``; ``centres`` and ``lengths`` are those of the lists), of these k by their vectors. Where rows far into the
    lists still come among the best ten, the lists' order says little about this query: what is allowed lies far from it.

    ``positions[slot]`` is the position of a row, and bit ``position % 8`` of ``allowed[position // 8]`` says whether it is
    allowed: bits of a million rows stay in a core's own cache, bytes do not. Returns positions and inner products, best first.
    """
    filtered = len(allowed) > 0
    lists = len(starts) - 1
    every, near = np.arange(lists), np.empty(lists, np.float32)
    for number in range(lists):
        near[number] = lengths[number] * _dot_of_code(centres, number, query)
    order, _ = best_of(every, near, NEAREST)
    scores, found, size, seen = np.empty(k + spare, np.float32), np.empty(k + spare, np.int64), 0, 0
    ten, of_ten, came = np.full(min(k, FIRST), -np.inf, np.float32), np.zeros(min(k, FIRST), np.int64), 0
    slots, at = np.empty(BLOCK, np.int64), 0
    while at < lists and (seen < wanted or came > LATE * seen):
        if at == len(order):
            order, _ = best_of(every, near, 4 * at)
        here = order[at]
        for first in range(starts[here], starts[here + 1], BLOCK):
            # All are looked up before any is compared: they lie anywhere, and the processor waits for many at a time.
            kept = 0
            for slot in range(first, min(first + BLOCK, starts[here + 1])):
                slots[kept] = slot
                kept += not filtered or (allowed[positions[slot] >> 3] >> (positions[slot] & 7)) & 1
            seen += kept
            for i in range(kept):
                score = steps[slots[i]] * _dot_of_code(codes, slots[i], query)
                if size == len(scores) and score < scores[0]:
                    continue
                size = _offer(scores, found, size, len(scores), score, slots[i])
                if score > ten[0]:
                    ten[0], came = score, seen
                    _sink(ten, of_ten, len(ten), 0)
        at += 1
    return best_of(positions[found[:size]], dots(vectors, found[:size], query), k)


@njit(nogil=True, cache=True)
def scan_into(task, positions, scores, state):  # type: ignore[no-untyped-def]
    """``scan`` of its arguments, into arrays that another thread has. ``state``: 0, then 1 as it begins, and as it ends 2 + how
    many rows were found."""
    tell(state, 1)
    found, near = scan(*task)
    for i in range(len(found)):
        positions[i], scores[i] = found[i], near[i]
    tell(state, len(found) + 2)


@njit(nogil=True, cache=True)
def awaited(state, least, looks):  # type: ignore[no-untyped-def]
    """The state, as soon as it is ``least``, or after so many looks (some 50 ns each) whatever it is then."""
    spent = 1.5
    for _ in range(looks):
        if told(state) >= least:
            break
        for _ in range(8):  # divisions that wait for each other, and leave the core's other thread its units
            spent = 1.0 / spent + 0.5
    return told(state) if spent > 0 else 0


@njit(nogil=True, cache=True)
def scan_all(vectors, positions, query, k, allowed):  # type: ignore[no-untyped-def]
    """The best k rows of all slots, as they are stored: positions and inner products, best first. ``allowed``: see ``scan``."""
    filtered = len(allowed) > 0
    scores, found, size = np.empty(k, np.float32), np.empty(k, np.int64), 0
    for slot in range(len(positions)):
        at = positions[slot]
        if not filtered or (allowed[at >> 3] >> (at & 7)) & 1:
            size = _offer(scores, found, size, k, _dot(vectors, slot, query), at)
    return _ordered(scores, found, size)


# ---- sparse ------------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def index_terms(terms, lengths, vocabulary):  # type: ignore[no-untyped-def]
    """Postings from the documents' term ids, one document after the other: for each term, ascending, the rows and how often.

    Returns ``starts`` (vocabulary + 1), ``rows`` and ``counts``.
    """
    last, starts = np.full(vocabulary, -1, np.int64), np.zeros(vocabulary + 1, np.int64)
    at = 0
    for row in range(len(lengths)):
        for _ in range(lengths[row]):
            term = terms[at]
            at += 1
            if last[term] != row:
                last[term] = row
                starts[term + 1] += 1
    for term in range(vocabulary):
        starts[term + 1] += starts[term]
    fill, at = starts[:-1].copy(), 0
    last[:] = -1
    rows, counts = np.empty(starts[-1], np.int32), np.zeros(starts[-1], np.int32)
    for row in range(len(lengths)):
        for _ in range(lengths[row]):
            term = terms[at]
            at += 1
            if last[term] != row:
                last[term] = row
                rows[fill[term]] = row
                fill[term] += 1
            counts[fill[term] - 1] += 1
    return starts, rows, counts


@njit(nogil=True, cache=True)
def saturated(rows, counts, lengths, k1, b, average):  # type: ignore[no-untyped-def]
    """The part of BM25 that needs no other document: tf / (tf + k1 (1 - b + b length / average))."""
    out = np.empty(len(rows), np.float32)
    for i in range(len(rows)):
        norm = k1 * (1 - b + b * lengths[rows[i]] / average)
        out[i] = counts[i] / (counts[i] + norm)
    return out


@njit(nogil=True, cache=True)
def living(starts, rows, alive):  # type: ignore[no-untyped-def]
    """Of each term the number of living rows."""
    out = np.zeros(len(starts) - 1, np.int64)
    for term in range(len(out)):
        for i in range(starts[term], starts[term + 1]):
            out[term] += alive[rows[i]]
    return out


@njit(nogil=True, cache=True)
def place(rows, low, high, row):  # type: ignore[no-untyped-def]
    """The first place in [low, high) of what ascends with what is not below ``row``; ``high`` where there is none."""
    while low < high:
        middle = (low + high) // 2
        if rows[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def _seek(rows, low, high, row, share):  # type: ignore[no-untyped-def]
    """The first place in [low, high) with a row that is not below ``row``. Looked for from where it would be if postings were
    spread evenly, ``share`` of them a row, in steps that double, since it is mostly near."""
    if low == high or rows[low] >= row:
        return low
    step, near = 1, min(high - 1, low + int((row - rows[low]) * share))
    if rows[near] < row:
        while near + step < high and rows[near + step] < row:
            near += step
            step *= 2
        low, high = near + 1, min(high, near + step)
    else:
        while near - step > low and rows[near - step] >= row:
            near -= step
            step *= 2
        low, high = max(low, near - step), near
    return place(rows, low, high, row)


@njit(nogil=True, cache=True)
def sums_at(rows, values, begins, ends, weights, wanted):  # type: ignore[no-untyped-def]
    """BM25 of some rows, in any order (ascending is fastest): of each term, the heaviest first, its weight times its value."""
    out = np.zeros(len(wanted), np.float32)
    for t in range(len(begins)):
        at = begins[t]
        share = (ends[t] - at) / (1 + rows[ends[t] - 1] - rows[at])
        for i in range(len(wanted)):
            if i and wanted[i] < wanted[i - 1]:
                at = begins[t]
            at = _seek(rows, at, ends[t], wanted[i], share)
            if at < ends[t] and rows[at] == wanted[i]:
                out[i] += weights[t] * values[at]
    return out


@njit(cache=True)
def sums_few(rows, values, begins, ends, weights, wanted):  # type: ignore[no-untyped-def]
    """As ``dots_few``."""
    return sums_at(rows, values, begins, ends, weights, wanted)


@njit(nogil=True, cache=True)
def _keep(sums, allowed):  # type: ignore[no-untyped-def]
    for i in range(len(allowed)):
        sums[i] = sums[i] if allowed[i] else np.float32(0)


@njit(nogil=True, cache=True, fastmath=True)
def _highest(sums, highs):  # type: ignore[no-untyped-def]
    """Of each column."""
    highs[:] = 0
    for i in range(len(sums)):
        for lane in range(LANES):
            highs[lane] = max(highs[lane], sums[i, lane])


@njit(nogil=True, cache=True)
def best_sums(count, rows, values, begins, ends, weights, k, allowed, few):  # type: ignore[no-untyped-def]
    """The best k rows of ``count`` by BM25 above 0: rows and scores, best first, ties by row. ``allowed`` is empty where
    all are; where ``few`` are, the others' sums are dropped before the best of them are looked for.

    Block of rows by block of rows, whose sums stay in the cache: every posting is added, without a question asked of it, and
    then only those lanes of the block are looked at whose highest sum is above the worst that was kept.
    """
    scores, found, size = np.empty(k, np.float32), np.empty(k, np.int64), 0
    sums, highs = np.empty(BLOCK, np.float32), np.empty(LANES, np.float32)
    by_lane, at, least, filtered = sums.reshape(-1, LANES), begins.copy(), np.float32(1e-30), len(allowed) > 0
    for first in range(0, count, BLOCK):
        end = min(count, first + BLOCK)
        sums[:] = 0
        for t in range(len(begins)):
            i, last, weight = at[t], ends[t], weights[t]
            while i < last and rows[i] < end:
                sums[np.uint32(rows[i] - first)] += weight * values[i]
                i += 1
            at[t] = i
        if few:
            _keep(sums, allowed[first:end])
        _highest(by_lane, highs)
        for lane in range(LANES):
            if highs[lane] >= least:
                for place in range(lane, BLOCK, LANES):
                    if sums[place] >= least and (not filtered or allowed[first + place]):
                        size = _offer(scores, found, size, k, sums[place], first + place)
                        if size == k:
                            least = max(least, scores[0])
    return _ordered(scores, found, size)


@njit(nogil=True, cache=True)
def both(dense, sparse, slots, mean, covariance):  # type: ignore[no-untyped-def]
    """``scan`` and ``best_sums`` of their arguments, the query's products with what the latter found, and ``moments``: without
    the interpreter's lock between them, since a thread that wants it back waits as long as another one computes."""
    vectors, query = dense[0], dense[7]
    matching = best_sums(*sparse)
    return scan(*dense), matching, dots(vectors, slots[matching[0]], query), moments(mean, covariance, query)
