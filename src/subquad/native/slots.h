/* Linformer: keys and values are projected to a few slots, to which every query attends:

     out_i = sum over s of w_is u_s / sum over s of w_is        w_is = exp(q_i . t_s / sqrt d),  t = E k,  u = F v

   The slots of a head stay in the second cache. Numbers are those of the caller: there is one type. */

#define SLOT_ROWS 32 /* queries at a time */

typedef struct {
    int64_t batch, heads, queries, keys, d, e, slots, threads;
    view q, k, v, mixed;
    const REAL *key_weight, *value_weight; /* E and F: slots x keys */
    int64_t weight_head, weight_row;       /* distance from the weights of one head, and from one row, to the next */
    int64_t not_finite;                    /* 1 if queries, slots or results are NaN or infinite; 0 before the call */
} slots_call;

/* Buffers of a thread. Rows are whole vectors, filled up with zeros. */
typedef struct {
    int64_t columns, d_row, e_row, s_row; /* columns: slots, rounded up */
    REAL *keys, *values;                  /* slots x d, slots x e */
    REAL *turned;                         /* d x slots */
    REAL *weights, *rows;                 /* slots x DEPTH, DEPTH x d or e: copies of the caller's */
    REAL *scores, *mixed;                 /* SLOT_ROWS x slots, SLOT_ROWS x e */
    vec total;                            /* of everything that must be finite, in lanes */
} slots_space;

static slots_space new_slots_space(const slots_call *call, REAL **memory) {
    slots_space w = {.columns = rounded_up(call->slots, LANES), .total = splat(0)};
    w.d_row = row_length(call->d), w.e_row = row_length(call->e), w.s_row = row_length(w.columns);
    int64_t widest = w.d_row > w.e_row ? w.d_row : w.e_row;
    w.keys = take(memory, w.columns * w.d_row), w.values = take(memory, w.columns * w.e_row);
    w.turned = take(memory, rounded_up(call->d, LANES) * w.s_row);
    w.weights = take(memory, call->slots * row_length(DEPTH));
    w.rows = take(memory, (DEPTH > SLOT_ROWS ? DEPTH : SLOT_ROWS) * widest);
    w.scores = take(memory, SLOT_ROWS * w.s_row), w.mixed = take(memory, SLOT_ROWS * w.e_row);
    return w;
}

/* Rows of the caller where they are, if they are whole vectors, else copied. */
static const REAL *rows_at(const slots_space *w, view from, int64_t b, int64_t h, int64_t first, int64_t count, int64_t columns,
                           int64_t *row) {
    *row = from.row;
    if (columns % LANES == 0) return (const REAL *)row_of(from, b, h, first, SAME);
    *row = row_length(columns);
    read_rows(w->rows, *row, from, b, h, first, count, columns, SAME, NULL);
    return w->rows;
}

/* Adds the products of weights, of which w->weights holds some columns, and `count` keys or values to slots. */
static void add_to_slots(const slots_call *call, slots_space *w, view from, int64_t b, int64_t h, int64_t first, int64_t count,
                         int64_t columns, REAL *to) {
    int64_t row;
    const REAL *rows = rows_at(w, from, b, h, first, count, columns, &row);
    multiply(call->slots, rounded_up(columns, LANES), count, plain(w->weights, row_length(DEPTH)), rows, row, to,
             row_length(columns), 1);
}

/* Copies some columns of the weights: rows of the caller's may be so far apart that they share few sets of the cache. */
static void copy_weights(const slots_call *call, slots_space *w, const REAL *weight, int64_t first, int64_t count) {
    for (int64_t i = 0; i < call->slots; i++)
        read_row(w->weights + i * row_length(DEPTH), weight + i * call->weight_row + first, count, count, SAME);
}

/* Fills the slots of a head. */
static void fill_slots(const slots_call *call, slots_space *w, int64_t b, int64_t h) {
    const REAL *of_keys = call->key_weight + h * call->weight_head, *of_values = call->value_weight + h * call->weight_head;
    memset(w->keys, 0, (size_t)(w->columns * w->d_row) * sizeof(REAL));
    memset(w->values, 0, (size_t)(w->columns * w->e_row) * sizeof(REAL));
    for (int64_t first = 0; first < call->keys; first += DEPTH) {
        int64_t count = least(DEPTH, call->keys - first);
        copy_weights(call, w, of_keys, first, count);
        add_to_slots(call, w, call->k, b, h, first, count, call->d, w->keys);
        if (of_values != of_keys) copy_weights(call, w, of_values, first, count);
        add_to_slots(call, w, call->v, b, h, first, count, call->e, w->values);
    }
    for (int64_t i = 0; i < w->columns * w->d_row; i += LANES) w->total += load(w->keys + i);
    for (int64_t i = 0; i < w->columns * w->e_row; i += LANES) w->total += load(w->values + i);
    transpose(w->columns, rounded_up(call->d, LANES), w->keys, w->d_row, w->turned, w->s_row);
}

/* Turns the scores of `count` rows, at most LANES, into weights relative to the largest; returns 1 / their sums. */
static vec weigh_slots(const slots_call *call, const slots_space *w, REAL *scores, int64_t count) {
    REAL square[LANE_COUNT * LANE_COUNT], factor = (REAL)(LOG2_E / sqrt((double)call->d));
    memset(square, 0, sizeof square);
    for (int64_t i = 0; i < count; i++) {
        REAL *row = scores + i * w->s_row;
        vec most = splat(-INFINITY);
        set_from(row, call->slots, w->columns, -INFINITY);
        for (int64_t j = 0; j < w->columns; j += LANES) most = larger(load(row + j), most);
        store(square + i * LANES, most);
    }
    vec top = reduce_rows(square, 1) * factor;
    for (int64_t i = 0; i < count; i++) {
        REAL *row = scores + i * w->s_row;
        vec total = splat(0);
        for (int64_t j = 0; j < w->columns; j += LANES) {
            vec weight = exp2_of_negative(load(row + j) * factor - splat(top[i]));
            store(row + j, weight);
            total += weight;
        }
        store(square + i * LANES, total);
    }
    return 1 / reduce_rows(square, 0);
}

/* Mixes `count` queries, at most SLOT_ROWS. */
static void mix_slots(const slots_call *call, slots_space *w, int64_t b, int64_t h, int64_t first, int64_t count) {
    int64_t row, e_columns = rounded_up(call->e, LANES);
    const REAL *q = rows_at(w, call->q, b, h, first, count, call->d, &row);
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < call->d; j += LANES) w->total += load(q + i * row + j);
    multiply(count, w->columns, call->d, plain(q, row), w->turned, w->s_row, w->scores, w->s_row, 0);
    REAL inverse[SLOT_ROWS + LANE_COUNT];
    for (int64_t i = 0; i < count; i += LANES)
        store(inverse + i, weigh_slots(call, w, w->scores + i * w->s_row, least(LANES, count - i)));
    multiply(count, e_columns, call->slots, plain(w->scores, w->s_row), w->values, w->e_row, w->mixed, w->e_row, 0);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < e_columns; j += LANES) w->total += load(w->mixed + i * w->e_row + j);
        write_row(row_of(call->mixed, b, h, first + i, SAME), w->mixed + i * w->e_row, inverse[i], call->e, SAME);
    }
}

static void slots_task(void *context, void *memory, int64_t index) {
    slots_call *call = context;
    int64_t b = index / call->heads, h = index % call->heads;
    REAL *space = memory;
    slots_space w = new_slots_space(call, &space);
    fill_slots(call, &w, b, h);
    for (int64_t first = 0; first < call->queries; first += SLOT_ROWS)
        mix_slots(call, &w, b, h, first, least(SLOT_ROWS, call->queries - first));
    REAL total = lanes_sum(w.total);
    if (total - total != 0) __atomic_store_n(&call->not_finite, 1, __ATOMIC_RELAXED);
}
