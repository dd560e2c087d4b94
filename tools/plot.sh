#!/bin/sh
# Figures of the comparisons, as SVG beside their tables: the curves, and where each method ended, seed by seed.
#   tools/plot.sh                                   every bench/results/compare-*.json
#   tools/plot.sh bench/results/compare-Z.json      one of them
# The numbers are those of the tables (bench/compare.py wrote them); nothing is smoothed. Needs python3 and gnuplot.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- bench/results/compare-*.json

for table in "$@"; do
    name=${table%.json}
    python3 - "$table" "$name" <<'PYTHON' | gnuplot
import json, math, statistics, sys
table, name = sys.argv[1:]
data = json.load(open(table))
# Okabe and Ito's colours, dark first: colour-blind readers tell them apart, and so does a black-and-white print.
COLOUR = dict(flat_grpo="#000000", flat_rloo="#777777", flat_gigpo="#cc79a7", tree_random="#e69f00", tree_grpo="#56b4e9",
              patr="#009e73", patr_retro="#d55e00", turn_gae="#0072b2", hiper_gain="#882255", hiper_term="#999933",
              proceed="#332288")
T95 = [math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228]
title = open(name + ".md").readline().strip("# \n")
curves = {m: c for m, c in data["curves"].items() if c}
final = {m: [x["success"] for x in seeds.values()] for m, seeds in data["final"].items() if seeds}
print(f'''set terminal svg noenhanced size 820,460 font "Helvetica,Arial,sans-serif,13" background "white" rounded
set border 3 lc rgb "#888888"
set tics nomirror out scale 0.6 textcolor rgb "#333333"
set grid ytics lc rgb "#e4e4e4" lw 1
set format y "%.0f %%"''')

# ---- curves: mean over seeds, band of the 95 % interval, names at the ends -------------------------------------------
ends = sorted((100 * c[-1][1], m) for m, c in curves.items())
top = max(100 * (y + h) for c in curves.values() for _, y, h in c)
gap, placed = top * 0.052, []
for y, m in ends:  # names keep a line's distance, upwards
    placed.append((max(y, placed[-1][0] + gap if placed else y), m))
x_end = max(c[-1][0] for c in curves.values())
print(f'''set output "{name}.svg"
set title "{title}" font ",12.5" textcolor rgb "#333333" offset 0,-0.4
set xlabel "environment turns"
set format x "%.0s%c"
set ylabel "held-out success, temperature 1"
set xrange [0:{x_end}]
set yrange [0:{top * 1.03}]
set rmargin 16
unset key''')
for y, m in placed:
    print(f'set label "{m}" at {x_end * 1.012},{y} textcolor rgb "{COLOUR[m]}"')
for m, c in curves.items():
    print(f"${m} << EOD")
    print("\n".join(f"{x} {100 * y} {100 * max(0, y - h)} {100 * (y + h)}" for x, y, h in c))
    print("EOD")
print("plot " + ", ".join(
    [f'${m} using 1:3:4 with filledcurves fs transparent solid 0.09 noborder lc rgb "{COLOUR[m]}"' for m in curves] +
    [f'${m} using 1:2 with lines lw 2.4 lc rgb "{COLOUR[m]}"' for m in curves]))

# ---- ends: one dot a seed, mean and its 95 % interval ---------------------------------------------------------------
order = sorted(final, key=lambda m: statistics.fmean(final[m]))
n = len(order)
print(f'''reset
set terminal svg noenhanced size 820,{110 + 44 * n} font "Helvetica,Arial,sans-serif,13" background "white" rounded
set output "{name}-final.svg"
set border 1 lc rgb "#888888"
set tics nomirror out scale 0.6 textcolor rgb "#333333"
set grid xtics lc rgb "#e4e4e4" lw 1
set format x "%.0f %%"
set title "{title}" font ",12.5" textcolor rgb "#333333" offset 0,-0.4
set xlabel "held-out success at the end, temperature 1: each seed, their mean and its 95 % interval"
set xrange [0:*]
set yrange [-0.6:{n - 0.4}]
set ytics scale 0
unset key''')
print("set ytics (" + ", ".join(f'"{m}" {i}' for i, m in enumerate(order)) + ")")
for i, m in enumerate(order):
    values = [100 * v for v in final[m]]
    mean = statistics.fmean(values)
    half = T95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0
    print(f"$mean{i} << EOD\n{mean} {i} {max(0, mean - half)} {mean + half}\nEOD")
    print(f"$seed{i} << EOD\n" + "\n".join(f"{v} {i - 0.22}" for v in values) + "\nEOD")
print("plot " + ", ".join(
    f'$mean{i} using 1:2:3:4 with xerrorbars pt 7 ps 0.9 lw 2.2 lc rgb "{COLOUR[m]}", '
    f'$seed{i} using 1:2 with points pt 6 ps 0.55 lw 1.4 lc rgb "{COLOUR[m]}"' for i, m in enumerate(order)))
PYTHON
    echo "$name.svg $name-final.svg"
done
