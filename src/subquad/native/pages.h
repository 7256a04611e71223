/* Large pages for large results. Memory that nobody has used is given out page by page when it is first written, which takes
   several times as long as writing: 128 MB take 62 ms in pages of 4 kB, and 18 ms in pages of 2 MB. Allocators give memory of
   this size back when it is freed, so that every call writes to new pages. */

#define WORTH_LARGE_PAGES ((int64_t)1 << 24) /* bytes of a result */
#define LARGE_PAGE ((uintptr_t)1 << 21)

#if defined(__linux__)
#include <sys/mman.h>

/* Asks for large pages within the memory of a view. Nothing happens where there are none, or if the memory was used before. */
static void ask_for_large_pages(view x, int64_t batch, int64_t heads, int64_t rows, int64_t columns, int64_t bytes) {
    if (!x.data || batch * heads * rows * columns * bytes < WORTH_LARGE_PAGES) return;
    int64_t numbers = (batch - 1) * x.batch + (heads - 1) * x.head + (rows - 1) * x.row + columns;
    uintptr_t begin = ((uintptr_t)x.data + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    uintptr_t end = ((uintptr_t)x.data + (uintptr_t)(numbers * bytes)) / LARGE_PAGE * LARGE_PAGE;
    if (end > begin) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}
#else
static void ask_for_large_pages(view x, int64_t batch, int64_t heads, int64_t rows, int64_t columns, int64_t bytes) {
    (void)x, (void)batch, (void)heads, (void)rows, (void)columns, (void)bytes;
}
#endif
