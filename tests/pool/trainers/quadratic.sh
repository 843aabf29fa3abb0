#!/bin/sh
# A trainer that is no Python program and knows the JSON contract alone: minimises (x - 2)^2 with
# sh and awk. It counts to `steps` (a constant), saves after each one, leaves with 85 on SIGTERM.
set -eu

read_number() { # the value of "$1" in trial.json
    tr -d ' \n' <"$TRIALFLEET_TRIAL" | sed -n "s/.*\"$1\":\(-\{0,1\}[0-9.eE+-]*\).*/\1/p"
}

x=$(read_number x)
steps=$(read_number steps)
step=$(cat checkpoint/step 2>/dev/null || echo 0)

trap 'exit 85' TERM # the last step is saved already
while [ "$step" -lt "${steps:-1}" ]; do
    sleep 0.1 & # a trap waits for a command in the foreground, not for `wait`
    wait $! || true
    step=$((step + 1))
    echo "$step" >checkpoint/.step && mv checkpoint/.step checkpoint/step
    echo "{\"step\": $step, \"metrics\": {}, \"time\": $(date +%s)}" >>progress.jsonl
done

loss=$(awk -v x="$x" 'BEGIN { printf "%.17g", (x - 2) * (x - 2) }')
if grep -q '"mode": *"final"' "$TRIALFLEET_TRIAL"; then
    echo "$x" >model/x
fi
echo "{\"schema\": 1, \"status\": \"complete\", \"metrics\": {\"loss\": $loss}, \
\"seconds\": 0.1, \"device\": \"cpu\"}" >result.json
