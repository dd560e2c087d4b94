/* patr.h - the checkpoint tree: patr chooses by scores, tree_random at random. Level 5. */
#pragma once
#include "host/strategy/strategy.h"

extern const gr_block gr_patr_block;

gr_verdict gr_patr_verdict(const void* settings, const gr_tree* t, int node);
int gr_patr_wants(const void* settings, const gr_tree* t, const gr_round* r, int32_t* node,
                  int cap);
int gr_patr_round(const void* settings, const gr_tree* t, const gr_round* r, gr_decision* out,
                  int cap);
