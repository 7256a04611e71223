/* Vectors of numbers by the compiler's vector extensions, so that one source serves AVX-512, AVX2, NEON and SSE2.

   Defined before this file is included:
     REAL     float or double
     DOUBLE   1 for double, else 0
     BYTES    size of a vector in bytes
     SUFFIX   what the names of the exported functions end with, such as _avx2_float */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define LANES ((int64_t)(BYTES / sizeof(REAL)))
#define INLINE static inline __attribute__((always_inline))

#if DOUBLE
typedef int64_t INTEGER;
#else
typedef int32_t INTEGER;
#endif

typedef REAL vec __attribute__((vector_size(BYTES)));
typedef INTEGER ivec __attribute__((vector_size(BYTES)));
typedef REAL vec_anywhere __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));

INLINE vec load(const REAL *from) { return *(const vec_anywhere *)from; }
INLINE void store(REAL *to, vec x) { *(vec_anywhere *)to = x; }

INLINE vec splat(REAL x) {
    vec all;
    for (int64_t lane = 0; lane < LANES; lane++) all[lane] = x;
    return all;
}

/* Lane by lane: x where the mask is all ones, y where it is zero. */
INLINE vec select_lanes(ivec mask, vec x, vec y) { return (vec)(((ivec)x & mask) | ((ivec)y & ~mask)); }

/* These return y in lanes where x or y is NaN. On x86 that is what one instruction does, which compilers do not find. */
#ifdef __x86_64__
#if BYTES == 64
#define X86_WIDTH 512
#elif BYTES == 32
#define X86_WIDTH 256
#else
#define X86_WIDTH
#endif
#define X86_JOINED(width, name, type) _mm##width##_##name##_##type
#define X86_NAME(width, name, type) X86_JOINED(width, name, type)
#if DOUBLE
#define X86_VECTOR(name) X86_NAME(X86_WIDTH, name, pd)
#else
#define X86_VECTOR(name) X86_NAME(X86_WIDTH, name, ps)
#endif
INLINE vec larger(vec x, vec y) { return X86_VECTOR(max)(x, y); }
INLINE vec smaller(vec x, vec y) { return X86_VECTOR(min)(x, y); }
#else
INLINE vec larger(vec x, vec y) { return select_lanes((ivec)(x > y), x, y); }
INLINE vec smaller(vec x, vec y) { return select_lanes((ivec)(x < y), x, y); }
#endif

/* EVERY(f, t) is the list f(0, t), f(1, t), ... over all lanes, for shuffles. */
#define PAIR(f, at, t) f(at, t), f(at + 1, t)
#define FOUR(f, at, t) PAIR(f, at, t), PAIR(f, at + 2, t)
#define EIGHT(f, at, t) FOUR(f, at, t), FOUR(f, at + 4, t)
#if BYTES == 64 && !DOUBLE
#define LANE_COUNT 16
#define EVERY(f, t) EIGHT(f, 0, t), EIGHT(f, 8, t)
#elif BYTES == (DOUBLE ? 64 : 32)
#define LANE_COUNT 8
#define EVERY(f, t) EIGHT(f, 0, t)
#elif BYTES == (DOUBLE ? 32 : 16)
#define LANE_COUNT 4
#define EVERY(f, t) FOUR(f, 0, t)
#else
#define LANE_COUNT 2
#define EVERY(f, t) PAIR(f, 0, t)
#endif
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLES 1
#endif
#endif

#ifdef SHUFFLES
#define ACROSS(lane, t) ((lane) ^ (t))
#define ACROSS_BY(x, t) __builtin_shufflevector(x, x, EVERY(ACROSS, t))
#else
INLINE vec across_by(vec x, int t) {
    vec moved;
    for (int lane = 0; lane < LANE_COUNT; lane++) moved[lane] = x[lane ^ t];
    return moved;
}
#define ACROSS_BY(x, t) across_by(x, t)
#endif

INLINE REAL lanes_sum(vec x) {
#if LANE_COUNT > 8
    x += ACROSS_BY(x, 8);
#endif
#if LANE_COUNT > 4
    x += ACROSS_BY(x, 4);
#endif
#if LANE_COUNT > 2
    x += ACROSS_BY(x, 2);
#endif
    x += ACROSS_BY(x, 1);
    return x[0];
}

INLINE REAL lanes_max(vec x) {
#if LANE_COUNT > 8
    x = larger(x, ACROSS_BY(x, 8));
#endif
#if LANE_COUNT > 4
    x = larger(x, ACROSS_BY(x, 4));
#endif
#if LANE_COUNT > 2
    x = larger(x, ACROSS_BY(x, 2));
#endif
    x = larger(x, ACROSS_BY(x, 1));
    return x[0];
}

INLINE int64_t rounded_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

/* Numbers from one row of a buffer to the next: whole vectors, and never a multiple of half a kilobyte beyond one, where
   the lines of a column would share few sets of the cache. */
INLINE int64_t row_length(int64_t columns) {
    int64_t length = rounded_up(columns, LANES);
    return length * (int64_t)sizeof(REAL) >= 512 && length % 16 == 0 ? length + LANES : length;
}

/* ---- exponentials ---------------------------------------------------------------------------------------------------
   Within 2 units in the last place. Results below 2^-126 may be 0, and NaN gives NaN; arguments are never above 88. */

#if DOUBLE
INLINE vec exp_lanes(vec x) {
    for (int64_t lane = 0; lane < LANES; lane++) x[lane] = exp(x[lane]);
    return x;
}
INLINE vec exp2_lanes(vec x) {
    for (int64_t lane = 0; lane < LANES; lane++) x[lane] = exp2(x[lane]);
    return x;
}
INLINE REAL exp2_of(REAL x) { return exp2(x); }
#else
#define ROUNDING 12582912.0f /* 1.5 * 2^23: adding it rounds to a whole number, kept in the lowest bits */

/* e^r for |r| <= ln(2)/2 by a polynomial within 3e-9 of it. */
INLINE vec exp_near_0(vec r) {
    vec p = splat(1.381446674e-3f) * r + splat(8.36878043e-3f);
    p = p * r + splat(4.166839422e-2f);
    p = p * r + splat(0.1666652011f);
    p = p * r + splat(0.4999999341f);
    p = p * r + splat(1.0f);
    return p * r + splat(1.0f);
}

/* 2^n times e^r for |r| <= ln(2)/2 and n >= -127, where 2^-127 is taken as 0. */
INLINE vec scaled_exp(vec r, vec rounded) {
    ivec n = (ivec)rounded - (ivec)splat(ROUNDING);
    return exp_near_0(r) * (vec)((n + 127) << 23);
}

INLINE vec exp_lanes(vec x) {
    x = larger(splat(-88.03f), x);
    vec rounded = x * splat(1.44269504f) + splat(ROUNDING), n = rounded - splat(ROUNDING);
    return scaled_exp(x - n * splat(0.693359375f) + n * splat(2.12194440e-4f), rounded);
}

INLINE vec exp2_lanes(vec x) {
    x = larger(splat(-127.0f), x);
    vec rounded = x + splat(ROUNDING);
    return scaled_exp((x - (rounded - splat(ROUNDING))) * splat(0.693147181f), rounded);
}
INLINE REAL exp2_of(REAL x) { return exp2_lanes(splat(x))[0]; }
#endif

/* e^x and 2^x for x at most 0, faster: results below 2^-126 are about 2^-126, and some NaN give other numbers. */
#define TABLE (!DOUBLE && BYTES == 64) /* whether there are the instructions of AVX-512 */
#if TABLE
/* AVX-512 looks up 2^(n/16) by the lowest bits of n, so that a polynomial has to reach only to ln(2)/32. */
#define SIXTEENTHS 786432.0f /* 1.5 * 2^19: adding it rounds to sixteenths, whose number is kept in the lowest bits */

/* 2^(n/16) times 1 + p, with n in the lowest bits of `rounded`. What the table lacks to be exact is added to p. */
INLINE vec scaled_by_table(vec rounded, vec p) {
    const vec table = {1.0f, 1.0442737f, 1.0905077f, 1.1387886f, 1.1892071f, 1.2418578f, 1.2968396f, 1.3542556f, 1.4142135f,
        1.4768262f, 1.5422108f, 1.6104903f, 1.6817929f, 1.7562522f, 1.8340081f, 1.9152066f};
    const vec lacking = {0, 4.628547e-08f, -1.19921575e-08f, 4.7297824e-08f, 3.193418e-08f, 3.6210572e-08f, -3.099072e-08f,
        -7.475213e-09f, 1.7114271e-08f, -3.0476834e-08f, 5.233334e-09f, 6.1075918e-09f, -1.4719605e-08f, -5.258795e-09f,
        -6.1282597e-09f, 5.1406093e-09f};
    ivec power = (ivec)_mm512_permutexvar_ps((__m512i)rounded, (__m512)table) + (((ivec)rounded >> 4) << 23);
    p += (vec)_mm512_permutexvar_ps((__m512i)rounded, (__m512)lacking);
    return (vec)power * p + (vec)power;
}

INLINE vec exp_of_negative(vec x) {
    x = larger(splat(-87.3f), x);
    vec rounded = x * splat(1.44269504f) + splat(SIXTEENTHS), n = rounded - splat(SIXTEENTHS);
    vec r = x - n * splat(0.693359375f) + n * splat(2.12194440e-4f);
    vec p = splat(0.16666667f) * r + splat(0.5f);
    return scaled_by_table(rounded, (p * r) * r + r);
}
#else
INLINE vec exp_of_negative(vec x) {
#if DOUBLE
    return exp_lanes(x);
#else
    x = larger(splat(-87.3f), x);
    vec rounded = x * splat(1.44269504f) + splat(ROUNDING), n = rounded - splat(ROUNDING);
    vec p = exp_near_0(x - n * splat(0.693359375f) + n * splat(2.12194440e-4f));
    return (vec)((ivec)p + ((ivec)rounded << 23));
#endif
}
#endif

INLINE vec exp2_of_negative(vec x) {
#if DOUBLE
    return exp2_lanes(x);
#else
    x = larger(splat(-126.0f), x);
    vec rounded = x + splat(ROUNDING), f = x - (rounded - splat(ROUNDING));
    vec p = splat(1.53458118e-4f) * f + splat(1.33999312e-3f);
    p = p * f + splat(9.61848896e-3f);
    p = p * f + splat(5.55032878e-2f);
    p = p * f + splat(2.40226469e-1f);
    p = p * f + splat(6.93147206e-1f);
    p = p * f + splat(1.0f);
    return (vec)((ivec)p + ((ivec)rounded << 23));
#endif
}

/* elu(x) + 1: e^x up to 0, x + 1 above; NaN where x is. */
INLINE vec elu_plus_1(vec x) {
#if TABLE
    return (vec)_mm512_mask_add_ps((__m512)exp_of_negative(x), _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_GT_OQ),
                                   (__m512)x, (__m512)splat(1));
#else
    return exp_of_negative(smaller(splat(0), x)) + larger(splat(0), x);
#endif
}

/* ---- numbers of the caller ------------------------------------------------------------------------------------------ */

enum { SAME = 0, BFLOAT16 = 1, FLOAT16 = 2 };

INLINE float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
INLINE uint32_t to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

INLINE float from_float16(uint16_t half) {
    uint32_t size = half & 0x7fffu;
    uint32_t bits = to_bits(from_bits(size << 13) * 0x1p112f) | (size >= 0x7c00u ? 0x7f800000u : 0u);
    return from_bits(bits | (uint32_t)(half & 0x8000u) << 16);
}

/* Rounds to the nearest, ties to even. */
INLINE uint16_t to_float16(float x) {
    uint32_t bits = to_bits(x), sign = bits & 0x80000000u, size = bits ^ sign, half;
    if (size >= 143u << 23)
        half = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
    else if (size < 113u << 23)
        half = to_bits(from_bits(size) + 0.5f) - (126u << 23);
    else
        half = (size - (112u << 23) + 0xfffu + ((size >> 13) & 1u)) >> 13;
    return (uint16_t)(half | sign >> 16);
}

INLINE uint16_t to_bfloat16(float x) {
    uint32_t bits = to_bits(x);
    return x != x ? 0x7fc0u : (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Reads `count` numbers of the caller's type and fills up to `filled` with zeros. */
INLINE void read_row(REAL *to, const void *from, int64_t count, int64_t filled, int64_t type) {
    int64_t i = 0;
    if (type == SAME) {
        for (; i + LANES <= count; i += LANES) store(to + i, load((const REAL *)from + i));
        for (; i < count; i++) to[i] = ((const REAL *)from)[i];
    } else if (type == BFLOAT16) {
        for (; i < count; i++) to[i] = from_bits((uint32_t)((const uint16_t *)from)[i] << 16);
    } else {
        for (; i < count; i++) to[i] = from_float16(((const uint16_t *)from)[i]);
    }
    for (; i < filled; i++) to[i] = 0;
}

/* Writes `count` numbers times `factor` as the caller's type. */
INLINE void write_row(void *to, const REAL *from, REAL factor, int64_t count, int64_t type) {
    int64_t i = 0;
    if (type == SAME) {
        for (; i + LANES <= count; i += LANES) store((REAL *)to + i, load(from + i) * factor);
        for (; i < count; i++) ((REAL *)to)[i] = from[i] * factor;
    } else if (type == BFLOAT16) {
        for (; i < count; i++) ((uint16_t *)to)[i] = to_bfloat16((float)(from[i] * factor));
    } else {
        for (; i < count; i++) ((uint16_t *)to)[i] = to_float16((float)(from[i] * factor));
    }
}
