/* y = W x + b for a few rows x: the weights are read once, at the speed of memory. They are read in several places at a time,
   each from its first to its last: processors read ahead in each of them, and one alone does not use all of memory's speed. */

#if BYTES == 64
#define DENSE_ROWS 4 /* rows at a time, as many as the registers have sums for */
#else
#define DENSE_ROWS 2
#endif
#define PLACES 4
#define WORTH_SHARING 2000000 /* weights below which a thread costs more than it saves */

typedef struct {
    int64_t rows, inputs, outputs, threads;
    const REAL *x, *weight, *bias; /* rows x inputs, outputs x inputs, outputs or NULL */
    REAL *y;                       /* rows x outputs */
    int64_t share;                 /* outputs of a task */
} dense_call;

/* `places` outputs of `rows` rows, both constants at every call; the outputs are `apart` from each other. */
INLINE void dense_outputs(const int rows, const int places, const dense_call *call, int64_t row, int64_t output,
                          int64_t apart) {
    int64_t n = call->inputs, j = 0;
    const REAL *x = call->x + row * n, *weight = call->weight + output * n;
    vec sums[DENSE_ROWS][PLACES];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < places; p++) sums[r][p] = splat(0);
    for (; j + LANES <= n; j += LANES)
#pragma GCC unroll 4
        for (int p = 0; p < places; p++) {
            vec w = load(weight + p * apart * n + j);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) sums[r][p] += w * load(x + r * n + j);
        }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < places; p++) {
            int64_t at = output + p * apart;
            REAL total = lanes_sum(sums[r][p]);
            for (int64_t i = j; i < n; i++) total += weight[p * apart * n + i] * x[r * n + i];
            call->y[(row + r) * call->outputs + at] = total + (call->bias ? call->bias[at] : 0);
        }
}

INLINE void dense_all_rows(const int places, const dense_call *call, int64_t output, int64_t apart) {
    int64_t r = 0;
#if DENSE_ROWS == 4
    for (; r + 4 <= call->rows; r += 4) dense_outputs(4, places, call, r, output, apart);
#endif
    for (; r + 2 <= call->rows; r += 2) dense_outputs(2, places, call, r, output, apart);
    for (; r < call->rows; r++) dense_outputs(1, places, call, r, output, apart);
}

static void dense_task(void *context, void *memory, int64_t index) {
    const dense_call *call = context;
    int64_t from = index * call->share, to = least(call->outputs, from + call->share), apart = (to - from) / PLACES;
    (void)memory;
    for (int64_t output = from; output < from + apart; output++) dense_all_rows(PLACES, call, output, apart);
    for (int64_t output = from + PLACES * apart; output < to; output++) dense_all_rows(1, call, output, 0);
}
