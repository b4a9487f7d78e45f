"""The functions of OpenCL C that a checked kernel may call: those that take numbers and no pointers.

Everything else that a compiler offers is refused, known to us or not: a function that takes a pointer takes 0 for one,
too, and some drivers have each of theirs once more under a name of their own.
"""

from __future__ import annotations

import re

from anygpu.codegen.custom.tokens import words_in

_WORK_ITEMS = (
    "get_work_dim get_global_size get_global_id get_local_size get_local_id get_num_groups get_group_id "
    "get_global_offset barrier mem_fence read_mem_fence write_mem_fence"
)
_MATHS = (
    "acos acosh acospi asin asinh asinpi atan atan2 atanh atanpi atan2pi cbrt ceil copysign cos cosh cospi erfc erf "
    "exp exp2 exp10 expm1 fabs fdim floor fma fmax fmin fmod hypot ilogb ldexp lgamma log log2 log10 log1p logb mad "
    "maxmag minmag nan nextafter pow pown powr remainder rint rootn round rsqrt sin sinh sinpi sqrt tan tanh tanpi "
    "tgamma trunc"
)
_INTEGERS = (
    "abs abs_diff add_sat hadd rhadd clamp clz ctz mad_hi mad_sat max min mul_hi rotate sub_sat upsample popcount "
    "mad24 mul24"
)
_VECTORS = (
    "degrees mix radians step smoothstep sign cross dot distance length normalize fast_distance fast_length "
    "fast_normalize isequal isnotequal isgreater isgreaterequal isless islessequal islessgreater isfinite isinf isnan "
    "isnormal isordered isunordered signbit any all bitselect select shuffle shuffle2 vec_step"
)
_NUMBER = r"(?:u?char|u?short|u?int|u?long|float|double|half)(?:2|3|4|8|16)?"
_PATTERNS = re.compile(
    rf"convert_{_NUMBER}(?:_sat)?(?:_rt[ezpn])?|as_{_NUMBER}"
    r"|(?:half|native)_(?:cos|divide|exp|exp2|exp10|log|log2|log10|powr|recip|rsqrt|sin|sqrt|tan)"
)
_HARMLESS = words_in(" ".join((_WORK_ITEMS, _MATHS, _INTEGERS, _VECTORS)))

#: Functions that take the address of one number of 32 bits, or of 64.
ATOMIC = frozenset(
    f"atomic_{what}" for what in ("add", "sub", "xchg", "inc", "dec", "cmpxchg", "min", "max", "and", "or", "xor")
)
ATOM = frozenset(name.replace("atomic_", "atom_") for name in ATOMIC)
#: Compilers call these by themselves, and must not find a user's own instead.
_OF_COMPILERS = words_in("main memchr memcmp memcpy memmove memset bcmp bcopy bzero strlen abort exit malloc free")


def is_harmless(name: str) -> bool:
    return name in _HARMLESS or _PATTERNS.fullmatch(name) is not None


def may_be_defined(name: str) -> bool:
    """Whether a text may have a function of its own with this name."""
    return not is_harmless(name) and name not in _OF_COMPILERS and not name.startswith(("atom", "vload", "vstore"))
