/* Functions of the library for linear attention: heads, and segments of sequences, are shared among threads. */

/* ---- dividing the work ------------------------------------------------------------------------------------------------- */

INLINE int64_t state_size(const linear_call *call) { return call->m * call->e + call->m + 1; }
INLINE REAL *slot(const linear_call *call, int64_t head, int64_t segment) {
    return call->starts + (head * call->segments + segment) * state_size(call);
}
INLINE held_state held(const linear_call *call, const REAL *at) {
    return (held_state){at, at + call->m * call->e, at + call->m * call->e + call->m};
}
INLINE held_state given_state(const linear_call *call, int64_t head) {
    held_state none = {NULL, NULL, NULL};
    if (!call->sums) return none;
    return (held_state){call->sums + head * call->m * call->e, call->norms + head * call->m,
                        call->peak ? call->peak + head : NULL};
}

INLINE held_state given_gradient(const linear_call *call, int64_t head) {
    held_state none = {NULL, NULL, NULL};
    if (!call->d_sums) return none;
    return (held_state){call->d_sums + head * call->m * call->e, call->d_norms + head * call->m, NULL};
}

/* Heads are shared among threads; where that leaves threads without work, sequences are cut into segments. */
static void divide(linear_call *call, int64_t length) {
    int64_t heads = call->batch * call->heads, chunks = chunk_count(length);
    double products = (double)heads * (double)length * (double)call->m * (double)(2 * call->e + CHUNK);
    int64_t useful = 1 + (int64_t)(products / WORTH_A_THREAD);
    if (call->threads > useful) call->threads = useful;
    call->segments = 1;
    if (call->threads < 2 || heads == 0 || heads % call->threads == 0 || heads >= 4 * call->threads) return;
    while (call->segments < call->threads && heads * call->segments % call->threads) call->segments++;
    call->segments = least(call->segments, chunks / 4 > 1 ? chunks / 4 : 1);
}

static place place_of(const linear_call *call, int64_t index, int64_t length) {
    int64_t head = index / call->segments, segment = index % call->segments;
    int64_t chunks = chunk_count(length);
    return (place){head / call->heads, head % call->heads, chunks * segment / call->segments * CHUNK,
                   least(length, chunks * (segment + 1) / call->segments * CHUNK)};
}

static workspace prepare(const linear_call *call, place at, int64_t c, int back, REAL **memory) {
    workspace w = new_workspace(call, c, memory);
    w.for_q = pack_directions(&call->of_queries, at.h, call->d, w.c, back, memory);
    int same = call->of_queries.omega == call->of_keys.omega && call->of_queries.kind == call->of_keys.kind;
    w.for_k = same ? w.for_q : pack_directions(&call->of_keys, at.h, call->d, w.c, back, memory);
    return w;
}

INLINE REAL empty_peak(const linear_call *call) { return has_exponent(&call->of_keys) ? -INFINITY : 0; }

/* from = from * its factor + added * its factor, relative to the larger of both peaks. */
static void join_states(const linear_call *call, const REAL *before, REAL *added) {
    int64_t numbers = call->m * call->e + call->m;
    REAL peak = before[numbers] > added[numbers] ? before[numbers] : added[numbers];
    REAL old = exp2_of(before[numbers] - or_zero(peak)), new = exp2_of(added[numbers] - or_zero(peak));
    for (int64_t i = 0; i < numbers; i++) added[i] = before[i] * old + added[i] * new;
    added[numbers] = peak;
}

/* ---- sums over keys ------------------------------------------------------------------------------------------------------ */

/* The sums over the keys of a segment alone, for the segment after it. */
static void sum_segment(void *context, void *memory, int64_t index) {
    linear_call *call = context;
    place at = place_of(call, index, call->keys);
    int64_t head = index / call->segments, segment = index % call->segments;
    REAL *space = memory;
    workspace w = prepare(call, at, LARGE_CHUNK, 0, &space);
    growing sums = new_growing(w.m, w.e, w.m, &space);
    held_state none = {NULL, NULL, NULL};
    begin(&sums, segment ? none : given_state(call, head), w.m, w.e, 0, empty_peak(call));
    sums.live = 0;
    sum_keys(call, &w, &sums, at, NOWHERE);
    REAL *to = slot(call, head, segment), *norms = to + w.m * w.e;
    finish(&sums, to, norms, norms + w.m);
}

/* Sums of all segments, each then with those before it. Slots hold the state after a segment. */
static int sum_segments(linear_call *call) {
    int64_t heads = call->batch * call->heads;
    call->starts = malloc((size_t)(heads * call->segments * state_size(call)) * sizeof(REAL));
    if (!call->starts) return 1;
    if (run_tasks(sum_segment, call, workspace_bytes(call), heads * call->segments, call->threads)) return 1;
    for (int64_t head = 0; head < heads; head++)
        for (int64_t segment = 1; segment < call->segments; segment++)
            join_states(call, slot(call, head, segment - 1), slot(call, head, segment));
    return 0;
}

static held_state state_before(const linear_call *call, int64_t index) {
    int64_t head = index / call->segments, segment = index % call->segments;
    return segment ? held(call, slot(call, head, segment - 1)) : given_state(call, head);
}

INLINE REAL *sums_to_write(const linear_call *call, int64_t head) {
    return call->sums_after ? call->sums_after + head * call->m * call->e : NULL;
}

static void write_state(const linear_call *call, growing *sums, int64_t head) {
    if (!call->sums_after) return;
    finish(sums, sums_to_write(call, head), call->norms_after + head * call->m,
           call->peak_after ? call->peak_after + head : NULL);
}

/* ---- the causal form ----------------------------------------------------------------------------------------------------- */

static void causal_task(void *context, void *memory, int64_t index) {
    linear_call *call = context;
    place at = place_of(call, index, call->keys);
    REAL *space = memory;
    held_state before = state_before(call, index);
    /* There are no sums to read in a first chunk. A large one has more scores, which cost as much as reading sums in its second
       half, and writes the sums once instead of twice. */
    workspace w = prepare(call, at, before.sums ? CHUNK : LARGE_CHUNK, 0, &space);
    growing sums = new_growing(w.m, w.e, w.m, &space);
    begin(&sums, before, w.m, w.e, 0, empty_peak(call));
    int is_last = index % call->segments == call->segments - 1;
    if (is_last) grow_in_place(&sums, sums_to_write(call, index / call->segments));
    causal_forward(call, &w, &sums, at);
    note_finite(call, &w);
    if (is_last) write_state(call, &sums, index / call->segments);
}

static void causal_queries_task(void *context, void *memory, int64_t index) {
    const linear_call *call = context;
    place at = place_of(call, index, call->keys);
    REAL *space = memory;
    workspace w = prepare(call, at, CHUNK, 1, &space);
    growing sums = new_growing(w.e, w.m, w.m, &space);
    begin(&sums, state_before(call, index), w.m, w.e, 1, empty_peak(call));
    causal_back_to_queries(call, &w, &sums, at);
}

static int run_forwards(linear_call *call, void (*task)(void *, void *, int64_t)) {
    int64_t heads = call->batch * call->heads;
    divide(call, call->keys);
    call->starts = NULL;
    int failed = call->segments > 1 && sum_segments(call);
    if (!failed) failed = run_tasks(task, call, workspace_bytes(call), heads * call->segments, call->threads);
    free(call->starts);
    return failed;
}

INLINE int status_of(const linear_call *call, int failed) { return failed ? failed : call->not_finite ? 2 : 0; }

static void prepare_results(const linear_call *call) {
    int64_t b = call->batch, h = call->heads, type = (int64_t)type_bytes(call->type), of_v = (int64_t)type_bytes(call->value_type);
    if (!call->dq.data && !call->dk.data) ask_for_large_pages(call->mixed, b, h, call->queries, call->e, of_v);
    ask_for_large_pages(call->dq, b, h, call->queries, call->d, type);
    ask_for_large_pages(call->dk, b, h, call->keys, call->d, type);
    ask_for_large_pages(call->dv, b, h, call->keys, call->e, of_v);
}

/* Reads q, k, v and a state; writes mixed, inverse and the state after. Returns 2 if the result is not finite. */
EXPORT(causal)(linear_call *call) {
    prepare_results(call);
    return status_of(call, run_forwards(call, causal_task));
}

/* Reads q, k, v, the state before, mixed, inverse and gradient; writes dq and peaks. */
EXPORT(causal_back_to_queries)(linear_call *call) { return run_forwards(call, causal_queries_task); }

/* The gradient of the state before a segment from its own rows alone. Slots hold the gradient of the state before. */
static void later_segment(void *context, void *memory, int64_t index) {
    linear_call *call = context;
    place at = place_of(call, index, call->keys);
    int64_t head = index / call->segments, segment = index % call->segments;
    REAL *space = memory;
    workspace w = prepare(call, at, CHUNK, 0, &space);
    growing later = new_growing(w.m, w.e, w.m, &space);
    held_state none = {NULL, NULL, NULL};
    begin(&later, segment == call->segments - 1 ? given_state(call, head) : none, w.m, w.e, 0, 0);
    later.live = 0;
    sum_later(call, &w, &later, at);
    REAL *to = slot(call, head, segment);
    finish(&later, to, to + w.m * w.e, NULL);
}

static int later_segments(linear_call *call) {
    int64_t heads = call->batch * call->heads, numbers = call->m * call->e + call->m;
    int64_t chunks = chunk_count(call->keys);
    call->starts = malloc((size_t)(heads * call->segments * state_size(call)) * sizeof(REAL));
    if (!call->starts) return 1;
    if (run_tasks(later_segment, call, workspace_bytes(call), heads * call->segments, call->threads)) return 1;
    for (int64_t head = 0; head < heads; head++)
        for (int64_t segment = call->segments - 2; segment >= 0; segment--) {
            const REAL *peaks = call->peaks + head * (chunks + 1), *after = slot(call, head, segment + 1);
            REAL *to = slot(call, head, segment);
            REAL factor = exp2_of(peaks[chunks * segment / call->segments] -
                                  or_zero(peaks[chunks * (segment + 1) / call->segments]));
            for (int64_t i = 0; i < numbers; i++) to[i] += after[i] * factor;
        }
    return 0;
}

static void causal_keys_task(void *context, void *memory, int64_t index) {
    const linear_call *call = context;
    place at = place_of(call, index, call->keys);
    int64_t head = index / call->segments, segment = index % call->segments;
    REAL *space = memory;
    workspace w = prepare(call, at, CHUNK, 1, &space);
    growing later = new_growing(w.m, w.e, w.m, &space);
    int last = segment == call->segments - 1;
    held_state after = last ? given_state(call, head) : held(call, slot(call, head, segment + 1));
    after.peak = NULL;
    begin(&later, after, w.m, w.e, 0, 0);
    causal_back_to_keys(call, &w, &later, at);
    if (segment == 0) write_state(call, &later, head);
}

static int run_causal_keys(linear_call *call) {
    int64_t heads = call->batch * call->heads;
    divide(call, call->keys);
    call->starts = NULL;
    int failed = call->segments > 1 && later_segments(call);
    if (!failed) failed = run_tasks(causal_keys_task, call, workspace_bytes(call), heads * call->segments, call->threads);
    free(call->starts);
    return failed;
}

/* Reads q, k, v, mixed, inverse, gradient, peaks and the gradient of the state after (as sums and norms); writes dk, dv and
   the gradient of the state before. */
EXPORT(causal_back_to_keys)(linear_call *call) { return run_causal_keys(call); }

/* Number of chunks, the last ones, that keep what the first pass computes for the second. */
static int64_t kept_chunks(const linear_call *call) {
    REAL *none = NULL;
    workspace w = new_workspace(call, CHUNK, &none);
    return least(chunk_count(call->keys), MOST_KEPT / kept_size(&w));
}

static size_t causal_back_bytes(const linear_call *call) {
    REAL *none = NULL;
    workspace w = new_workspace(call, CHUNK, &none);
    return workspace_bytes(call) + (size_t)(kept_chunks(call) * kept_size(&w)) * sizeof(REAL);
}

/* Both passes over a head, one after the other, while the head is in the cache. */
static void causal_back_task(void *context, void *memory, int64_t head) {
    const linear_call *call = context;
    place at = place_of(call, head, call->keys);
    REAL *space = memory;
    workspace w = prepare(call, at, CHUNK, 1, &space);
    growing sums = new_growing(w.e, w.m, w.m, &space), later = new_growing(w.m, w.e, w.m, &space);
    w.kept = space, w.kept_from = chunk_count(call->keys) - kept_chunks(call);
    begin(&sums, given_state(call, head), w.m, w.e, 1, empty_peak(call));
    causal_back_to_queries(call, &w, &sums, at);
    begin(&later, given_gradient(call, head), w.m, w.e, 0, 0);
    causal_back_to_keys(call, &w, &later, at);
    write_state(call, &later, head);
}

/* Reads q, k, v, the state before, mixed, inverse, gradient, and d_sums and d_norms; writes dq, dk, dv and the gradient of the
   state before. */
EXPORT(causal_back)(linear_call *call) {
    int64_t heads = call->batch * call->heads, threads = call->threads;
    call->peaks = malloc((size_t)(heads * (chunk_count(call->keys) + 1) + 1) * sizeof(REAL));
    if (!call->peaks) return 1;
    prepare_results(call);
    divide(call, call->keys);
    int failed;
    if (call->segments == 1) {
        failed = run_tasks(causal_back_task, call, causal_back_bytes(call), heads, call->threads);
    } else {
        failed = run_forwards(call, causal_queries_task);
        call->sums = call->d_sums, call->norms = call->d_norms, call->peak = NULL, call->threads = threads;
        if (!failed) failed = run_causal_keys(call);
    }
    free(call->peaks);
    return failed;
}
