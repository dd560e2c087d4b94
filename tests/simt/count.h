/* count.h - the memory traffic of kernels, counted per source line as a GPU would see it. */
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum simt_kind {
    SIMT_LOAD,
    SIMT_STORE,
    SIMT_ATOMIC,
    SIMT_SHARED_LOAD,
    SIMT_SHARED_STORE,
    SIMT_SHARED_ATOMIC,
    SIMT_MMA, /* tensor-core instructions: requests alone */
} simt_kind;

/* A request is what the lanes of a warp ask for in one instruction. Device memory answers it in
 * 32-byte sectors. Shared memory has 32 banks of 4 bytes; a wavefront takes one word of each, for all
 * lanes that want 4 bytes or less, 16 lanes that want 8, 8 lanes that want 16. */
typedef struct simt_line {
    char kernel[192];           /* as launched; from PTX: its symbol */
    char place[64];             /* file:line; in a total: empty */
    int threads, dynamic_bytes; /* of a block; shared memory asked for at launch */
    simt_kind kind;
    int64_t requests;
    int64_t bytes;          /* asked for, lane by lane */
    int64_t unique_bytes;   /* different ones, per launch */
    int64_t sectors;        /* moved, a request at a time */
    int64_t unique_sectors; /* touched, per launch: what must move at least */
    int64_t wavefronts;     /* of shared memory */
    int64_t ideal;          /* wavefronts, if no two words met in a bank */
} simt_line;

/* Counts every launch from here on, from zero. */
void simt_count_start(void);
/* Stops, and gives the lines by kernel, kind and place, at most `most`; a line whose place is empty is
 * the kernel's total of its kind. Returns how many there are. */
int simt_count_stop(simt_line* lines, int most);

#ifdef __cplusplus
}
#endif
