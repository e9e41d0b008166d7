#!/usr/bin/env bash
# wget.sh ORIGIN REVERSE FORWARD
set -euo pipefail
origin=$1 reverse=$2 forward=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
compared=0

for size in 0 1 65536 3000000; do
    for framing in length chunked close; do
        path=$framing/$size
        wget -q --no-proxy -T 30 -t 1 -O "$folder/expected" "$origin/$path"
        wget -q --no-proxy -T 30 -t 1 -O "$folder/reverse" "$reverse/$path"
        http_proxy=$forward no_proxy='' wget -q -T 30 -t 1 -O "$folder/forward" "$origin/$path"
        cmp "$folder/expected" "$folder/reverse"
        cmp "$folder/expected" "$folder/forward"
        compared=$((compared + 2))
    done
done

echo "$compared compared"
