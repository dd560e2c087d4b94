/* tree.h - base trees: the sources of an instance, without the history that holds its solution.
 * Level 1.
 *
 * A base tree is a folder CACHE/ID whose .git holds one commit without parents. It is made
 * once, beside, then renamed; CACHE/ID.tree names the git tree it must have, and a folder that
 * differs is made again. */
#pragma once
#include "envs/swebench/instance.h"

/* `mirrors` holds repositories as owner__name, owner__name.git or owner__name.bundle; instances
 * with a tree of their own need none. path has room for 4096 bytes. */
GR_MUST_CHECK gr_status gr_swe_tree(const gr_swe_instance* x, const char* mirrors,
                                    const char* cache, char* path);
