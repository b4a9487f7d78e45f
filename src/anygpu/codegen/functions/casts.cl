// Casts that the dialect leaves undefined: out of range they do what NumPy does on x86-64.

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
static uint cast_N_u32(T x) {
    return (uint)cast_N_i64(x);
}

static ulong cast_N_u64(T x) {
    return x >= 0 ? (x < HIGH ? (ulong)x : 0ul) : (ulong)cast_N_i64(x);
}
