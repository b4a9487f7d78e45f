// Casts that the dialect's own conversions get wrong: out of range they do what NumPy does on x86-64.

//: T=f32 U=u32
//: T=f64 U=u64

// The sign does not count, and NaN is true.
fn cast_T_bool(x: T) -> bool {
    return (bitcast<U>(x) << 1u) != 0;
}

//: T=f32 I=i32 LOW=-2147483904.0 HIGH=2147483648.0 SIGN=0x80000000u
//: T=f64 I=i32 LOW=-2147483649.0 HIGH=2147483648.0 SIGN=0x80000000u
//: T=f32 I=i64 LOW=-9223373136366403584.0 HIGH=9223372036854775808.0 SIGN=0x8000000000000000lu
//: T=f64 I=i64 LOW=-9223372036854777856.0 HIGH=9223372036854775808.0 SIGN=0x8000000000000000lu

// NaN and everything out of range give the smallest integer.
fn cast_T_I(x: T) -> I {
    if (x > LOW && x < HIGH) {
        return I(x);
    }
    return bitcast<I>(SIGN);
}

//:

// A negative number wraps, as if it had been cast to a wide integer first; NaN and what even that cannot hold give 0.
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

//: T=f32
//: T=f64

fn cast_T_u64(x: T) -> u64 {
    if (x >= 0.0) {
        return select(u64(0), u64(x), x < 18446744073709551616.0);
    }
    return bitcast<u64>(cast_T_i64(x));
}

//:

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
