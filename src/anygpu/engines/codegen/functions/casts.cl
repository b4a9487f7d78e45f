// Casts that a dialect leaves undefined, or that its compilers get wrong: out of range they do what NumPy does on x86-64.

#ifdef WGSL
//: N=f32 T=float U=uint
//: N=f64 T=double U=ulong

// The sign does not count, and NaN is true.
fn cast_N_bool(x: T) -> bool {
    return (bitcast<U>(x) << 1u) != 0;
}
#else
//: N=bool T=bool
//: N=i32 T=int
//: N=u32 T=uint
//: N=i64 T=long
//: N=u64 T=ulong
//: N=f32 T=float
//: N=f64 T=double

// NaN is true.
static bool cast_N_bool(T x) {
    return x != 0;
}

//: N=i32 T=int
//: N=u32 T=uint
//: N=i64 T=long
//: N=u64 T=ulong
//: N=f32 T=float
//: N=f64 T=double

static T cast_bool_N(bool x) {
    return x ? 1 : 0;
}
#endif

//: N=f32 T=float M=i32 I=int LOW=-2147483904.0f HIGH=2147483648.0f SIGN=0x80000000u
//: N=f64 T=double M=i32 I=int LOW=-2147483649.0 HIGH=2147483648.0 SIGN=0x80000000u
//: N=f32 T=float M=i64 I=long LOW=-9223373136366403584.0f HIGH=9223372036854775808.0f SIGN=0x8000000000000000ul
//: N=f64 T=double M=i64 I=long LOW=-9223372036854777856.0 HIGH=9223372036854775808.0 SIGN=0x8000000000000000ul

// NaN and everything out of range give the smallest integer.
static I cast_N_M(T x) {
    return x > LOW && x < HIGH ? (I)x : (I)SIGN;
}

//: N=f32 T=float HIGH=18446744073709551616.0f
//: N=f64 T=double HIGH=18446744073709551616.0

// A negative number wraps, as if it had been cast to a wide integer first; NaN and what even that cannot hold give 0.
static ulong cast_N_u64(T x) {
    return x >= 0 ? (x < HIGH ? (ulong)x : 0ul) : (ulong)cast_N_i64(x);
}

#ifdef WGSL
//:

// No 64-bit integer is needed: the significand is moved to its place.
fn cast_f32_u32(x: f32) -> u32 {
    if (x >= 0.0 && x < 4294967296.0) {
        return u32(x);
    }
    let bits = bitcast<u32>(x);
    let exponent = i32((bits >> 23u) & 0xffu) - 127;
    if (exponent < 0 || exponent >= 55) {
        return 0u;
    }
    let significand = (bits & 0x7fffffu) | 0x800000u;
    let whole = select(significand >> u32(23 - exponent), significand << u32(exponent - 23), exponent >= 23);
    return select(whole, ~whole + 1u, (bits >> 31u) == 1u);
}

fn cast_f64_u32(x: f64) -> u32 {
    return u32(bitcast<u64>(cast_f64_i64(x)) & 0xffffffff);
}

// The dialect widens before it changes the sign, as NumPy does; the compilers in use do it the other way round.
fn cast_i32_u64(x: i32) -> u64 {
    return u64(bitcast<u32>(x)) | (u64(bitcast<u32>(x >> 31u)) << 32u);
}

// Not `i64(x)`: lavapipe of Mesa 22.3 compares that with constants wrongly (every i64(x) > 0 was true).
fn cast_i32_i64(x: i32) -> i64 {
    return bitcast<i64>(cast_i32_u64(x));
}

fn cast_u32_i64(x: u32) -> i64 {
    return bitcast<i64>(u64(x));
}
#else
static uint cast_N_u32(T x) {
    return (uint)cast_N_i64(x);
}
#endif
