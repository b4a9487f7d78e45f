// Whole numbers. NumPy's meaning everywhere: results wrap, a divisor of zero gives 0, and nothing traps. What may wrap
// is computed in the unsigned type, for C leaves it undefined in the signed one.

//: N=i32 T=int U=uint M=u32 SIGN=0x80000000u WIDTH=32
//: N=i64 T=long U=ulong M=u64 SIGN=0x8000000000000000ul WIDTH=64

// The smallest number is its own negative, as in NumPy.
static T abs_N(T x) {
    return x < 0 ? (T)(0 - (U)x) : x;
}

static T sign_N(T x) {
    return (x > 0) - (x < 0);
}

// Beyond one there is nothing left of 1 / x; for 1 / 0 NumPy gives the smallest number.
static T reciprocal_N(T x) {
    return x == 0 ? (T)SIGN : x == 1 || x == -1 ? x : 0;
}

// Never 0 and never -1, by which the smallest number cannot be divided: callers deal with both apart.
static T safe_divisor_N(T y) {
    return y == 0 || y == -1 ? 1 : y;
}

static T floor_divide_N(T x, T y) {
    const T divisor = safe_divisor_N(y);
    const T quotient = x / divisor;
    const T rest = x - quotient * divisor;
    const T floored = quotient - (rest != 0 && (rest < 0) != (divisor < 0));
    return y == 0 ? 0 : y == -1 ? (T)(0 - (U)x) : floored;
}

// The rest of a division by one is 0, which is also right for -1 and for 0.
static T fmod_N(T x, T y) {
    return x % safe_divisor_N(y);
}

static T remainder_N(T x, T y) {
    const T divisor = safe_divisor_N(y);
    const T rest = x % divisor;
    return rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest;
}

static T gcd_N(T x, T y) {
    return (T)gcd_M((U)abs_N(x), (U)abs_N(y));
}

// NumPy counts the bits of the absolute value.
static T popcount_N(T x) {
    return popcount(abs_N(x));
}

static T right_shift_N(T x, T count) {
    return x >> (count >= 0 && count < WIDTH ? count : WIDTH - 1);
}

//: N=u32 T=uint WIDTH=32
//: N=u64 T=ulong WIDTH=64

static T sign_N(T x) {
    return x != 0;
}

static T reciprocal_N(T x) {
    return x == 1;
}

static T floor_divide_N(T x, T y) {
    return y == 0 ? 0 : x / max(y, (T)1);
}

static T fmod_N(T x, T y) {
    return x % max(y, (T)1);
}

static T remainder_N(T x, T y) {
    return x % max(y, (T)1);
}

// Euclid's; 47 rounds for 32 bits and 92 for 64 are the most.
static T gcd_N(T x, T y) {
    while (y != 0) {
        const T rest = x % y;
        x = y;
        y = rest;
    }
    return x;
}

static T right_shift_N(T x, T count) {
    return count < WIDTH ? x >> count : 0;
}

//: N=i32 T=int U=uint WIDTH=32
//: N=u32 T=uint U=uint WIDTH=32
//: N=i64 T=long U=ulong WIDTH=64
//: N=u64 T=ulong U=ulong WIDTH=64

static T left_shift_N(T x, T count) {
    return (U)count < WIDTH ? (T)((U)x << (U)count) : 0;
}

// By squaring; the exponent is not negative.
static T power_N(T base, T exponent) {
    U result = 1;
    U square = (U)base;
    for (U left = (U)exponent; left != 0; left >>= 1) {
        result *= (left & 1) ? square : 1;
        square *= square;
    }
    return (T)result;
}

//:

// Narrow types live in 32 bits; these bring a result back into the range.
static int wrap_i8(int x) {
    return (char)x;
}

static int wrap_i16(int x) {
    return (short)x;
}

static uint wrap_u8(uint x) {
    return x & 0xffu;
}

static uint wrap_u16(uint x) {
    return x & 0xffffu;
}

static bool minimum_bool(bool x, bool y) {
    return x && y;
}

static bool maximum_bool(bool x, bool y) {
    return x || y;
}
