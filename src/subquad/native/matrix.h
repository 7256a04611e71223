/* Products of small matrices that lie in the cache.

   Every product is C = A B or C += A B. B and C have rows of whole vectors. A is read one number at a time and may have any
   strides, so that a transposed A needs no copy. */

#if BYTES == 64
#define TILE_ROWS 4
#define TILE_VECTORS 4
#elif BYTES == 32
#define TILE_ROWS 6
#define TILE_VECTORS 2
#else
#define TILE_ROWS 4
#define TILE_VECTORS 2
#endif
#define TILE_COLUMNS (TILE_VECTORS * LANES)
#define DEPTH 128 /* rows of B that are used for all of A before the next ones: they stay in the first cache */

typedef struct {
    const REAL *data;
    int64_t row, column; /* distance from one row, and from one column, to the next */
} matrix;

INLINE matrix plain(const REAL *data, int64_t row) { return (matrix){data, row, 1}; }
INLINE matrix transposed(const REAL *data, int64_t row) { return (matrix){data, 1, row}; }

/* A tile of C in registers: `rows` and `vectors` are constants at every call, so that the loops are unrolled. */
INLINE void tile(const int rows, const int vectors, int64_t depth, matrix a, const REAL *b, int64_t b_row, REAL *c,
                 int64_t c_row, int add) {
    vec sums[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) sums[i][j] = splat(0);
    for (int64_t k = 0; k < depth; k++) {
        vec row[TILE_VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) row[j] = load(b + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            REAL factor = a.data[i * a.row];
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) sums[i][j] += factor * row[j];
        }
        a.data += a.column;
        b += b_row;
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            REAL *to = c + i * c_row + j * LANES;
            store(to, add ? load(to) + sums[i][j] : sums[i][j]);
        }
}

#define TILE_OF(rows, vectors)                                              \
    case (rows) * 8 + (vectors):                                            \
        tile(rows, vectors, depth, a, b, b_row, c, c_row, add);             \
        break;
#define TILES_OF(rows) TILE_OF(rows, 1) TILE_OF(rows, 2)
#if TILE_VECTORS == 4
#define ALL_TILES_OF(rows) TILES_OF(rows) TILE_OF(rows, 3) TILE_OF(rows, 4)
#else
#define ALL_TILES_OF(rows) TILES_OF(rows)
#endif

static void any_tile(int64_t rows, int64_t vectors, int64_t depth, matrix a, const REAL *b, int64_t b_row, REAL *c,
                     int64_t c_row, int add) {
    switch (rows * 8 + vectors) {
        ALL_TILES_OF(1)
        ALL_TILES_OF(2)
        ALL_TILES_OF(3)
        ALL_TILES_OF(4)
#if TILE_ROWS == 6
        ALL_TILES_OF(5)
        ALL_TILES_OF(6)
#endif
    }
}

INLINE int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

/* C (rows x columns) = or += A B. The columns of B come in panels of TILE_COLUMNS, `panel` numbers apart: TILE_COLUMNS for
   an ordinary matrix, more for one that `pack` wrote. */
static void multiply_panels(int64_t rows, int64_t columns, int64_t depth, matrix a, const REAL *b, int64_t b_row, int64_t panel,
                            REAL *c, int64_t c_row, int add) {
    if (depth <= 0 && !add)
        for (int64_t i = 0; i < rows; i++) memset(c + i * c_row, 0, (size_t)columns * sizeof(REAL));
    for (int64_t k = 0; k < depth; k += DEPTH)
        for (int64_t j = 0; j < columns; j += TILE_COLUMNS)
            for (int64_t i = 0; i < rows; i += TILE_ROWS) {
                matrix part = {a.data + i * a.row + k * a.column, a.row, a.column};
                any_tile(least(TILE_ROWS, rows - i), least(TILE_COLUMNS, columns - j) / LANES, least(DEPTH, depth - k), part,
                         b + j / TILE_COLUMNS * panel + k * b_row, b_row, c + i * c_row + j, c_row, add || k);
            }
}

static void multiply(int64_t rows, int64_t columns, int64_t depth, matrix a, const REAL *b, int64_t b_row, REAL *c,
                     int64_t c_row, int add) {
    multiply_panels(rows, columns, depth, a, b, b_row, TILE_COLUMNS, c, c_row, add);
}

/* The lower triangle of C = A B, with whatever beside it: row i has columns up to the vector that holds column i. */
static void multiply_to_triangle(int64_t size, int64_t depth, matrix a, const REAL *b, int64_t b_row, REAL *c, int64_t c_row) {
    for (int64_t i = 0; i < size; i += TILE_ROWS) {
        int64_t rows = least(TILE_ROWS, size - i);
        matrix part = {a.data + i * a.row, a.row, a.column};
        multiply(rows, rounded_up(i + rows, LANES), depth, part, b, b_row, c + i * c_row, c_row, 0);
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

/* The sum, or the largest, of the numbers in each row of a square of LANES x LANES. */
INLINE vec reduce_rows(const REAL *square, int largest) {
    REAL turned[LANE_COUNT * LANE_COUNT];
    transpose_square(square, LANES, turned, LANES);
    vec total = load(turned);
#pragma GCC unroll 16
    for (int i = 1; i < LANE_COUNT; i++) {
        vec x = load(turned + i * LANES);
        total = largest ? larger(x, total) : total + x;
    }
    return total;
}
