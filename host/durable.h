/* durable.h - files and folders that survive a crash: written, synced, renamed in this order. Level 0.
 *
 * Errors are one line with the path and the system's reason. Outside calls pass gr_fault as
 * "record.open" (folders too), "record.write", "record.read", "record.sync", "record.rename" and
 * "record.remove"; an injected failure reads as EIO. */
#pragma once
#include "host/base.h"

bool gr_exists(const char* path);
GR_MUST_CHECK gr_status gr_make_folders(const char* path); /* with its parents */
GR_MUST_CHECK gr_status gr_sync(const char* path);         /* file or folder */
/* Writes a new file and syncs it. */
GR_MUST_CHECK gr_status gr_write_file(const char* path, const char* text, size_t n);
/* The same aside, then renamed over `path`: a crash leaves the old file or the new one. */
GR_MUST_CHECK gr_status gr_replace_file(const char* path, const char* text, size_t n);
GR_MUST_CHECK gr_status gr_rename(const char* from, const char* to);
/* Reads a whole file of at most cap - 1 bytes and ends it with NUL. */
GR_MUST_CHECK gr_status gr_read_file(const char* path, char* text, size_t cap, size_t* n);
/* Size and hash of a file: XXH64 over blocks of 64 KiB, each seeded by the one before. */
GR_MUST_CHECK gr_status gr_hash_file(const char* path, int64_t* bytes, uint64_t* hash);
/* Removes a folder and the files in it, `first` (may be NULL) before the others; a path that is not
 * there is fine. */
GR_MUST_CHECK gr_status gr_remove_folder(const char* path, const char* first);
