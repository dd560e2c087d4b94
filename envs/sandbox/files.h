/* files.h - whole trees of files: remove, copy, merge, measure, hash. Level 1.
 *
 * What is walked was written by strangers: names of any bytes, any depth, links to anywhere. So
 * every step is relative to an open folder and follows no link. Nothing else changes the tree
 * meanwhile. */
#pragma once
#include <sys/types.h>

#include "host/base.h"

/* Removes `name` in folder `at`, whatever it is; nothing there is no error. */
GR_MUST_CHECK gr_status gr_files_remove(int at, const char* name);
/* Copies folder `from` to the new folder `name` in `at`; everything in it then belongs to `owner`
 * (user and group). Hard links become files of their own; sockets and devices are left out. */
GR_MUST_CHECK gr_status gr_files_copy(int from, int at, const char* name, uid_t owner);
/* Lays overlay layer `upper` over layer `into` of the same file system, so that `into` alone shows
 * what both showed. Files are linked, not copied. `opaque` is the attribute that marks folders
 * which hide what is below. */
GR_MUST_CHECK gr_status gr_files_merge(int upper, int into, const char* opaque);
/* Bytes that the tree takes, at least a page for every entry. */
int64_t gr_files_size(int folder);
/* Hash of names, kinds, modes and contents, without an entry `.git` at the top. */
uint64_t gr_files_hash(int folder);
