#!/bin/sh
# Predicts each point by its nearest neighbours, the near ones counting more: awk does the sums.
set -eu

# A value of trial.json, whose path is in $TRIALFLEET_TRIAL. Where jq is installed, it reads any
# JSON: jq -r .params.neighbours "$TRIALFLEET_TRIAL"
value() {
    tr -d '\n' <"$TRIALFLEET_TRIAL" |
        sed -n "s/.*\"$1\": *\[\{0,1\} *\"\{0,1\}\([^],\"}]*\).*/\1/p" | sed 's/ *$//'
}

neighbours=$(value neighbours)
power=$(value power)
data=$(value data)

# The mean squared error over the rows $1 to $2; the first 60 are what is known.
error() {
    awk -F, -v from="$1" -v to="$2" -v k="$neighbours" -v power="$power" '
        NR > 1 { x[NR - 1] = $1; y[NR - 1] = $2 }
        END {
            for (i = from; i <= to; i++) {
                split("", used)
                above = below = 0
                for (n = 1; n <= k; n++) {
                    nearest = 0
                    for (j = 1; j <= 60; j++) {
                        far = x[j] > x[i] ? x[j] - x[i] : x[i] - x[j]
                        if (!(j in used) && (!nearest || far < least)) { nearest = j; least = far }
                    }
                    used[nearest] = 1
                    weight = 1 / (least + 0.001) ^ power
                    above += weight * y[nearest]
                    below += weight
                }
                sum += (above / below - y[i]) ^ 2
            }
            print sum / (to - from + 1)
        }' "$data"
}

val_error=$(error 61 90)
test_error=$(error 91 120)

# The folder model/ is there in mode "final": what is left in it is published.
if [ "$(value mode)" = final ]; then
    head -n 61 "$data" >model/points.csv
    echo "neighbours=$neighbours power=$power" >model/settings
fi

cat >result.json <<EOF
{"status": "complete", "metrics": {"val_error": $val_error, "test_error": $test_error}}
EOF
