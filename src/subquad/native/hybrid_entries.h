/* Functions of the library for the hybrid: heads are shared among threads. */

static int run_heads(hybrid_call *call, void (*task)(void *, void *, int64_t), int64_t numbers) {
    int64_t heads = call->batch * call->heads;
    double positions = (double)heads * (double)(call->last - call->first) * (double)call->block;
    double products = positions * (double)(call->m * 2 * call->e + 3 * call->block * (call->d + call->e));
    int64_t useful = 1 + (int64_t)(products / WORTH_A_THREAD);
    return run_tasks(task, call, (size_t)numbers * sizeof(REAL), heads, least(call->threads, useful));
}

/* Reads q, k, v and the state before the blocks; writes mixed, inverse and the state after them. Returns 2 if the result is
   not finite. */
EXPORT(hybrid_causal)(hybrid_call *call) {
    int64_t numbers = hybrid_numbers(call, 0) + growing_size(call->m, call->e, call->m);
    ask_for_large_pages(call->mixed, call->batch, call->heads, call->length, call->e, (int64_t)type_bytes(call->value_type));
    int failed = run_heads(call, hybrid_causal_task, numbers);
    return failed ? failed : call->not_finite ? 2 : 0;
}

/* Reads k, v and the state before the blocks; writes the state after them. */
EXPORT(hybrid_fold)(hybrid_call *call) {
    return run_heads(call, hybrid_fold_task, hybrid_numbers(call, 0) + growing_size(call->m, call->e, call->m));
}

/* Reads k and v; adds the blocks to the sums over groups. */
EXPORT(hybrid_groups)(hybrid_call *call) { return run_heads(call, hybrid_groups_task, hybrid_around_numbers(call, 0)); }

/* Reads q, k, v and the sums over groups; writes mixed and inverse. */
EXPORT(hybrid_both)(hybrid_call *call) { return run_heads(call, hybrid_both_task, hybrid_around_numbers(call, 0)); }

/* Reads q, k, v, the state before, mixed, inverse and gradient; writes dq, far_factors, errors and peaks, and adds to dk, dv and
   the gradients of log_gain and the queries' directions. */
EXPORT(hybrid_causal_queries)(hybrid_call *call) {
    int64_t numbers = hybrid_numbers(call, 1) + growing_size(call->e, call->m, call->m) + slopes_numbers(call);
    return run_heads(call, hybrid_causal_queries_task, numbers);
}

/* Reads the same, what the other wrote, and the gradient of the state after; adds to dk, dv and the gradient of the keys'
   directions, and writes the gradient of the state before. Goes on to the block after the last. */
EXPORT(hybrid_causal_keys)(hybrid_call *call) {
    int64_t numbers = hybrid_numbers(call, 1) + growing_size(call->m, call->e, call->m) + slopes_numbers(call);
    return run_heads(call, hybrid_causal_keys_task, numbers);
}

/* Both passes over a head, one after the other, while the head is in the cache. */
static void hybrid_causal_back_task(void *context, void *memory, int64_t index) {
    hybrid_call *passes = context;
    hybrid_causal_queries_task(&passes[0], memory, index);
    hybrid_causal_keys_task(&passes[1], memory, index);
}

/* Both passes over all blocks, with the gradient of the state after in d_sums and d_norms. */
EXPORT(hybrid_causal_back)(hybrid_call *call) {
    int64_t heads = call->batch * call->heads, blocks = (call->length + call->block - 1) / call->block;
    int64_t growing_numbers = growing_size(call->m, call->e, call->m), turned = growing_size(call->e, call->m, call->m);
    int64_t numbers = hybrid_numbers(call, 1) + slopes_numbers(call) + (growing_numbers > turned ? growing_numbers : turned);
    REAL *notes = malloc((size_t)(heads * (2 * call->length + blocks + 1) + 1) * sizeof(REAL));
    if (!notes) return 1;
    call->far_factors = notes, call->errors = notes + heads * call->length, call->peaks = notes + 2 * heads * call->length;
    call->first = 0, call->last = blocks, call->is_first = 1;
    int64_t most = MOST_KEPT / kept_numbers(call), rest = call->length > most ? call->length - most : 0;
    call->kept = call->length - least(call->length, rounded_up(rest, call->block)); /* of whole blocks, all or nothing */
    call->kept_at = numbers;
    ask_for_large_pages(call->dq, call->batch, call->heads, call->length, call->d, sizeof(REAL));
    ask_for_large_pages(call->dk, call->batch, call->heads, call->length, call->d, sizeof(REAL));
    ask_for_large_pages(call->dv, call->batch, call->heads, call->length, call->e, sizeof(REAL));
    hybrid_call passes[2] = {*call, *call};
    passes[1].last = blocks + 1, passes[1].is_first = 0, passes[1].is_second = 1;
    passes[1].sums = call->d_sums, passes[1].norms = call->d_norms, passes[1].peak = NULL;
    int failed = run_heads(passes, hybrid_causal_back_task, numbers + call->kept * kept_numbers(call));
    free(notes);
    return failed;
}

/* The same for the bidirectional form, with the sums over groups of keys. */
EXPORT(hybrid_both_queries)(hybrid_call *call) {
    return run_heads(call, hybrid_both_queries_task, hybrid_around_numbers(call, 1) + slopes_numbers(call));
}
/* Sums over groups of queries, and with them the rest of dk and dv. */
EXPORT(hybrid_slope_groups)(hybrid_call *call) {
    return run_heads(call, hybrid_slope_groups_task, hybrid_around_numbers(call, 1));
}
EXPORT(hybrid_both_keys)(hybrid_call *call) {
    return run_heads(call, hybrid_both_keys_task, hybrid_around_numbers(call, 1) + slopes_numbers(call));
}

/* Reads q, k, v of one position; writes mixed and changes the state. Returns 2 if the result is not finite. */
EXPORT(hybrid_step)(hybrid_step_call *call) {
    double products = (double)(call->batch * call->heads) * (double)(call->m + 2 * call->block) * (double)call->e;
    int64_t useful = 1 + (int64_t)(products / WORTH_A_THREAD);
    int failed = run_tasks(hybrid_step_task, call, (size_t)hybrid_step_numbers(call) * sizeof(REAL),
                           call->batch * call->heads, least(call->threads, useful));
    return failed ? failed : call->not_finite ? 2 : 0;
}
