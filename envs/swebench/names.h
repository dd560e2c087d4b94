/* names.h - lists of names, and the paths that a patch touches. Level 1. */
#pragma once
#include "host/base.h"

typedef struct gr_swe_names {
    char** name; /* (n), each allocated */
    int n;
} gr_swe_names;

char* gr_swe_copy(const char* text, size_t n);                          /* the caller frees it */
void gr_swe_names_append(gr_swe_names* names, char* name);              /* takes `name` over */
void gr_swe_names_add(gr_swe_names* names, const char* text, size_t n); /* sorted, each once */
void gr_swe_names_free(gr_swe_names* names);

/* Relative, inside the tree, and nothing that git keeps for itself. */
bool gr_swe_is_tree_path(const char* path, size_t n);
/* Adds the paths that a unified diff touches, old and new names. Fails on one that leaves the
 * tree. */
GR_MUST_CHECK gr_status gr_swe_patch_files(const char* patch, gr_swe_names* out);
