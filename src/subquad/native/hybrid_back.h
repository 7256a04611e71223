/* Gradients of the hybrid (hybrid.h). With G = gradient / denominator, e_i = -G_i . out_i and P_ij = G_i . v_j + e_i:

     near:  dq_i = sum of w_ij P_ij k_j / sqrt d,  dk_j = sum of w_ij P_ij q_i / sqrt d,  dv_j = sum of w_ij G_i
     far:   dq'_i = f_i (S G_i + e_i z),  dS = sum of f_i q'_i G_i^T,  dz = sum of f_i e_i q'_i

   with f_i the factor of the far keys. A first walk computes everything but what keys get through S and z, and notes f, e and
   the peaks of S. A second one computes the rest: backwards in time in the causal form; in the bidirectional form with sums
   around blocks of queries, relative to 2^-peak, since being near is symmetric. Weights and features are computed again. */

/* Gradients of learned directions, of which one thread sums those of a head. */
typedef struct {
    int learned;
    growing sums;
} direction_slopes;

INLINE int64_t slopes_numbers(const hybrid_call *call) {
    int64_t q = call->of_queries.directions, k = call->of_keys.directions, most = q > k ? q : k;
    return growing_size(call->d, most, most);
}

/* Nothing is summed where nobody asks for it: `to` is then NULL. */
static direction_slopes new_slopes(const hybrid_call *call, const feature_map *map, const REAL *to, REAL **memory) {
    direction_slopes slopes = {.learned = map->kind == LEARNED && to};
    if (!slopes.learned) return slopes;
    held_state none = {NULL, NULL, NULL};
    slopes.sums = new_growing(call->d, map->directions, map->directions, memory);
    begin(&slopes.sums, none, 0, 0, 0, 0);
    slopes.sums.live = 0;
    return slopes;
}

/* Adds the gradient of a chunk's logits, which pull_back left in `packed`. */
static void add_slopes(direction_slopes *slopes, const directions *packed, const REAL *x, int64_t x_row, int64_t count) {
    if (slopes->learned)
        grow(&slopes->sums, count, transposed(x, x_row), packed->logits, packed->logits_row, packed->logits,
             packed->logits_row, NULL);
}

static void write_slopes(const hybrid_call *call, direction_slopes *slopes, REAL *to, int64_t head) {
    if (!slopes->learned) return;
    growing *sums = &slopes->sums;
    int64_t d = sums->rows, r = sums->columns;
    REAL factor = (REAL)(1 / sqrt(sqrt((double)call->d)));
    to += head * (d + 1) * r;
    conclude(sums);
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j < r; j++) to[i * r + j] += sums->all[i * sums->row + j] * factor;
    for (int64_t j = 0; j < r; j++) to[d * r + j] += sums->norms[j];
}

/* ---- rows of queries ---------------------------------------------------------------------------------------------------- */

/* Reads G and e of `count` rows. */
static void hybrid_gradients(const hybrid_call *call, hybrid_space *w, int64_t first, int64_t count) {
    int64_t at = head_of(call, w) * call->length + first;
    const REAL *inverse = call->inverse + at;
    read_rows(w->g, w->e_row, call->gradient, w->b, w->h, first, count, w->e, call->value_type, NULL);
    read_rows(w->mixed, w->e_row, call->mixed, w->b, w->h, first, count, w->e, call->value_type, NULL);
    for (int64_t i = 0; i < count; i++) {
        vec total = splat(0);
        for (int64_t j = 0; j < w->e; j += LANES) {
            vec g = load(w->g + i * w->e_row + j) * inverse[i];
            store(w->g + i * w->e_row + j, g);
            total += g * load(w->mixed + i * w->e_row + j);
        }
        w->errors[i] = -lanes_sum(total);
    }
    memcpy(call->errors + at, w->errors, (size_t)count * sizeof(REAL));
}

/* Adds weights^T times `rows` (columns numbers each) to the gradients of near keys or values. */
static void add_near_back(hybrid_space *w, int64_t r0, int64_t count, const REAL *weights, const REAL *rows, int64_t rows_row,
                          int of_values, int causal) {
    int64_t columns = rounded_up(of_values ? w->e : w->d, LANES), row = of_values ? w->e_row : w->d_row;
    for (int64_t part = 0; part < w->parts; part++) {
        slot_of_keys *slot = &w->slots[w->part_of[part]];
        const REAL *from = weights + part * w->c_columns;
        REAL *to = of_values ? slot->dv : slot->dk;
        if (!causal || part != w->own) {
            multiply(slot->count, columns, count, transposed(from, w->s_row), rows, rows_row, to, row, 1);
            continue;
        }
        for (int64_t j = 0; j < r0 + count; j += TILE_ROWS) {
            int64_t start = j > r0 ? j - r0 : 0;
            multiply(least(TILE_ROWS, r0 + count - j), columns, count - start, transposed(from + start * w->s_row + j, w->s_row),
                     rows + start * rows_row, rows_row, to + j * row, row, 1);
        }
    }
}

/* What queries, keys and values get through near weights; queries in w->dx. */
static void back_through_near(hybrid_space *w, int64_t r0, int64_t count, int causal) {
    near_products(w, r0, count, w->e, w->g, w->e_row, 1, w->pairs, causal);
    for (int64_t i = 0; i < count; i++) {
        REAL *pairs = w->pairs + i * w->s_row;
        const REAL *weights = w->scores + i * w->s_row;
        int64_t width = near_width(w, r0 + i, causal), begun = causal ? w->own * w->c_columns + r0 + i + 1 : width;
        for (int64_t j = 0; j < width; j += LANES) store(pairs + j, (load(pairs + j) + splat(w->errors[i])) * load(weights + j));
        for (int64_t j = begun; j < width; j++) pairs[j] = 0; /* products beside the triangle may be anything */
    }
    memset(w->dx, 0, (size_t)(count * w->d_row) * sizeof(REAL));
    add_near(w, r0, count, w->pairs, 0, w->dx, w->d_row, causal);
    scale(w->dx, count * w->d_row, (REAL)(1 / sqrt((double)w->d)));
    add_near_back(w, r0, count, w->pairs, w->x, w->x_row, 0, causal);
    add_near_back(w, r0, count, w->scores, w->g, w->e_row, 1, causal);
}

/* The gradient of the features of `count` queries, in w->d_features; returns that of log_gain. `far` is transposed. */
static double back_through_far(hybrid_space *w, int64_t count, const far_keys *far) {
    int64_t columns = rounded_up(w->m, LANES);
    double slope = 0; /* as sums over many positions, which nearly cancel */
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < columns; j += LANES)
            store(w->d_features + i * w->m_row + j, far->empty ? splat(0) : load(far->norms + j) * w->errors[i]);
    if (far->empty) return 0;
    multiply_to(count, columns, w->e, plain(w->g, w->e_row), far->sums, far->row, TILE_COLUMNS,
                (product_to){w->d_features, w->m_row, 1, NULL, NULL, &w->soon});
    for (int64_t i = 0; i < count; i++) {
        REAL *row = w->d_features + i * w->m_row;
        vec total = splat(0);
        for (int64_t j = 0; j < columns; j += LANES) {
            vec d_feature = load(row + j) * w->far_factors[i];
            store(row + j, d_feature);
            total += d_feature * load(w->q + i * w->m_row + j);
        }
        if (!w->is_held[i]) slope += lanes_sum(total);
    }
    return slope;
}

static double back_rows(const hybrid_call *call, hybrid_space *w, int64_t block, int64_t r0, int64_t count, const far_keys *far,
                      direction_slopes *slopes, int causal) {
    int64_t first = block * w->c + r0, at = head_of(call, w) * call->length + first;
    hybrid_queries(call, w, first, count);
    hybrid_gradients(call, w, first, count);
    weigh(call, w, r0, count, far, causal);
    memcpy(call->far_factors + at, w->far_factors, (size_t)count * sizeof(REAL));
    back_through_near(w, r0, count, causal);
    double slope = back_through_far(w, count, far);
    if (call->of_queries.kind == GIVEN)
        write_rows(call->dq_features, w->d_features, w->m_row, w->b, w->h, first - call->query_start, count, w->m, SAME);
    else if (!far->empty) {
        pull_back(&call->of_queries, &w->for_q, w->x, w->x_row, count, w->d, w->m, w->q, w->m_row, w->d_features, w->dx_far,
                  w->d_row);
        add_slopes(slopes, &w->for_q, w->x, w->x_row, count);
        add_into(w->dx, w->dx, w->dx_far, count * w->d_row);
    }
    write_rows(call->dq, w->dx, w->d_row, w->b, w->h, first, count, w->d, SAME);
    return slope;
}

/* Adds rows times a factor to the gradients of keys or values, or writes them there. */
static void add_rows(const hybrid_space *w, view to, const REAL *from, int64_t row, int64_t first, int64_t count,
                     int64_t columns, REAL factor, int write) {
    for (int64_t i = 0; i < count; i++) {
        REAL *at = (REAL *)row_of(to, w->b, w->h, first + i, SAME);
        const REAL *added = from + i * row;
        int64_t j = 0;
        for (; j + LANES <= columns; j += LANES) store(at + j, (write ? splat(0) : load(at + j)) + load(added + j) * factor);
        for (; j < columns; j++) at[j] = (write ? 0 : at[j]) + added[j] * factor;
    }
}

/* Adds what a block of keys and values got through near weights to their gradients, and forgets the block. */
static void release_block(const hybrid_call *call, hybrid_space *w, int64_t block) {
    slot_of_keys *slot = &w->slots[(block + 3) % 3];
    if (block < 0 || slot->block != block) return;
    add_rows(w, call->dk, slot->dk, w->d_row, block * w->c, slot->count, w->d, (REAL)(1 / sqrt((double)w->d)),
             (int)call->is_first);
    add_rows(w, call->dv, slot->dv, w->e_row, block * w->c, slot->count, w->e, 1, (int)call->is_first);
    slot->block = -1;
}

static double back_block(const hybrid_call *call, hybrid_space *w, int64_t block, const far_keys *far,
                         direction_slopes *slopes, int causal) {
    int64_t count = count_in(w, block);
    double slope = 0;
    if (count) load_near(call, w, block, causal);
    look_at_block(call, w, block + 1, causal, 1);
    for (int64_t r0 = 0; r0 < count; r0 += CHUNK)
        slope += back_rows(call, w, block, r0, least(CHUNK, count - r0), far, slopes, causal);
    clear_rows(call, w, call->dq, block, w->d, SAME);
    return slope;
}

/* ---- what keys get through the sums ------------------------------------------------------------------------------------- */

/* G and e of a chunk of queries times the factors of the far keys, as they enter the gradients of S and z; and features. */
static void read_later(const hybrid_call *call, hybrid_space *w, int64_t first, int64_t count) {
    int64_t at = head_of(call, w) * call->length + first;
    hybrid_queries(call, w, first, count);
    read_rows(w->g, w->e_row, call->gradient, w->b, w->h, first, count, w->e, call->value_type, NULL);
    for (int64_t i = 0; i < count; i++) {
        REAL factor = call->far_factors[at + i];
        scale(w->g + i * w->e_row, rounded_up(w->e, LANES), factor * call->inverse[at + i]);
        w->errors[i] = call->errors[at + i] * factor;
    }
}

/* Adds to dk and dv of a block what they get through sums, whose gradient is `later` (m x e). Keys have the factor
   2^(exponent + shift). */
static void back_to_far_block(const hybrid_call *call, hybrid_space *w, int64_t block, const far_keys *later, REAL shift,
                              direction_slopes *slopes) {
    int64_t whole = count_in(w, block), columns_m = rounded_up(w->m, LANES), columns_e = rounded_up(w->e, LANES);
    const feature_map *map = &call->of_keys;
    transpose(columns_m, columns_e, later->sums, later->row, w->turned, w->m_row);
    for (int64_t j = 0; j < whole; j += CHUNK) {
        int64_t count = least(CHUNK, whole - j), first = block * w->c + j;
        read_rows(w->copy, w->d_row, call->k, w->b, w->h, first, count, w->d, call->type, NULL);
        read_rows(w->v, w->e_row, call->v, w->b, w->h, first, count, w->e, call->value_type, NULL);
        hybrid_keys(call, w, w->copy, w->d_row, first, count);
        for (int64_t i = 0; i < count; i++)
            memcpy(w->d_features + i * w->m_row, later->norms, (size_t)columns_m * sizeof(REAL));
        multiply(count, columns_m, w->e, plain(w->v, w->e_row), w->turned, w->m_row, w->d_features, w->m_row, 1);
        multiply(count, columns_e, w->m, plain(w->k, w->m_row), later->sums, later->row, w->mixed, w->e_row, 0);
        if (has_exponent(map)) {
            for (int64_t i = 0; i < count; i++) w->key_factors[i] = exp2_of(w->exponents[i] + shift);
            scale_rows(w->d_features, w->m_row, w->m, count, w->key_factors);
            scale_rows(w->mixed, w->e_row, w->e, count, w->key_factors);
        }
        add_rows(w, call->dv, w->mixed, w->e_row, first, count, w->e, 1, 0);
        if (map->kind == GIVEN) {
            write_rows(call->dk_features, w->d_features, w->m_row, w->b, w->h, first - call->key_start, count, w->m, SAME);
            continue;
        }
        pull_back(map, &w->for_k, w->copy, w->d_row, count, w->d, w->m, w->k, w->m_row, w->d_features, w->dx, w->d_row);
        add_slopes(slopes, &w->for_k, w->copy, w->d_row, count);
        add_rows(w, call->dk, w->dx, w->d_row, first, count, w->d, 1, 0);
    }
}

/* ---- the causal form ---------------------------------------------------------------------------------------------------- */

INLINE REAL *peaks_of(const hybrid_call *call, int64_t head) {
    return call->peaks + head * ((call->length + call->block - 1) / call->block + 1);
}

static void hybrid_causal_queries_task(void *context, void *memory, int64_t index) {
    const hybrid_call *call = context;
    REAL *space = memory, *peaks = peaks_of(call, index);
    double slope = 0;
    hybrid_space w = prepare_hybrid(call, index, 1, &space);
    keep_features(call, &w, memory);
    growing sums = new_growing(w.e, w.m, w.m, &space);
    direction_slopes slopes = new_slopes(call, &call->of_queries, call->query_slopes, &space);
    begin(&sums, state_of_head(call, index), w.m, w.e, 1, lowest_peak(call));
    for (int64_t block = call->first; block < call->last; block++) {
        far_keys far = seen_sums(&sums);
        peaks[block] = sums.peak;
        slope += back_block(call, &w, block, &far, &slopes, 1);
        if (becomes_far(&w, block)) fold_block(call, &w, &sums, block - 1, 1);
        release_block(call, &w, block - 1);
    }
    release_block(call, &w, call->last - 1);
    peaks[call->last] = sums.peak;
    call->gain_slopes[index] += (REAL)slope;
    write_slopes(call, &slopes, call->query_slopes, index);
}

static void hybrid_causal_keys_task(void *context, void *memory, int64_t index) {
    const hybrid_call *call = context;
    REAL *space = memory;
    const REAL *peaks = peaks_of(call, index);
    hybrid_space w = prepare_hybrid(call, index, 1, &space);
    keep_features(call, &w, memory);
    growing later = new_growing(w.m, w.e, w.m, &space);
    direction_slopes slopes = new_slopes(call, &call->of_keys, call->key_slopes, &space);
    int64_t current = w.total / w.c;
    begin(&later, state_of_head(call, index), w.m, w.e, 0, 0);
    for (int64_t block = least(call->last - 1, current); block >= call->first; block--) {
        int64_t whole = count_in(&w, block);
        if (block < current) fade(&later, exp2_of(peaks[block] - or_zero(peaks[block + 1])));
        for (int64_t r0 = 0; r0 < whole; r0 += CHUNK) {
            int64_t count = least(CHUNK, whole - r0);
            read_later(call, &w, block * w.c + r0, count);
            grow(&later, count, transposed(w.q, w.m_row), w.g, w.e_row, w.q, w.m_row, w.errors);
        }
        if (block < 2 || later.empty) continue;
        far_keys seen = seen_sums(&later);
        back_to_far_block(call, &w, block - 2, &seen, -or_zero(peaks[block]), &slopes);
    }
    write_hybrid_state(call, &later, index);
    write_slopes(call, &slopes, call->key_slopes, index);
}

/* ---- the bidirectional form --------------------------------------------------------------------------------------------- */

static void hybrid_both_queries_task(void *context, void *memory, int64_t index) {
    const hybrid_call *call = context;
    REAL *space = memory, *peaks = peaks_of(call, index);
    double slope = 0;
    hybrid_space w = prepare_hybrid(call, index, 1, &space);
    around sums = new_around(call, &w, call->groups, pile_of_keys, &space);
    direction_slopes slopes = new_slopes(call, &call->of_queries, call->query_slopes, &space);
    for (int64_t block = call->first; block < call->last; block++) {
        far_keys none = {NULL, NULL, 0, sums.lowest, 1};
        if (block < sums.blocks && block % sums.group == 0) start_group(call, &w, &sums, block / sums.group);
        far_keys far = block < sums.blocks ? sums_around(&sums, block) : none;
        peaks[block] = far.peak;
        if (!far.empty) {
            transpose(rounded_up(w.m, LANES), rounded_up(w.e, LANES), far.sums, far.row, w.turned, w.m_row);
            far.sums = w.turned, far.row = w.m_row;
        }
        slope += back_block(call, &w, block, &far, &slopes, 0);
        release_block(call, &w, block - 1);
    }
    release_block(call, &w, call->last - 1);
    release_block(call, &w, call->last);
    call->gain_slopes[index] += (REAL)slope;
    write_slopes(call, &slopes, call->query_slopes, index);
}

/* The gradient of the sums that a block of queries sees, relative to 2^-peak of these sums. */
static void pile_of_queries(const hybrid_call *call, hybrid_space *w, int64_t block, const pile_shape *shape, REAL *pile,
                            REAL *space) {
    int64_t whole = count_in(w, block);
    REAL peak = peaks_of(call, head_of(call, w))[block];
    clear_pile(shape, pile, lowest_peak(call));
    if (peak == -INFINITY) return;
    for (int64_t r0 = 0; r0 < whole; r0 += CHUNK) {
        int64_t count = least(CHUNK, whole - r0);
        read_later(call, w, block * w->c + r0, count);
        put_part(shape, pile, space, -peak, w->e, count, w->q, w->g, w->errors, r0 > 0);
    }
}

static void hybrid_slope_groups_task(void *context, void *memory, int64_t index) {
    const hybrid_call *call = context;
    REAL *space = memory;
    hybrid_space w = prepare_hybrid(call, index, 1, &space);
    around sums = new_around(call, &w, call->group_slopes, pile_of_queries, &space);
    add_to_groups(call, &w, &sums);
    if (call->last * w.c >= call->length) join_groups(call, &sums);
}

static void hybrid_both_keys_task(void *context, void *memory, int64_t index) {
    const hybrid_call *call = context;
    REAL *space = memory;
    hybrid_space w = prepare_hybrid(call, index, 1, &space);
    around sums = new_around(call, &w, call->group_slopes, pile_of_queries, &space);
    direction_slopes slopes = new_slopes(call, &call->of_keys, call->key_slopes, &space);
    int64_t end = least(call->last, sums.blocks);
    for (int64_t block = call->first; block < end; block++) {
        if (block % sums.group == 0) start_group(call, &w, &sums, block / sums.group);
        far_keys later = sums_around(&sums, block);
        if (!later.empty) back_to_far_block(call, &w, block, &later, or_zero(later.peak), &slopes);
    }
    write_slopes(call, &slopes, call->key_slopes, index);
}
