// Whole numbers. NumPy's meaning everywhere: results wrap, a divisor of zero gives 0, and nothing traps. What may wrap
// is computed in the unsigned type, for C leaves it undefined in the signed one.

//: N=i32 T=int U=uint M=u32 SIGN=0x80000000u WIDTH=32
//: N=i64 T=long U=ulong M=u64 SIGN=0x8000000000000000ul WIDTH=64

// The smallest number is its own negative, as in NumPy.
static T abs_N(T x) {
    return x < 0 ? (T)(0 - (U)x) : x;
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

static T gcd_N(T x, T y) {
    return (T)gcd_M((U)abs_N(x), (U)abs_N(y));
}

// The rest of a division by one is 0, which is also right for -1 and for 0. NumPy counts the bits of the absolute value.
#ifdef WGSL
fn sign_N(x: T) -> T {
    return select(select(T(0), T(1), x > 0), T(-1), x < 0);
}

fn fmod_N(x: T, y: T) -> T {
    let divisor = safe_divisor_N(y);
    return x - (x / divisor) * divisor;
}

fn remainder_N(x: T, y: T) -> T {
    let divisor = safe_divisor_N(y);
    let rest = x - (x / divisor) * divisor;
    return select(rest, rest + divisor, rest != 0 && (rest < 0) != (divisor < 0));
}

fn popcount_N(x: T) -> T {
    return bitcast<T>(popcount_M(bitcast<U>(abs_N(x))));
}

fn right_shift_N(x: T, count: T) -> T {
    let inside = count >= 0 && count < WIDTH;
    return x >> u32(select(WIDTH - 1, count, inside));
}
#else
static T sign_N(T x) {
    return (x > 0) - (x < 0);
}

static T fmod_N(T x, T y) {
    return x % safe_divisor_N(y);
}

static T remainder_N(T x, T y) {
    const T divisor = safe_divisor_N(y);
    const T rest = x % divisor;
    return rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest;
}

static T popcount_N(T x) {
    return popcount(abs_N(x));
}

static T right_shift_N(T x, T count) {
    return x >> (count >= 0 && count < WIDTH ? count : WIDTH - 1);
}
#endif

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

// The greatest common divisor is Euclid's; 47 rounds for 32 bits and 92 for 64 are the most.
#ifdef WGSL
fn fmod_N(x: T, y: T) -> T {
    let divisor = max(y, T(1));
    return x - (x / divisor) * divisor;
}

fn remainder_N(x: T, y: T) -> T {
    return fmod_N(x, y);
}

fn gcd_N(x: T, y: T) -> T {
    var a = x;
    var b = y;
    while (b != 0) {
        let rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

fn right_shift_N(x: T, count: T) -> T {
    return select(T(0), x >> u32(count & (WIDTH - 1)), count < WIDTH);
}
#else
static T fmod_N(T x, T y) {
    return x % max(y, (T)1);
}

static T remainder_N(T x, T y) {
    return x % max(y, (T)1);
}

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
#endif

//: N=i32 T=int U=uint WIDTH=32
//: N=u32 T=uint U=uint WIDTH=32
//: N=i64 T=long U=ulong WIDTH=64
//: N=u64 T=ulong U=ulong WIDTH=64

#ifdef WGSL
fn left_shift_N(x: T, count: T) -> T {
    let distance = bitcast<U>(count);
    return select(T(0), x << u32(distance & (WIDTH - 1)), distance < WIDTH);
}
#else
static T left_shift_N(T x, T count) {
    return (U)count < WIDTH ? (T)((U)x << (U)count) : 0;
}
#endif

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

#ifdef WGSL
fn popcount_u32(x: u32) -> u32 {
    return countOneBits(x);
}

fn popcount_u64(x: u64) -> u64 {
    return u64(countOneBits(u32(x & 0xffffffff)) + countOneBits(u32(x >> 32u)));
}

fn leading_zeros_u32(x: u32) -> i32 {
    return i32(countLeadingZeros(x));
}

fn leading_zeros_u64(x: u64) -> i32 {
    let high = u32(x >> 32u);
    return i32(select(countLeadingZeros(high), 32u + countLeadingZeros(u32(x & 0xffffffff)), high == 0u));
}
#endif

// Narrow types live in 32 bits; these bring a result back into the range.
#ifdef WGSL
fn wrap_i8(x: i32) -> i32 {
    return extractBits(x, 0u, 8u);
}

fn wrap_i16(x: i32) -> i32 {
    return extractBits(x, 0u, 16u);
}
#else
static int wrap_i8(int x) {
    return (char)x;
}

static int wrap_i16(int x) {
    return (short)x;
}
#endif

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
