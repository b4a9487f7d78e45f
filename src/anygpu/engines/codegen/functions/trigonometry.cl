// Trigonometric functions and their inverses; functions that end in _tail are among the polynomials.

//:: N=f32 T=float U=uint I=int

// Word i of the bits of 2/pi, which begin after one word of zeros; enough of them for the largest number. A table in
// memory would keep compilers from vectors, and adapters that run on a processor are many times slower with one.
static U two_over_pi_N(I i) {
    U word = 0;
    word = i > 0 ? (U)0xa2f9836eu : word;
    word = i > 1 ? (U)0x4e441529u : word;
    word = i > 2 ? (U)0xfc2757d1u : word;
    word = i > 3 ? (U)0xf534ddc0u : word;
    word = i > 4 ? (U)0xdb629599u : word;
    word = i > 5 ? (U)0x3c439041u : word;
    word = i > 6 ? (U)0xfe5163abu : word;
    return word;
}

//:: N=f64 T=double U=ulong I=long

// The same in longer words.
static U two_over_pi_N(I i) {
    U word = 0;
    word = i > 0 ? (U)0xa2f9836e4e441529ul : word;
    word = i > 1 ? (U)0xfc2757d1f534ddc0ul : word;
    word = i > 2 ? (U)0xdb6295993c439041ul : word;
    word = i > 3 ? (U)0xfe5163abdebbc561ul : word;
    word = i > 4 ? (U)0xb7246e3a424dd2e0ul : word;
    word = i > 5 ? (U)0x06492eea09d1921cul : word;
    word = i > 6 ? (U)0xfe1deb1cb129a73eul : word;
    word = i > 7 ? (U)0xe88235f52ebb4484ul : word;
    word = i > 8 ? (U)0xe99c7026b45f7e41ul : word;
    word = i > 9 ? (U)0x3991d639835339f4ul : word;
    word = i > 10 ? (U)0x9c845f8bbdf9283bul : word;
    word = i > 11 ? (U)0x1ff897ffde05980ful : word;
    word = i > 12 ? (U)0xef2f118b5a0a6d1ful : word;
    word = i > 13 ? (U)0x6d367ecf27cb09b7ul : word;
    word = i > 14 ? (U)0x4f463f669e5fea2dul : word;
    word = i > 15 ? (U)0x7527bac7ebe5f17bul : word;
    word = i > 16 ? (U)0x3d0739f78a5292eaul : word;
    word = i > 17 ? (U)0x6bfb5fb11f8d5d08ul : word;
    word = i > 18 ? (U)0x56033046fc7b6babul : word;
    return word;
}

#ifdef WGSL
//: U=uint HALF=16u LOWER=0xffffu
//: U=ulong HALF=32u LOWER=0xfffffffful

// The upper word of a product of two words.
fn mul_hi_U(a: U, b: U) -> U {
    let low = (a & LOWER) * (b & LOWER);
    let middle = (a >> HALF) * (b & LOWER) + (low >> HALF);
    let other = (a & LOWER) * (b >> HALF) + (middle & LOWER);
    return (a >> HALF) * (b >> HALF) + (middle >> HALF) + (other >> HALF);
}
#endif

//:: N=f32 T=float I=int
//:: N=f64 T=double I=long

// x = quadrant * pi/2 + angle, where the angle is within pi/4.
struct Turn_N {
    T angle;
    I quadrant;
};

//:: N=f32 T=float I=int U=uint WIDTH=32 SHIFT=23 MASK=31 LOG=5 SIGN=0x80000000u FARTHEST=134
//:   FRACTION=2.3283064365386963e-10 HALFPI=1.57079633
//:: N=f64 T=double I=long U=ulong WIDTH=64 SHIFT=52 MASK=63 LOG=6 SIGN=0x8000000000000000ul FARTHEST=1033
//:   FRACTION=5.4210108624275222e-20 HALFPI=1.5707963267948966

// For large numbers (Payne and Hanek): x * 2/pi modulo 4 is the significand times three words of the bits of 2/pi, from
// the one on whose product with it is less than 4.
static struct Turn_N turn_of_large_N(T x) {
    const U significand = significand_N(x);
    const I start = clamp(binary_exponent_N(x) - SHIFT - 2 + WIDTH, (I)0, (I)FARTHEST);
    const I word = start >> LOG;
    const I distance = start & MASK;
    const U a = two_over_pi_N(word);
    const U b = two_over_pi_N(word + 1);
    const U c = two_over_pi_N(word + 2);
    const U d = two_over_pi_N(word + 3);
    // Two shifts to the right, for one by a whole word is not defined.
    const U first = (a << distance) | ((b >> 1) >> (MASK - distance));
    const U second = (b << distance) | ((c >> 1) >> (MASK - distance));
    const U third = (c << distance) | ((d >> 1) >> (MASK - distance));
    const U low = significand * third;
    const U middle_low = significand * second;
    const U middle = middle_low + mul_hi(significand, third);
    const U carry = convert_U((middle < middle_low) & 1);
    const U high = significand * first + mul_hi(significand, second) + carry;
    // Two bits of quadrant, and a fraction of it that is taken from the nearer side.
    U fraction = (high << 2) | (middle >> (MASK - 1));
    U finer = (middle << 2) | (low >> (MASK - 1));
    const I back = fraction >= SIGN;
    const I quadrant = convert_I(high >> (MASK - 1)) + (back & 1);
    fraction = back ? ~fraction : fraction;
    finer = back ? ~finer : finer;
    const T angle = ((convert_T(fraction) + convert_T(finer) * FRACTION) * FRACTION) * HALFPI;
    return (struct Turn_N){back != (x < 0.0) ? -angle : angle, x < 0.0 ? -quadrant : quadrant};
}

//:: N=f32 T=float I=int ANY= SMALL=20000.0 TWOBYPI=0.636619772 FIRST=1.5703125 SECOND=4.83512878417969e-4
//:   THIRD=3.13855707645416e-7 FOURTH=6.07710062827671e-11
//:: N=f64 T=double I=long ANY= SMALL=1647099.0 TWOBYPI=0.63661977236758134 FIRST=1.57079632673412561416626
//:   SECOND=6.077100506303965976595549e-11 THIRD=2.022266248795950631541144e-21 FOURTH=0.0

// By subtraction of multiples of pi/2, in parts so short that the products with n are exact (Cody and Waite).
static struct Turn_N turn_N(T x) {
    const T n = nearest_N(x * TWOBYPI);
    struct Turn_N turn = {(((x - n * FIRST) - n * SECOND) - n * THIRD) - n * FOURTH, convert_I(n)};
    const I large = fabs(x) > SMALL;
    if (ANY(large)) {
        const struct Turn_N other = turn_of_large_N(x);
        turn.angle = large ? other.angle : turn.angle;
        turn.quadrant = large ? other.quadrant : turn.quadrant;
    }
    return turn;
}

//:: N=f32 T=float I=int HALFPI=1.57079633 PI=3.14159265 QUARTERPI=0.785398163
//:: N=f64 T=double I=long HALFPI=1.5707963267948966 PI=3.1415926535897932 QUARTERPI=0.78539816339744831

static T sin_of_angle_N(T r) {
    const T z = r * r;
    return r + r * (z * sin_tail_N(z));
}

static T cos_of_angle_N(T r) {
    const T z = r * r;
    return 1.0 - (0.5 * z - z * z * cos_tail_N(z));
}

static T sin_N(T x) {
    const struct Turn_N turn = turn_N(x);
    const T value = (turn.quadrant & 1) == 1 ? cos_of_angle_N(turn.angle) : sin_of_angle_N(turn.angle);
    const T turned = (turn.quadrant & 2) == 2 ? -value : value;
    return !isfinite(x) ? nan_N() : (x == 0.0 ? x : turned);
}

static T cos_N(T x) {
    const struct Turn_N turn = turn_N(x);
    const T value = (turn.quadrant & 1) == 1 ? sin_of_angle_N(turn.angle) : cos_of_angle_N(turn.angle);
    const T turned = ((turn.quadrant + 1) & 2) == 2 ? -value : value;
    return !isfinite(x) ? nan_N() : turned;
}

static T tan_N(T x) {
    const struct Turn_N turn = turn_N(x);
    const T s = sin_of_angle_N(turn.angle);
    const T c = cos_of_angle_N(turn.angle);
    const I odd = (turn.quadrant & 1) == 1;
    const T value = (odd ? -c : s) / (odd ? s : c);
    return !isfinite(x) ? nan_N() : (x == 0.0 ? x : value);
}

// Beyond 1/2 by half the angle: asin(a) = pi/2 - 2 asin(sqrt((1 - a) / 2)).
static T asin_N(T x) {
    const T a = fabs(x);
    const I far = a > 0.5;
    const T z = far ? 0.5 * (1.0 - a) : x * x;
    const T s = far ? sqrt(z) : a;
    const T p = s + s * (z * asin_tail_N(z));
    return a <= 1.0 ? copysign((far ? HALFPI - 2.0 * p : p), x) : nan_N();
}

static T acos_N(T x) {
    const T a = fabs(x);
    const I far = a > 0.5;
    const T z = far ? 0.5 * (1.0 - a) : x * x;
    const T s = far ? sqrt(z) : a;
    const T p = s + s * (z * asin_tail_N(z));
    const T value = far ? (x < 0.0 ? PI - 2.0 * p : 2.0 * p) : HALFPI - copysign(p, x);
    return a <= 1.0 ? value : nan_N();
}

// The angle whose tangent is low / high, for 0 <= low <= high: with one division, also beyond tan(pi/8), where it is
// pi/4 less the angle of (high - low) / (high + low).
static T slope_angle_N(T low, T high) {
    const I steep = low > 0.4142 * high;
    const T t = (steep ? low - high : low) / (steep ? low + high : high);
    const T z = t * t;
    return (steep ? (T)QUARTERPI : (T)0.0) + (t + t * (z * atan_tail_N(z)));
}

static T atan_N(T x) {
    const T a = fabs(x);
    const T angle = slope_angle_N(fmin(a, 1.0), fmax(a, 1.0));
    return isnan(x) ? x : copysign((a > 1.0 ? HALFPI - angle : angle), x);
}

//:: N=f32 T=float I=int U=uint INFINITY=0x7f800000u HALFPI=1.57079633 PI=3.14159265 LARGE=1.0e30 SMALL=1.0e-30
//:   UP=1.0e8 DOWN=1.0e-8
//:: N=f64 T=double I=long U=ulong INFINITY=0x7ff0000000000000ul HALFPI=1.5707963267948966 PI=3.1415926535897932
//:   LARGE=1.0e300 SMALL=1.0e-290 UP=1.0e30 DOWN=1.0e-30

static T atan2_N(T y, T x) {
    const T a = fabs(x);
    const T b = fabs(y);
    T low = fmin(a, b);
    T high = fmax(a, b);
    // Neither may the sum overflow nor the smaller one vanish; two infinities are as good as two ones, 0 / 0 as 0 / 1.
    const T factor = high > LARGE ? (T)DOWN : (high < SMALL ? (T)UP : (T)1.0);
    const I infinite = as_U(low) == INFINITY;
    low = infinite ? (T)1.0 : low * factor;
    high = infinite || high == 0.0 ? (T)1.0 : high * factor;
    const T first = slope_angle_N(low, high);
    const T angle = b > a ? HALFPI - first : first;
    const T turned = signbit(x) ? PI - angle : angle;
    return isnan(x) || isnan(y) ? nan_N() : copysign(turned, y);
}

#ifdef WGSL
//:

// The dialect's own functions, as far as they are measured to be good; beyond, neighbours are about a radian apart and
// devices were seen to return anything.
fn moderate_sin_f32(x: f32) -> f32 {
    if (abs(x) > 1.0e5) {
        return sin_f32(x);
    }
    return sin(x);
}

fn moderate_cos_f32(x: f32) -> f32 {
    if (abs(x) > 1.0e5) {
        return cos_f32(x);
    }
    return cos(x);
}

fn moderate_tan_f32(x: f32) -> f32 {
    if (abs(x) > 1.0e5) {
        return tan_f32(x);
    }
    return tan(x);
}
#endif
