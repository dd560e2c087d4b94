/* map.h - a file's bytes in memory, for reading. Level 1.
 *
 * Nothing is copied: pages come from the disk as they are read. One that another program cuts while it
 * is mapped ends this program, as with every mapping. */
#pragma once
#include "host/base.h"

typedef struct gr_map {
    const unsigned char* bytes; /* NULL: nothing is mapped */
    int64_t size;
} gr_map;

/* A regular file of at least one byte. Outside calls pass gr_fault: "weights.open", "weights.read". */
GR_MUST_CHECK gr_status gr_map_open(gr_map* m, const char* path);
void gr_map_close(gr_map* m); /* accepts a zeroed struct and a second call */
