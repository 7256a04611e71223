/* Products of small matrices that lie in the cache.

   Every product is C = A B or C += A B. B and C have rows of whole vectors. A is read one number at a time and may have any
   strides, so that a transposed A needs no copy. */

#if BYTES == 64
#define TILE_ROWS 4
#define TILE_VECTORS 4
#define TALL_2 8 /* rows of a tile of two vectors, and of one: as many sums as fill the registers */
#define TALL_1 16
#elif BYTES == 32
#define TILE_ROWS 6
#define TILE_VECTORS 2
#define TALL_2 6
#define TALL_1 8
#else
#define TILE_ROWS 4
#define TILE_VECTORS 2
#define TALL_2 4
#define TALL_1 8
#endif
#define MOST_ROWS (TALL_1 > TALL_2 ? TALL_1 : TALL_2)
#define TILE_COLUMNS (TILE_VECTORS * LANES)
#define DEPTH 128 /* rows of B that are used for all of A before the next ones: they stay in the first cache */

typedef struct {
    const REAL *data;
    int64_t row, column; /* distance from one row, and from one column, to the next */
} matrix;

INLINE matrix plain(const REAL *data, int64_t row) { return (matrix){data, row, 1}; }
INLINE matrix transposed(const REAL *data, int64_t row) { return (matrix){data, 1, row}; }

/* Rows of the caller that are needed for the next chunk. A few at a time are asked for while products are computed: waiting
   for them takes longer than computing features from them, and asking for all at once takes as long as waiting. */
#define MOST_AHEAD 8
#define ROWS_AT_ONCE 4
typedef struct {
    int64_t next, count; /* rows of each matrix that were asked for, and all */
    int64_t matrices;
    struct {
        const char *data;
        int64_t row, bytes; /* distance between rows, and how much is used of one, in bytes */
    } of[MOST_AHEAD];
} ahead;

INLINE void fetch_some(ahead *soon) {
    for (int i = 0; i < ROWS_AT_ONCE && soon->next < soon->count; i++, soon->next++)
        for (int64_t j = 0; j < soon->matrices; j++) {
            const char *row = soon->of[j].data + soon->next * soon->of[j].row, *end = row + soon->of[j].bytes;
            for (; row < end; row += 64) __builtin_prefetch(row, 0, 2); /* into the second cache: the first is in use */
        }
}

/* Where a product goes: to C, or added to C. If `total` is not NULL, the sum of C and `old` (0 if NULL) is written there too.
   All have the same distance between rows. `soon` is what to ask for meanwhile, or NULL. */
typedef struct {
    REAL *c;
    int64_t row;
    int add;
    const REAL *old;
    REAL *total;
    ahead *soon;
} product_to;

/* sums += A B for a tile of C in registers: `rows` and `vectors` are constants at every call, so that loops are unrolled. */
INLINE void add_product(const int rows, const int vectors, int64_t depth, matrix a, const REAL *b, int64_t b_row,
                        vec sums[MOST_ROWS][TILE_VECTORS]) {
    for (int64_t k = 0; k < depth; k++) {
        vec row[TILE_VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) row[j] = load(b + j * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            REAL factor = a.data[i * a.row];
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) sums[i][j] += factor * row[j];
        }
        a.data += a.column;
        b += b_row;
    }
}

INLINE void clear_sums(const int rows, const int vectors, vec sums[MOST_ROWS][TILE_VECTORS]) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) sums[i][j] = splat(0);
}

INLINE void tile(const int rows, const int vectors, int64_t depth, matrix a, const REAL *b, int64_t b_row, product_to to) {
    vec sums[MOST_ROWS][TILE_VECTORS];
    clear_sums(rows, vectors, sums);
    add_product(rows, vectors, depth, a, b, b_row, sums);
    if (to.add)
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) sums[i][j] += load(to.c + i * to.row + j * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) store(to.c + i * to.row + j * LANES, sums[i][j]);
    if (!to.total) return;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            int64_t at = i * to.row + j * LANES;
            store(to.total + at, to.old ? load(to.old + at) + sums[i][j] : sums[i][j]);
        }
}

INLINE product_to below(product_to to, int64_t rows) {
    to.c += rows * to.row;
    to.old += to.old ? rows * to.row : 0;
    to.total += to.total ? rows * to.row : 0;
    return to;
}

/* A panel of C, `vectors` wide: as many tall tiles as there are, then flat ones, then what is left. A tall tile that would
   leave one or two rows is not taken, since these alone are slow. */
#define PANEL(name, vectors, tall)                                                                                   \
    static void name(int64_t rows, int64_t depth, matrix a, const REAL *b, int64_t b_row, product_to to) {           \
        for (int64_t i = 0, done; i < rows; i += done, a.data += done * a.row, to = below(to, done)) {               \
            int64_t left = rows - i;                                                                                 \
            if (to.soon) fetch_some(to.soon);                                                                        \
            if (left >= tall && left != tall + 1 && left != tall + 2)                                                \
                tile(tall, vectors, depth, a, b, b_row, to), done = tall;                                            \
            else if (left >= 4)                                                                                      \
                tile(4, vectors, depth, a, b, b_row, to), done = 4;                                                  \
            else if (left == 3)                                                                                      \
                tile(3, vectors, depth, a, b, b_row, to), done = 3;                                                  \
            else if (left == 2)                                                                                      \
                tile(2, vectors, depth, a, b, b_row, to), done = 2;                                                  \
            else                                                                                                     \
                tile(1, vectors, depth, a, b, b_row, to), done = 1;                                                  \
        }                                                                                                            \
    }
PANEL(panel_of_1, 1, TALL_1)
PANEL(panel_of_2, 2, TALL_2)
#if TILE_VECTORS == 4
PANEL(panel_of_3, 3, TILE_ROWS)
PANEL(panel_of_4, 4, TILE_ROWS)
#endif

static void any_panel(int64_t vectors, int64_t rows, int64_t depth, matrix a, const REAL *b, int64_t b_row, product_to to) {
#if TILE_VECTORS == 4
    if (vectors == 4)
        panel_of_4(rows, depth, a, b, b_row, to);
    else if (vectors == 3)
        panel_of_3(rows, depth, a, b, b_row, to);
    else
#endif
        if (vectors == 2)
        panel_of_2(rows, depth, a, b, b_row, to);
    else
        panel_of_1(rows, depth, a, b, b_row, to);
}

INLINE int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

/* C (rows x columns) = or += A B. The columns of B come in panels of TILE_COLUMNS, `panel` numbers apart: TILE_COLUMNS for
   an ordinary matrix, more for one that `pack` wrote. */
static void multiply_to(int64_t rows, int64_t columns, int64_t depth, matrix a, const REAL *b, int64_t b_row, int64_t panel,
                        product_to to) {
    for (int64_t k = 0; k < depth; k += DEPTH)
        for (int64_t j = 0; j < columns; j += TILE_COLUMNS) {
            int last = k + DEPTH >= depth && to.total;
            product_to part = {to.c + j, to.row, to.add || k, last && to.old ? to.old + j : NULL, last ? to.total + j : NULL,
                               to.soon};
            matrix a_part = {a.data + k * a.column, a.row, a.column};
            any_panel(least(TILE_COLUMNS, columns - j) / LANES, rows, least(DEPTH, depth - k), a_part,
                      b + j / TILE_COLUMNS * panel + k * b_row, b_row, part);
        }
}

static void multiply_panels(int64_t rows, int64_t columns, int64_t depth, matrix a, const REAL *b, int64_t b_row, int64_t panel,
                            REAL *c, int64_t c_row, int add) {
    if (depth <= 0 && !add)
        for (int64_t i = 0; i < rows; i++) memset(c + i * c_row, 0, (size_t)columns * sizeof(REAL));
    multiply_to(rows, columns, depth, a, b, b_row, panel, (product_to){c, c_row, add, NULL, NULL, NULL});
}

static void multiply(int64_t rows, int64_t columns, int64_t depth, matrix a, const REAL *b, int64_t b_row, REAL *c,
                     int64_t c_row, int add) {
    multiply_panels(rows, columns, depth, a, b, b_row, TILE_COLUMNS, c, c_row, add);
}

/* The lower triangle of C = A B, with whatever beside it: row i has columns up to the vector that holds column i. */
static void multiply_to_triangle(int64_t size, int64_t depth, matrix a, const REAL *b, int64_t b_row, REAL *c, int64_t c_row) {
    for (int64_t i = 0; i < size; i += LANES) {
        matrix part = {a.data + i * a.row, a.row, a.column};
        multiply(least(LANES, size - i), i + LANES, depth, part, b, b_row, c + i * c_row, c_row, 0);
    }
}

/* C += T B for a lower triangular T, whose numbers above the diagonal are not all read but must be zero near it. */
static void multiply_triangle(int64_t size, int64_t columns, const REAL *triangle, int64_t row, const REAL *b, int64_t b_row,
                              REAL *c, int64_t c_row) {
    for (int64_t i = 0; i < size; i += TILE_ROWS) {
        int64_t rows = least(TILE_ROWS, size - i);
        multiply(rows, columns, i + rows, plain(triangle + i * row, row), b, b_row, c + i * c_row, c_row, 1);
    }
}

/* C += T^T B for a lower triangular T, whose numbers above the diagonal are not all read but must be zero near it. */
static void multiply_transposed_triangle(int64_t size, int64_t columns, const REAL *triangle, int64_t row, const REAL *b,
                                         int64_t b_row, REAL *c, int64_t c_row) {
    for (int64_t i = 0; i < size; i += TILE_ROWS)
        multiply(least(TILE_ROWS, size - i), columns, size - i, transposed(triangle + i * row + i, row), b + i * b_row, b_row,
                 c + i * c_row, c_row, 1);
}

/* Copies `factor` times a matrix of `rows` x `columns` into panels of TILE_COLUMNS columns, filled up with zeros. */
static void pack(int64_t rows, int64_t columns, matrix from, REAL factor, REAL *to) {
    for (int64_t j = 0; j < columns; j += TILE_COLUMNS)
        for (int64_t i = 0; i < rows; i++, to += TILE_COLUMNS) {
            const REAL *row = from.data + i * from.row + j * from.column;
            int64_t count = least(TILE_COLUMNS, columns - j), done = 0;
            if (from.column == 1)
                for (; done + LANES <= count; done += LANES) store(to + done, load(row + done) * factor);
            for (; done < count; done++) to[done] = row[done * from.column] * factor;
            for (; done < TILE_COLUMNS; done++) to[done] = 0;
        }
}
INLINE int64_t packed_size(int64_t rows, int64_t columns) { return rows * rounded_up(columns, TILE_COLUMNS); }

/* ---- transposing ----------------------------------------------------------------------------------------------------- */

#ifdef SHUFFLES
#define FIRST(lane, t) ((lane) & (t) ? LANE_COUNT + (lane) - (t) : (lane))
#define SECOND(lane, t) ((lane) & (t) ? LANE_COUNT + (lane) : (lane) + (t))

/* Exchanges the off-diagonal t x t blocks of every 2t x 2t block. */
#define EXCHANGE(t)                                                              \
    _Pragma("GCC unroll 16") for (int i = 0; i < LANE_COUNT; i++) if (!(i & (t))) { \
        vec x = rows[i], y = rows[i + (t)];                                      \
        rows[i] = __builtin_shufflevector(x, y, EVERY(FIRST, t));                \
        rows[i + (t)] = __builtin_shufflevector(x, y, EVERY(SECOND, t));         \
    }

static void transpose_square(const REAL *from, int64_t from_row, REAL *to, int64_t to_row) {
    vec rows[LANE_COUNT];
#pragma GCC unroll 16
    for (int i = 0; i < LANE_COUNT; i++) rows[i] = load(from + i * from_row);
    EXCHANGE(1)
#if LANE_COUNT > 2
    EXCHANGE(2)
#endif
#if LANE_COUNT > 4
    EXCHANGE(4)
#endif
#if LANE_COUNT > 8
    EXCHANGE(8)
#endif
#pragma GCC unroll 16
    for (int i = 0; i < LANE_COUNT; i++) store(to + i * to_row, rows[i]);
}
#else
static void transpose_square(const REAL *from, int64_t from_row, REAL *to, int64_t to_row) {
    for (int64_t i = 0; i < LANES; i++)
        for (int64_t j = 0; j < LANES; j++) to[i * to_row + j] = from[j * from_row + i];
}
#endif

/* Writes the transpose of a buffer whose rows and columns are both whole vectors. */
static void transpose(int64_t rows, int64_t columns, const REAL *from, int64_t from_row, REAL *to, int64_t to_row) {
    for (int64_t i = 0; i < rows; i += LANES)
        for (int64_t j = 0; j < columns; j += LANES) transpose_square(from + i * from_row + j, from_row, to + j * to_row + i, to_row);
}

/* ---- sums and maxima of rows ------------------------------------------------------------------------------------------- */

/* The sum, or the largest, of the numbers in each row of a square of LANES x LANES. Sums are added in pairs, whose rounding
   errors are smaller than those of a running sum. */
INLINE vec reduce_rows(const REAL *square, int largest) {
    REAL turned[LANE_COUNT * LANE_COUNT];
    transpose_square(square, LANES, turned, LANES);
    vec parts[LANE_COUNT];
#pragma GCC unroll 16
    for (int i = 0; i < LANE_COUNT; i++) parts[i] = load(turned + i * LANES);
    if (largest) {
#pragma GCC unroll 16
        for (int i = 1; i < LANE_COUNT; i++) parts[0] = larger(parts[i], parts[0]);
        return parts[0];
    }
#pragma GCC unroll 4
    for (int apart = 1; apart < LANE_COUNT; apart *= 2)
#pragma GCC unroll 16
        for (int i = 0; i < LANE_COUNT; i += 2 * apart) parts[i] += parts[i + apart];
    return parts[0];
}
