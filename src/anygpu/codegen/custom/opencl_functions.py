"""The built-in functions of OpenCL C, and those that a checked kernel may call: they take numbers and no pointers.

Everything else that a compiler offers is refused, known to us or not: a function that takes a pointer takes 0 for one,
too, and some drivers have each of theirs once more under a name of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from anygpu.codegen.custom.tokens import words_in
from anygpu.program.functions import BINARY, FUNCTIONS, TESTS, UNARY


def _of_table(functions: Iterable[str]) -> str:
    """The built-in functions of OpenCL C that elementwise functions are."""
    return " ".join(FUNCTIONS[fn].opencl for fn in functions if FUNCTIONS[fn].opencl)


#: Built-in functions by what they take, which is how they are declared; "float, 2" takes two numbers of a float type.
FAMILIES = {
    "work item": (
        "get_global_id get_global_offset get_global_size get_group_id get_local_id get_local_size get_num_groups"
    ),
    "barrier": "barrier",
    "fence": "mem_fence read_mem_fence write_mem_fence",
    "float, 1": (
        "acospi asinpi atanpi cospi erfc exp10 logb round rsqrt sinpi tanpi tgamma lgamma "
        + _of_table(fn for fn in UNARY if fn not in TESTS)
    ),
    "float, 2": f"atan2pi fdim powr remainder {_of_table(BINARY)}",
    "float, 2 or scalar": "fmax fmin",
    "float, 3": "fma mad",
    "float test": f"isnormal {_of_table(TESTS)}",
    "integer, 1": "clz popcount",
    "integer, 2": "add_sat hadd mul_hi rhadd rotate sub_sat",
    "integer, 3": "mad_hi mad_sat",
    "any, 2 or scalar": "max min",
    "any, 3 or scalar": "clamp",
    "absolute": "abs",
    "scaled": "ldexp",
    "integer power": "pown",
    "exponent": "ilogb",
    "taken apart": "frexp",
    "of lanes": "all any",
    "select": "select",
}
#: Others that take numbers, which no kernel of ours calls.
_OTHERS = (
    "get_work_dim maxmag minmag nan rootn abs_diff ctz upsample mad24 mul24 degrees mix radians step smoothstep sign "
    "cross dot distance length normalize fast_distance fast_length fast_normalize isequal isnotequal isgreater "
    "isgreaterequal isless islessequal islessgreater isordered isunordered bitselect shuffle shuffle2 vec_step"
)
_NUMBER = r"(?:u?char|u?short|u?int|u?long|float|double|half)(?:2|3|4|8|16)?"
_PATTERNS = re.compile(
    rf"convert_{_NUMBER}(?:_sat)?(?:_rt[ezpn])?|as_{_NUMBER}"
    r"|(?:half|native)_(?:cos|divide|exp|exp2|exp10|log|log2|log10|powr|recip|rsqrt|sin|sqrt|tan)"
)
#: All but what takes an address.
_HARMLESS = words_in(" ".join((_OTHERS, *(names for family, names in FAMILIES.items() if family != "taken apart"))))

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
