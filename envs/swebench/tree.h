/* tree.h - base trees: the sources of an instance, without the history that holds its solution.
 * Level 1.
 *
 * A base tree is a folder CACHE/ID whose .git holds one commit without parents. It is made
 * once, beside, then renamed; CACHE/ID.tree names the git tree it must have, and a folder that
 * differs is made again. */
#pragma once
#include "envs/swebench/instance.h"

typedef struct gr_swe_sources {
    /* A folder with repositories as owner__name, owner__name.git or owner__name.bundle; or a URL
     * (file, http, https) below which they are as owner/name, of which only the commit that is
     * needed is fetched. "": only instances with a tree of their own. */
    const char* mirrors;
    const char* cache;
    double fetch_s; /* until a tree must have been made */
} gr_swe_sources;

/* path has room for 4096 bytes. */
GR_MUST_CHECK gr_status gr_swe_tree(const gr_swe_instance* x, const gr_swe_sources* from,
                                    char* path);
