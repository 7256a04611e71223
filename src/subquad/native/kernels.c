/* The kernels of one target and one type of number. It is compiled once for each of them; see build.py. */

#define _DEFAULT_SOURCE /* for madvise */

#include "vector.h"
#include "matrix.h"
#include "threads.h"
#include "feature_maps.h"
#include "growing.h"
#include "chunk.h"
#include "linear.h"
#include "step.h"
#include "dense.h"
#include "hybrid.h"
#include "near.h"
#include "hybrid_causal.h"
#include "around.h"
#include "hybrid_back.h"
#include "hybrid_step.h"
#include "slots.h"
#include "pages.h"

#define JOINED(name, suffix) name##suffix
#define JOIN(name, suffix) JOINED(name, suffix)
#define EXPORT(name) __attribute__((visibility("default"))) int JOIN(subquad_##name, SUFFIX)
#ifdef _WIN32
#undef EXPORT
#define EXPORT(name) __declspec(dllexport) int JOIN(subquad_##name, SUFFIX)
#endif

#define WORTH_A_THREAD 2000000 /* products below which a thread costs more than it saves */

#include "linear_entries.h"
#include "bidirectional_entries.h"
#include "hybrid_entries.h"

/* ---- a step ----------------------------------------------------------------------------------------------------------------- */

/* Reads q, k, v of one position and a state; writes mixed and the state after. Returns 2 if the result is not finite. */
EXPORT(step)(step_call *call) {
    int64_t heads = call->batch * call->heads, group = step_group(call);
    double products = (double)heads * (double)call->m * (double)(2 * call->e);
    int64_t useful = 1 + (int64_t)(products / WORTH_A_THREAD);
    int failed = run_tasks(step_task, call, (size_t)step_numbers(call) * sizeof(REAL), (heads + group - 1) / group,
                           least(call->threads, useful));
    return failed ? failed : call->not_finite ? 2 : 0;
}

/* Reads x, weight and bias; writes y. */
EXPORT(dense)(dense_call *call) {
    int64_t useful = 1 + call->inputs * call->outputs / WORTH_SHARING, tasks = least(call->threads, useful);
    call->share = (call->outputs + tasks - 1) / tasks;
    return run_tasks(dense_task, call, 0, (call->outputs + call->share - 1) / call->share, tasks);
}

/* Reads q, k, v and weights; writes mixed. Returns 2 if anything is not finite. */
EXPORT(slots)(slots_call *call) {
    REAL *end = NULL;
    new_slots_space(call, &end);
    ask_for_large_pages(call->mixed, call->batch, call->heads, call->queries, call->e, sizeof(REAL));
    int failed = run_tasks(slots_task, call, (size_t)(uintptr_t)end, call->batch * call->heads, call->threads);
    return failed ? failed : call->not_finite ? 2 : 0;
}

/* 2^x and e^x of `count` numbers, a multiple of the vector's length, for tests of their precision; if they are all `negative`,
   as they are computed for these. */
EXPORT(exponentials)(const REAL *x, REAL *powers_of_2, REAL *powers_of_e, int64_t count, int64_t negative) {
    for (int64_t i = 0; i < count; i += LANES) {
        store(powers_of_2 + i, negative ? exp2_of_negative(load(x + i)) : exp2_lanes(load(x + i)));
        store(powers_of_e + i, negative ? exp_of_negative(load(x + i)) : exp_lanes(load(x + i)));
    }
    return 0;
}
