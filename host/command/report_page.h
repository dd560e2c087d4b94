/* report_page.h - the report's page without its data, as bytes; host/report/page.cmake writes the definitions. */
#pragma once
#include <stddef.h>

extern const unsigned char gr_report_head[], gr_report_tail[];
extern const size_t gr_report_head_size, gr_report_tail_size;
