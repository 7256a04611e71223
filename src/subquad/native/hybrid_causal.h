/* The hybrid's causal form: far keys are in sums that grow block by block. */

/* Whether a block has become far, once `after` is done: the state holds the current block and the one before it apart. */
INLINE int becomes_far(const hybrid_space *w, int64_t after) { return after >= 1 && (after + 1) * w->c <= w->total; }

/* Adds a block of keys to S (m x e), or to its transpose. */
static void fold_block(const hybrid_call *call, hybrid_space *w, growing *sums, int64_t block, int turned) {
    const slot_of_keys *slot = load_block(call, w, block);
    for (int64_t j = 0; j < slot->count; j += CHUNK) {
        int64_t count = least(CHUNK, slot->count - j);
        const REAL *values;
        hybrid_keys(call, w, slot->keys + j * slot->key_row, slot->key_row, block * w->c + j, count);
        REAL before = sums->peak, peak = has_exponent(&call->of_keys) ? highest_of(w->exponents, count, before) : before;
        const REAL *factors = fade_values(call, w, slot->values + j * slot->value_row, count, peak, &values);
        int64_t row = factors ? w->e_row : slot->value_row;
        if (factors) fade(sums, exp2_of(before - or_zero(peak)));
        if (turned)
            grow(sums, count, transposed(values, row), w->k, w->m_row, w->k, w->m_row, factors);
        else
            grow(sums, count, transposed(w->k, w->m_row), values, row, w->k, w->m_row, factors);
        sums->peak = peak;
    }
}

INLINE int all_zero(const REAL *x, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (x[i] != 0) return 0;
    return 1;
}

/* The state of a head as given; its sums are NULL if they are zero. */
static held_state state_of_head(const hybrid_call *call, int64_t head) {
    int64_t numbers = call->m * call->e;
    held_state none = {NULL, NULL, call->peak ? call->peak + head : NULL};
    if (!call->sums) return none;
    const REAL *sums = call->sums + head * numbers, *norms = call->norms + head * call->m;
    if (all_zero(norms, call->m) && all_zero(sums, numbers)) return none;
    return (held_state){sums, norms, none.peak};
}

INLINE void write_hybrid_state(const hybrid_call *call, growing *sums, int64_t head) {
    int has_features = call->sums_after != NULL; /* memory of zero features may be NULL */
    finish(sums, has_features ? call->sums_after + head * call->m * call->e : NULL,
           has_features ? call->norms_after + head * call->m : NULL, call->peak_after ? call->peak_after + head : NULL);
}

INLINE far_keys seen_sums(const growing *sums) {
    return (far_keys){sums->all, sums->norms, sums->row, sums->peak, sums->empty};
}

INLINE REAL lowest_peak(const hybrid_call *call) { return has_exponent(&call->of_keys) ? -INFINITY : 0; }

/* Rows of the last block and of the one before it, filled up with zeros. All sequences are as long. */
static void write_last(const hybrid_space *w, view from, int64_t columns, int64_t type, char *to) {
    int64_t bytes = columns * (int64_t)type_bytes(type), before = w->total / w->c - 1, first = before > 0 ? before * w->c : 0;
    for (int64_t i = 0; i < 2 * w->c; i++, to += bytes)
        if (first + i < w->total)
            memcpy(to, row_of(from, w->b, w->h, first + i, type), (size_t)bytes);
        else
            memset(to, 0, (size_t)bytes);
}

static void hybrid_causal_task(void *context, void *memory, int64_t index) {
    hybrid_call *call = context;
    REAL *space = memory;
    hybrid_space w = prepare_hybrid(call, index, 0, &space);
    growing sums = new_growing(w.m, w.e, w.m, &space);
    begin(&sums, state_of_head(call, index), w.m, w.e, 0, lowest_peak(call));
    for (int64_t block = call->first; block < call->last; block++) {
        far_keys far = seen_sums(&sums);
        mix_block(call, &w, block, &far, 1);
        if (becomes_far(&w, block)) fold_block(call, &w, &sums, block - 1, 0);
    }
    write_hybrid_state(call, &sums, index);
    REAL all = lanes_sum(w.all);
    if (all - all != 0) __atomic_store_n(&call->not_finite, 1, __ATOMIC_RELAXED);
    if (!call->last_keys) return;
    int64_t rows = index * 2 * w.c, k_bytes = w.d * (int64_t)type_bytes(call->type);
    write_last(&w, call->k, w.d, call->type, (char *)call->last_keys + rows * k_bytes);
    write_last(&w, call->v, w.e, call->value_type, (char *)call->last_values + rows * w.e * (int64_t)type_bytes(call->value_type));
}

/* Only the sums: what the walk above leaves as the state after its blocks. */
static void hybrid_fold_task(void *context, void *memory, int64_t index) {
    const hybrid_call *call = context;
    REAL *space = memory;
    hybrid_space w = prepare_hybrid(call, index, 0, &space);
    growing sums = new_growing(w.m, w.e, w.m, &space);
    begin(&sums, state_of_head(call, index), w.m, w.e, 0, lowest_peak(call));
    for (int64_t block = call->first; block < call->last; block++)
        if (becomes_far(&w, block)) fold_block(call, &w, &sums, block - 1, 0);
    write_hybrid_state(call, &sums, index);
}
