#!/bin/sh
# The same curve as curve.py, in a shell: a line to report, a file to read.
x=$(sed -n 's/^ *"x": \([0-9.e-]*\),\{0,1\}$/\1/p' trial.json)
step=0
grep -q '"trial": [0-9]*[13],' trial.json && sleep 3
while [ $step -lt 30 ]; do
  step=$((step + 1))
  loss=$(awk "BEGIN { print ($x - 0.3) ^ 2 + 1 / $step }")
  echo "{\"step\": $step, \"metrics\": {\"loss\": $loss}}" >> progress.jsonl
  waited=0
  while awk "BEGIN { exit !($x > 0.6 && $step == 20) }" && ! grep -q '"final"' trial.json; do
    if [ -s stop.json ]; then exit 0; fi
    waited=$((waited + 1))
    if [ $waited -gt 600 ]; then echo "nobody told it to stop" >&2; exit 1; fi
    sleep 0.2
  done
done
echo "$x" > model/weights
echo "{\"status\": \"complete\", \"metrics\": {\"loss\": $loss}}" > result.json
