/* Functions of the library for bidirectional linear attention, shared among threads as in linear_entries.h. */

static int sum_all_keys(linear_call *call) {
    int64_t heads = call->batch * call->heads, numbers = call->m * call->e;
    divide(call, call->keys);
    int failed = sum_segments(call);
    for (int64_t head = 0; !failed && head < heads; head++) {
        held_state whole = held(call, slot(call, head, call->segments - 1));
        memcpy(call->sums_after + head * numbers, whole.sums, (size_t)numbers * sizeof(REAL));
        memcpy(call->norms_after + head * call->m, whole.norms, (size_t)call->m * sizeof(REAL));
        call->peak_after[head] = *whole.peak;
    }
    free(call->starts);
    return failed;
}

/* Reads k, v and a state; writes the state with these keys. */
EXPORT(sum_keys)(linear_call *call) { return sum_all_keys(call); }

static void mix_task(void *context, void *memory, int64_t index) {
    linear_call *call = context;
    place at = place_of(call, index, call->queries);
    REAL *space = memory;
    workspace w = prepare(call, at, LARGE_CHUNK, 0, &space);
    growing sums = new_growing(w.m, w.e, w.m, &space);
    begin(&sums, given_state(call, index / call->segments), w.m, w.e, 0, 0);
    mix_queries(call, &w, &sums, at, NOWHERE);
    note_finite(call, &w);
}

static int mix_all_queries(linear_call *call) {
    divide(call, call->queries);
    return run_tasks(mix_task, call, workspace_bytes(call), call->batch * call->heads * call->segments, call->threads);
}

/* Reads q and the state of all keys; writes mixed and inverse. Returns 2 if the result is not finite. */
EXPORT(mix_queries)(linear_call *call) { return status_of(call, mix_all_queries(call)); }

/* Whether heads alone keep all threads at work, so that one task does everything for a head. Sets the threads if so. */
static int is_whole(linear_call *call) {
    int64_t threads = call->threads;
    divide(call, call->keys);
    int64_t of_keys = call->threads, segments = call->segments;
    call->threads = threads;
    divide(call, call->queries);
    int whole = segments == 1 && call->segments == 1;
    if (!whole)
        call->threads = threads;
    else if (of_keys > call->threads)
        call->threads = of_keys;
    return whole;
}

/* Memory for a state of all heads, for the caller to free. */
static REAL *own_state(linear_call *call) {
    int64_t heads = call->batch * call->heads, numbers = heads * call->m * call->e;
    call->sums_after = calloc((size_t)(heads * state_size(call) + 1), sizeof(REAL));
    call->norms_after = call->sums_after + numbers;
    call->peak_after = call->norms_after + heads * call->m;
    return call->sums_after;
}

INLINE void read_own_state(linear_call *call) {
    call->sums = call->sums_after, call->norms = call->norms_after, call->peak = call->peak_after;
}

static void attend_task(void *context, void *memory, int64_t head) {
    linear_call *call = context;
    place keys = place_of(call, head, call->keys), queries = place_of(call, head, call->queries);
    REAL *space = memory;
    workspace w = prepare(call, keys, LARGE_CHUNK, 0, &space);
    growing sums = new_growing(w.m, w.e, w.m, &space);
    held_state none = {NULL, NULL, NULL};
    begin(&sums, none, w.m, w.e, 0, empty_peak(call));
    sums.live = 0;
    grow_in_place(&sums, sums_to_write(call, head));
    sum_keys(call, &w, &sums, keys, queries);
    conclude(&sums);
    write_state(call, &sums, head);
    mix_queries(call, &w, &sums, queries, next_head(call, keys, call->keys));
    note_finite(call, &w);
}

/* Reads q, k and v; writes mixed, inverse, and the state of all keys if there is memory for it. Returns 2 if the result is
   not finite. */
EXPORT(attend)(linear_call *call) {
    prepare_results(call);
    if (is_whole(call))
        return status_of(call, run_tasks(attend_task, call, workspace_bytes(call), call->batch * call->heads, call->threads));
    int64_t threads = call->threads;
    REAL *memory = call->sums_after ? NULL : own_state(call);
    if (!call->sums_after) return 1;
    int failed = sum_all_keys(call);
    read_own_state(call);
    call->threads = threads;
    if (!failed) failed = mix_all_queries(call);
    free(memory);
    return status_of(call, failed);
}

static void queries_task(void *context, void *memory, int64_t index) {
    const linear_call *call = context;
    place at = place_of(call, index, call->queries);
    int64_t head = index / call->segments, segment = index % call->segments;
    REAL *space = memory;
    workspace w = prepare(call, at, LARGE_CHUNK, 1, &space);
    growing sums = new_growing(w.e, w.m, w.m, &space), later = new_growing(w.m, w.e, w.m, &space);
    held_state none = {NULL, NULL, NULL};
    begin(&sums, given_state(call, head), w.m, w.e, 1, 0);
    begin(&later, none, w.m, w.e, 0, 0);
    later.live = 0;
    back_to_queries(call, &w, &sums, &later, at, NOWHERE);
    REAL *to = slot(call, head, segment);
    finish(&later, to, to + w.m * w.e, NULL);
}

static int run_back_to_queries(linear_call *call) {
    int64_t heads = call->batch * call->heads, numbers = call->m * call->e;
    divide(call, call->queries);
    call->starts = malloc((size_t)(heads * call->segments * state_size(call)) * sizeof(REAL));
    if (!call->starts) return 1;
    int failed = run_tasks(queries_task, call, workspace_bytes(call), heads * call->segments, call->threads);
    for (int64_t head = 0; !failed && head < heads; head++)
        for (int64_t segment = 0; segment < call->segments; segment++) {
            held_state part = held(call, slot(call, head, segment));
            for (int64_t i = 0; i < numbers; i++) call->sums_after[head * numbers + i] += part.sums[i];
            for (int64_t i = 0; i < call->m; i++) call->norms_after[head * call->m + i] += part.norms[i];
        }
    free(call->starts);
    return failed;
}

/* Reads q, the state of all keys, mixed, inverse and gradient; writes dq, and adds to the gradient of the state. */
EXPORT(back_to_queries)(linear_call *call) { return run_back_to_queries(call); }

static void keys_task(void *context, void *memory, int64_t index) {
    const linear_call *call = context;
    place at = place_of(call, index, call->keys);
    REAL *space = memory;
    workspace w = prepare(call, at, LARGE_CHUNK, 1, &space);
    growing later = new_growing(w.m, w.e, w.m, &space);
    begin(&later, given_state(call, index / call->segments), w.m, w.e, 0, 0);
    back_to_keys(call, &w, &later, at, NOWHERE);
}

static int run_back_to_keys(linear_call *call) {
    divide(call, call->keys);
    return run_tasks(keys_task, call, workspace_bytes(call), call->batch * call->heads * call->segments, call->threads);
}

/* Reads k, v, the gradient of the state (as sums and norms) and its peak; writes dk and dv. */
EXPORT(back_to_keys)(linear_call *call) { return run_back_to_keys(call); }

static void back_task(void *context, void *memory, int64_t head) {
    const linear_call *call = context;
    place keys = place_of(call, head, call->keys), queries = place_of(call, head, call->queries);
    REAL *space = memory;
    workspace w = prepare(call, keys, LARGE_CHUNK, 1, &space);
    growing sums = new_growing(w.e, w.m, w.m, &space), later = new_growing(w.m, w.e, w.m, &space);
    held_state none = {NULL, NULL, NULL}, state = given_state(call, head);
    begin(&sums, state, w.m, w.e, 1, 0);
    begin(&later, none, w.m, w.e, 0, state.peak ? *state.peak : 0);
    later.live = 0;
    back_to_queries(call, &w, &sums, &later, queries, keys);
    conclude(&later);
    back_to_keys(call, &w, &later, keys, next_head(call, queries, call->queries));
}

/* Reads q, k, v, the state of all keys, mixed, inverse and gradient; writes dq, dk and dv. */
EXPORT(back)(linear_call *call) {
    prepare_results(call);
    if (is_whole(call)) return run_tasks(back_task, call, workspace_bytes(call), call->batch * call->heads, call->threads);
    int64_t threads = call->threads;
    REAL *memory = own_state(call);
    if (!memory) return 1;
    int failed = run_back_to_queries(call);
    call->sums = call->sums_after, call->norms = call->norms_after, call->threads = threads;
    if (!failed) failed = run_back_to_keys(call);
    free(memory);
    return failed;
}
