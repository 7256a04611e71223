/* Tasks shared among threads: those of OpenMP that the caller handed over (see dispatch.c), or threads that live for one
   call. With these nothing waits or spins between calls, several callers do not meet, and a process that was forked from
   another has nothing to repair. Starting such a thread takes about 10 microseconds. */

#ifndef SUBQUAD_THREADS
#define SUBQUAD_THREADS

#include <stdint.h>
#include <stdlib.h>

#define MOST_THREADS 256

typedef struct crew {
    void (*task)(void *context, void *memory, int64_t index);
    void *context;
    size_t bytes; /* memory that each thread needs */
    int64_t tasks;
    int64_t next;   /* first task that nobody has taken */
    int64_t failed; /* whether a thread found no memory */
} crew;

extern void (*subquad_parallel)(void (*)(void *), void *, unsigned, unsigned);

static void crew_work(void *shared) {
    crew *together = shared;
    char *memory = malloc(together->bytes + 64);
    if (!memory) {
        __atomic_store_n(&together->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    char *aligned = memory + (64 - (uintptr_t)memory % 64) % 64;
    for (;;) {
        int64_t index = __atomic_fetch_add(&together->next, 1, __ATOMIC_RELAXED);
        if (index >= together->tasks) break;
        together->task(together->context, aligned, index);
    }
    free(memory);
}

#ifdef _WIN32
#include <windows.h>
#undef near /* names of pointers in old programs, defined as nothing */
#undef far
typedef HANDLE thread_handle;
static DWORD WINAPI crew_thread(LPVOID together) {
    crew_work(together);
    return 0;
}
static int thread_start(thread_handle *thread, crew *together) {
    *thread = CreateThread(NULL, 0, crew_thread, together, 0, NULL);
    return *thread != NULL;
}
static void thread_join(thread_handle thread) {
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
}
#else
#include <pthread.h>
typedef pthread_t thread_handle;
static void *crew_thread(void *together) {
    crew_work(together);
    return NULL;
}
static int thread_start(thread_handle *thread, crew *together) {
    return pthread_create(thread, NULL, crew_thread, together) == 0;
}
static void thread_join(thread_handle thread) { pthread_join(thread, NULL); }
#endif

/* Runs all tasks. Returns 0, or 1 if there was no memory, when some tasks were not run. A thread that cannot be started is
   done without. */
static int run_tasks(void (*task)(void *, void *, int64_t), void *context, size_t bytes, int64_t tasks, int64_t threads) {
    crew together = {task, context, bytes, tasks, 0, 0};
    thread_handle others[MOST_THREADS];
    int64_t started = 0;
    if (threads > tasks) threads = tasks;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads > 1 && subquad_parallel) {
        subquad_parallel(crew_work, &together, (unsigned)threads, 0);
        return __atomic_load_n(&together.next, __ATOMIC_RELAXED) < tasks;
    }
    while (started + 1 < threads && thread_start(&others[started], &together)) started++;
    crew_work(&together);
    for (int64_t i = 0; i < started; i++) thread_join(others[i]);
    return __atomic_load_n(&together.next, __ATOMIC_RELAXED) < tasks;
}

#endif
