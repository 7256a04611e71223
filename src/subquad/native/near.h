/* The keys that the hybrid weighs exactly: blocks in slots, their scores, and weights beside those of far keys. */

/* Reads a block of keys and values into its slot, unless it is there. */
static slot_of_keys *load_block(const hybrid_call *call, hybrid_space *w, int64_t block) {
    slot_of_keys *slot = &w->slots[block % 3];
    if (slot->block == block) return slot;
    int64_t first = block * w->c, count = count_in(w, block), d = rounded_up(w->d, LANES), e = rounded_up(w->e, LANES);
    int64_t rest = w->c_columns - count;
    slot->block = block, slot->count = count;
    if (w->direct && rest == 0) {
        slot->keys = (const REAL *)row_of(call->k, w->b, w->h, first, SAME), slot->key_row = call->k.row;
        slot->values = (const REAL *)row_of(call->v, w->b, w->h, first, SAME), slot->value_row = call->v.row;
    } else {
        read_rows(slot->key_copy, w->d_row, call->k, w->b, w->h, first, count, w->d, call->type, NULL);
        read_rows(slot->value_copy, w->e_row, call->v, w->b, w->h, first, count, w->e, call->value_type, NULL);
        memset(slot->key_copy + count * w->d_row, 0, (size_t)(rest * w->d_row) * sizeof(REAL));
        memset(slot->value_copy + count * w->e_row, 0, (size_t)(rest * w->e_row) * sizeof(REAL));
        slot->keys = slot->key_copy, slot->key_row = w->d_row, slot->values = slot->value_copy, slot->value_row = w->e_row;
    }
    transpose(w->c_columns, d, slot->keys, slot->key_row, slot->turned_keys, w->c_row);
    if (!slot->dk) return slot;
    transpose(w->c_columns, e, slot->values, slot->value_row, slot->turned_values, w->c_row);
    memset(slot->dk, 0, (size_t)(w->c_columns * w->d_row) * sizeof(REAL));
    memset(slot->dv, 0, (size_t)(w->c_columns * w->e_row) * sizeof(REAL));
    return slot;
}

/* Loads the near blocks of a block. The own block comes last in the causal form. */
static void load_near(const hybrid_call *call, hybrid_space *w, int64_t block, int causal) {
    w->parts = 0;
    for (int64_t near = block > 0 ? block - 1 : 0; near <= (causal ? block : block + 1); near++) {
        if (count_in(w, near) == 0) continue;
        load_block(call, w, near);
        if (near == block) w->own = w->parts;
        w->part_of[w->parts++] = near % 3;
    }
}

/* How far row i of a chunk, whose first is row r0 of its block, sees into the triangle of its own block: whole vectors,
   with enough zeros for products of tiles. */
INLINE int64_t triangle_end(const hybrid_space *w, int64_t row) {
    return least(rounded_up(row + TILE_ROWS, LANES), w->c_columns);
}
INLINE int64_t near_width(const hybrid_space *w, int64_t row, int causal) {
    return causal ? w->own * w->c_columns + triangle_end(w, row) : w->parts * w->c_columns;
}

/* Products of rows x (count x depth) with near keys or values (turned), in the layout of scores. */
static void near_products(const hybrid_space *w, int64_t r0, int64_t count, int64_t depth, const REAL *x, int64_t x_row,
                          int of_values, REAL *to, int causal) {
    for (int64_t part = 0; part < w->parts; part++) {
        const slot_of_keys *slot = &w->slots[w->part_of[part]];
        const REAL *turned = of_values ? slot->turned_values : slot->turned_keys;
        REAL *at = to + part * w->c_columns;
        if (!causal || part != w->own) {
            multiply(count, w->c_columns, depth, plain(x, x_row), turned, w->c_row, at, w->s_row, 0);
            continue;
        }
        for (int64_t i = 0; i < count; i += TILE_ROWS) {
            int64_t rows = least(TILE_ROWS, count - i), columns = least(rounded_up(r0 + i + rows, LANES), w->c_columns);
            multiply(rows, columns, depth, plain(x + i * x_row, x_row), turned, w->c_row, at + i * w->s_row, w->s_row, 0);
        }
    }
}

/* to += weights times the rows of near keys or values (columns numbers each). */
static void add_near(const hybrid_space *w, int64_t r0, int64_t count, const REAL *weights, int of_values, REAL *to,
                     int64_t to_row, int causal) {
    int64_t columns = rounded_up(of_values ? w->e : w->d, LANES);
    for (int64_t part = 0; part < w->parts; part++) {
        const slot_of_keys *slot = &w->slots[w->part_of[part]];
        int64_t row = of_values ? slot->value_row : slot->key_row;
        const REAL *rows_of = of_values ? slot->values : slot->keys, *from = weights + part * w->c_columns;
        if (!causal || part != w->own) {
            multiply(count, columns, slot->count, plain(from, w->s_row), rows_of, row, to, to_row, 1);
            continue;
        }
        for (int64_t i = 0; i < count; i += TILE_ROWS) {
            int64_t rows = least(TILE_ROWS, count - i);
            multiply(rows, columns, r0 + i + rows, plain(from + i * w->s_row, w->s_row), rows_of, row, to + i * to_row,
                     to_row, 1);
        }
    }
}

/* About log2 |x|: continuous, and too small by at most .09. */
INLINE vec rough_log2(vec x) {
    x = larger(x, -x);
#if DOUBLE
    vec bits;
    for (int64_t lane = 0; lane < LANES; lane++) bits[lane] = (REAL)((ivec)x)[lane];
    vec log = bits * 0x1p-52 - 1023;
#else
    vec log = __builtin_convertvector((ivec)x, vec) * 0x1p-23f - 127;
#endif
    return select_lanes((ivec)(x == splat(0)), splat(-INFINITY), log);
}

/* Sets what row i does not see to x. */
INLINE void hide(const hybrid_space *w, REAL *row, int64_t row_in_block, int causal, REAL x) {
    for (int64_t part = 0; part < w->parts; part++) {
        int own = causal && part == w->own;
        int64_t begin = own ? row_in_block + 1 : w->slots[w->part_of[part]].count;
        set_from(row + part * w->c_columns, begin, own ? triangle_end(w, row_in_block) : w->c_columns, x);
    }
}

/* z . phi(q) of each row of at most LANES. */
INLINE vec multiply_norms(const hybrid_space *w, int64_t first, int64_t count, const far_keys *far, REAL *square) {
    if (far->empty) return splat(0);
    for (int64_t i = 0; i < count; i++) {
        const REAL *q = w->q + (first + i) * w->m_row;
        vec total = splat(0);
        for (int64_t j = 0; j < w->m; j += LANES) total += load(q + j) * load(far->norms + j);
        store(square + i * LANES, total);
    }
    return reduce_rows(square, 0);
}

/* Turns the scores of `count` rows (at most LANES, the first is row r0 of its block and row `first` of the chunk) into weights
   relative to 2^top. Sets the factors of the far keys, 1 / sum of all weights, and which factors are at their limit. */
static void weigh_rows(const hybrid_call *call, hybrid_space *w, int64_t first, int64_t count, int64_t r0, const far_keys *far,
                       int causal) {
    REAL square[LANE_COUNT * LANE_COUNT], factor = (REAL)(LOG2_E / sqrt((double)w->d));
    memset(square, 0, sizeof square);
    for (int64_t i = 0; i < count; i++) {
        REAL *row = w->scores + (first + i) * w->s_row;
        int64_t width = near_width(w, r0 + i, causal);
        vec most = splat(-INFINITY);
        hide(w, row, r0 + i, causal, -INFINITY);
        for (int64_t j = 0; j < width; j += LANES) most = larger(load(row + j), most);
        store(square + i * LANES, most);
    }
    vec top = reduce_rows(square, 1) * factor, norms = multiply_norms(w, first, count, far, square);
    vec level = load(w->query_exponents + first) + splat(or_zero(far->peak) + call->log_gain[w->h] * (REAL)LOG2_E);
    vec height = level + rough_log2(norms), nothing = splat(-INFINITY);
    top = larger(height, top);
    top = select_lanes((ivec)(top == nothing), splat(0), top);
    for (int64_t i = 0; i < count; i++) {
        REAL *row = w->scores + (first + i) * w->s_row;
        int64_t width = near_width(w, r0 + i, causal);
        vec total = splat(0);
        for (int64_t j = 0; j < width; j += LANES) store(row + j, exp2_of_negative(load(row + j) * factor - splat(top[i])));
        hide(w, row, r0 + i, causal, 0);
        for (int64_t j = 0; j < width; j += LANES) total += load(row + j);
        store(square + i * LANES, total);
    }
    vec limit = select_lanes((ivec)(height == nothing), splat(HIGHEST_OF_NONE), splat(HIGHEST)), power = level - top;
    vec far_factors = exp2_lanes(smaller(limit, power)), total = reduce_rows(square, 0) + far_factors * norms;
    ivec small = (ivec)(total < splat(NOTHING)) & (ivec)(total > splat(-NOTHING));
    store(w->far_factors + first, far_factors);
    store(w->inverse + first, select_lanes(small, splat(0), 1 / total));
    store(w->is_held + first, select_lanes((ivec)(power > limit), splat(1), splat(0)));
}

/* Weights of a chunk of at most CHUNK rows. */
static void weigh(const hybrid_call *call, hybrid_space *w, int64_t r0, int64_t count, const far_keys *far, int causal) {
    near_products(w, r0, count, w->d, w->x, w->x_row, 0, w->scores, causal);
    for (int64_t i = 0; i < count; i += LANES) weigh_rows(call, w, i, least(LANES, count - i), r0 + i, far, causal);
}

/* A tile of the result from row i of a chunk and column j on, written once: far keys first, then the near blocks. Returns its
   sum. */
static vec hybrid_tile(const hybrid_space *w, const far_keys *far, int64_t r0, int64_t i, int64_t j, int causal, REAL *to,
                        int64_t to_row) {
    vec sums[MOST_ROWS][TILE_VECTORS];
    clear_sums(TILE_ROWS, TILE_VECTORS, sums);
    if (!far->empty) {
        add_product(TILE_ROWS, TILE_VECTORS, w->m, plain(w->q + i * w->m_row, w->m_row), far->sums + j, far->row, sums);
#pragma GCC unroll 8
        for (int row = 0; row < TILE_ROWS; row++)
#pragma GCC unroll 8
            for (int column = 0; column < TILE_VECTORS; column++) sums[row][column] *= w->far_factors[i + row];
    }
    for (int64_t part = 0; part < w->parts; part++) {
        const slot_of_keys *slot = &w->slots[w->part_of[part]];
        int64_t depth = causal && part == w->own ? r0 + i + TILE_ROWS : slot->count;
        matrix weights = plain(w->scores + i * w->s_row + part * w->c_columns, w->s_row);
        add_product(TILE_ROWS, TILE_VECTORS, depth, weights, slot->values + j, slot->value_row, sums);
    }
    vec total = splat(0);
#pragma GCC unroll 8
    for (int row = 0; row < TILE_ROWS; row++)
#pragma GCC unroll 8
        for (int column = 0; column < TILE_VECTORS; column++) {
            vec mixed = sums[row][column] * w->inverse[i + row];
            store(to + row * to_row + column * LANES, mixed);
            total += mixed;
        }
    return total;
}

/* Mixes `count` rows from row r0 of a block on. */
static void mix_rows(const hybrid_call *call, hybrid_space *w, int64_t block, int64_t r0, int64_t count, const far_keys *far,
                     int causal) {
    int64_t first = block * w->c + r0, columns = rounded_up(w->e, LANES);
    hybrid_queries(call, w, first, count);
    weigh(call, w, r0, count, far, causal);
    if (call->value_type == SAME && w->e % TILE_COLUMNS == 0 && count % TILE_ROWS == 0) {
        for (int64_t i = 0; i < count; i += TILE_ROWS) {
            REAL *to = (REAL *)row_of(call->mixed, w->b, w->h, first + i, SAME);
            fetch_some(&w->soon);
            for (int64_t j = 0; j < w->e; j += TILE_COLUMNS)
                w->all += hybrid_tile(w, far, r0, i, j, causal, to + j, call->mixed.row);
        }
    } else {
        multiply(count, columns, far->empty ? 0 : w->m, plain(w->q, w->m_row), far->sums, far->row, w->mixed, w->e_row, 0);
        if (!far->empty) scale_rows(w->mixed, w->e_row, w->e, count, w->far_factors);
        add_near(w, r0, count, w->scores, 1, w->mixed, w->e_row, causal);
        for (int64_t i = 0; i < count; i++) {
            for (int64_t j = 0; j < columns; j += LANES) w->all += load(w->mixed + i * w->e_row + j) * w->inverse[i];
            write_row(row_of(call->mixed, w->b, w->h, first + i, call->value_type), w->mixed + i * w->e_row, w->inverse[i],
                      w->e, call->value_type);
        }
    }
    if (call->inverse)
        memcpy(call->inverse + head_of(call, w) * call->length + first, w->inverse, (size_t)count * sizeof(REAL));
}

/* Writes zeros to rows of a block that are not real. */
static void clear_rows(const hybrid_call *call, const hybrid_space *w, view to, int64_t block, int64_t columns, int64_t type) {
    int64_t end = least((block + 1) * w->c, call->length);
    for (int64_t i = block * w->c + count_in(w, block); i < end; i++)
        memset(row_of(to, w->b, w->h, i, type), 0, (size_t)columns * type_bytes(type));
}

INLINE void look_at_rows(const hybrid_space *w, ahead *soon, view rows, int64_t first, int64_t columns, int64_t type) {
    int64_t bytes = (int64_t)type_bytes(type), i = soon->matrices++;
    soon->of[i].data = row_of(rows, w->b, w->h, first, type);
    soon->of[i].row = rows.row * bytes, soon->of[i].bytes = columns * bytes;
}

/* Looks ahead to the rows of a block that were not read yet: in the bidirectional form keys and values of the one after it. */
static void look_at_block(const hybrid_call *call, hybrid_space *w, int64_t block, int causal, int back) {
    int64_t first = block * w->c, of_keys = (block + !causal) * w->c;
    ahead *soon = &w->soon;
    soon->next = soon->matrices = 0;
    soon->count = least(count_in(w, block), count_in(w, block + !causal));
    if (!soon->count) return;
    look_at_rows(w, soon, call->q, first, w->d, call->type);
    look_at_rows(w, soon, call->mixed, first, w->e, call->value_type);
    look_at_rows(w, soon, call->k, of_keys, w->d, call->type);
    look_at_rows(w, soon, call->v, of_keys, w->e, call->value_type);
    if (!back) return;
    look_at_rows(w, soon, call->gradient, first, w->e, call->value_type);
    look_at_rows(w, soon, call->dq, first, w->d, SAME);
}

static void mix_block(const hybrid_call *call, hybrid_space *w, int64_t block, const far_keys *far, int causal) {
    int64_t count = count_in(w, block);
    if (count) load_near(call, w, block, causal);
    look_at_block(call, w, block + 1, causal, 0);
    for (int64_t r0 = 0; r0 < count; r0 += CHUNK) mix_rows(call, w, block, r0, least(CHUNK, count - r0), far, causal);
    clear_rows(call, w, call->mixed, block, w->e, call->value_type);
}
