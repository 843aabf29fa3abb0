#!/bin/sh
# Predict each point from its nearest neighbours, weighted by distance; awk computes the sums.
set -eu

# Print a value of trial.json, whose path is in $TRIALFLEET_TRIAL. If jq is installed, it can read
# any JSON: jq -r .params.neighbours "$TRIALFLEET_TRIAL"
value() {
    tr -d '\n' <"$TRIALFLEET_TRIAL" |
        sed -n "s/.*\"$1\": *\[\{0,1\} *\"\{0,1\}\([^],\"}]*\).*/\1/p" | sed 's/ *$//'
}

data=$(value data)
head -n 61 "$data" >known.csv # the header and the first 60 points, the training points

# Print the squared error at each of the points 61 to 120. Arguments: POINTS NEIGHBOURS POWER.
squares() {
    awk -F, -v k="$2" -v power="$3" '
        FNR == 1 { next }
        NR == FNR { x[++known] = $1; y[known] = $2; next }
        FNR > 61 {
            split("", used)
            above = below = 0
            for (n = 1; n <= k; n++) {
                nearest = 0
                for (j = 1; j <= known; j++) {
                    far = x[j] > $1 ? x[j] - $1 : $1 - x[j]
                    if (!(j in used) && (!nearest || far < least)) { nearest = j; least = far }
                }
                used[nearest] = 1
                weight = 1 / (least + 0.001) ^ power
                above += weight * y[nearest]
                below += weight
            }
            printf "%.9g\n", (above / below - $2) ^ 2
        }' "$1" "$data"
}

# Print the means of the first 30 and of the last 30 of these errors.
metrics() {
    awk '{ sum[NR > 30] += $1 }
        END { printf "{\"val_error\": %.9g, \"test_error\": %.9g}", sum[0] / 30, sum[1] / 30 }' "$1"
}

# For the study's gate: measure these models on today's points.
if [ "$(value mode)" = evaluate ]; then
    mkdir -p losses
    for model in champion challenger; do
        . "./$model/settings"
        squares "$model/points.csv" "$neighbours" "$power" >"$model.squares"
    done
    squares known.csv 60 0 >baseline.squares # all points with equal weight: the mean
    models=
    for model in champion challenger baseline; do
        tail -n 30 "$model.squares" >"losses/$model.txt"
        models="$models${models:+, }\"$model\": {\"metrics\": $(metrics "$model.squares")}"
    done
    echo "{\"status\": \"complete\", \"models\": {$models}}" >result.json
    exit
fi

neighbours=$(value neighbours)
power=$(value power)
squares known.csv "$neighbours" "$power" >squares

# In mode "final" the folder model/ exists, and its files are published.
if [ "$(value mode)" = final ]; then
    cp known.csv model/points.csv
    echo "neighbours=$neighbours power=$power" >model/settings
fi

echo "{\"status\": \"complete\", \"metrics\": $(metrics squares)}" >result.json
