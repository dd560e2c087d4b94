/* report_data.h - the logs of a run as chunks of a page. Private to the command `report`.
 *
 * A chunk is <script type="text/plain" id="NAME"> with base64 of gzip: text of a run cannot end the element
 * or start another, and a page takes a fraction of its logs. Trees lie in one chunk per step, so that a
 * reader unpacks only the step it looks at; `index` says where everything is. */
#pragma once
#include <stdio.h>
#include <zlib.h>

#include "host/command/command.h"

/* A chunk in the making: text goes in, base64 comes out. */
typedef struct gr_chunk {
    FILE* out;
    z_stream z;
    unsigned char rest[3]; /* compressed bytes that wait for a third */
    int n_rest;
    bool open;
} gr_chunk;
void gr_chunk_begin(gr_chunk* c, FILE* out, const char* id);
void gr_chunk_add(gr_chunk* c, const char* text, size_t n);
void gr_chunk_end(gr_chunk* c);

/* What went into the page. */
typedef struct gr_report_counts {
    int64_t steps, trees, nodes, bytes; /* bytes: of the lines taken over */
} gr_report_counts;

/* Writes the chunks of one run, numbered `run`, into `page`, and its entry of the index into `index`: only
 * trees of every `every`-th logged step. A half-written last line is left out; damage before it is an
 * error. */
GR_MUST_CHECK gr_status gr_report_run(FILE* page, FILE* index, const char* dir, int run,
                                      int64_t every, gr_report_counts* counts);
