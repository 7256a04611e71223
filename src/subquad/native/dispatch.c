/* Which build of the kernels this processor can run. Defined before: SOURCES, a string. */

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* A hash of the sources that the library was compiled from: the caller must know the same structures. */
EXPORT const char *subquad_sources(void) { return SOURCES; }

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>

/* Bits of the processor's answers, as cpuid.h does not name all of them. Targets are compiled for the whole levels v3 and
   v4 of x86-64, so that all of their instructions are asked for, not only the vectors. */
#define V3_LEAF_1 (1u << 12 | 1u << 22 | 1u << 27 | 1u << 28 | 1u << 29) /* FMA, MOVBE, OSXSAVE, AVX, F16C */
#define V3_LEAF_7 (1u << 3 | 1u << 5 | 1u << 8)                            /* BMI1, AVX2, BMI2 */
#define V3_EXTENDED (1u << 5)                                              /* LZCNT */
#define V4_LEAF_7 (1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31)   /* AVX-512 F, DQ, CD, BW, VL */
#define SAVES_256 0x06u /* registers that the operating system saves: SSE, AVX */
#define SAVES_512 0xe6u /* and masks, upper halves and upper registers of AVX-512 */

static int has(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }

static unsigned saved_registers(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* The highest level of x86-64 that the processor and the operating system support: 1, 3 or 4. */
static int level(void) {
    unsigned a, b, c, d, leaf_7;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, V3_LEAF_1)) return 1;
    if (!__get_cpuid(0x80000001u, &a, &b, &c, &d) || !has(c, V3_EXTENDED)) return 1;
    if (!__get_cpuid_count(7, 0, &a, &leaf_7, &c, &d) || !has(leaf_7, V3_LEAF_7)) return 1;
    unsigned saved = saved_registers();
    if (!has(saved, SAVES_256)) return 1;
    return has(leaf_7, V4_LEAF_7) && has(saved, SAVES_512) ? 4 : 3;
}

/* The name of the fastest target, as in the names of the functions. */
EXPORT const char *subquad_target(void) {
    int highest = level();
    return highest == 4 ? "avx512" : highest == 3 ? "avx2" : "sse2";
}
#else
EXPORT const char *subquad_target(void) { return "neon"; }
#endif

/* OpenMP's function that runs another on several threads, where the caller has such threads already; else NULL. */
void (*subquad_parallel)(void (*)(void *), void *, unsigned, unsigned) = 0;

/* Lets kernels run on the caller's own threads. Threads of OpenMP wait by spinning for a while, and would share the cores
   with others. NULL gives them up, as a process that was forked must. */
EXPORT void subquad_share_threads(void *parallel) {
    subquad_parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))parallel;
}
