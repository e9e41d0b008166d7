#!/usr/bin/env bash
# curl.sh ORIGIN REVERSE FORWARD
set -euo pipefail
origin=$1 reverse=$2 forward=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
compared=0
export no_proxy=

get() { curl -sS --fail --max-time 30 "$@"; }

same() { # same WHAT CURL-OPTIONS...: the reply is the one in $folder/expected
    local what=$1
    shift
    get "$@" >"$folder/got"
    cmp "$folder/expected" "$folder/got" || { echo "$what differs" >&2; exit 1; }
    compared=$((compared + 1))
}

for size in 0 1 1000 32768 65535 65536 65537 262144 3000000; do
    for framing in length chunked close; do
        path=$framing/$size
        get "$origin/$path" >"$folder/expected"
        same "reverse $path" "$reverse/$path"
        same "reverse HTTP/1.0 $path" --http1.0 "$reverse/$path"
        same "forward $path" --proxy "$forward" "$origin/$path"
        same "CONNECT $path" --proxy "$forward" --proxytunnel "$origin/$path"
    done
    get "$origin/length/$size" >"$folder/expected"
    same "POST $size" --data-binary "@$folder/expected" "$reverse/echo"
    same "POST chunked $size" -H 'Transfer-Encoding: chunked' --data-binary "@$folder/expected" "$reverse/echo"
    same "POST forward $size" --proxy "$forward" --data-binary "@$folder/expected" "$origin/echo"
done

# Ten replies on one connection.
urls=() expected=()
for size in 5 70000 0 200000 1 65536 9 33000 100 100000; do
    urls+=("$reverse/length/$size" "$reverse/chunked/$size")
    expected+=("$origin/length/$size" "$origin/length/$size")
done
get "${expected[@]}" >"$folder/expected"
same "keep-alive" "${urls[@]}"
connections=$(get -w '%{num_connects}\n' -o /dev/null "$reverse/length/1" -o /dev/null "$reverse/length/2" | paste -sd+)
[ "$connections" = 1+0 ] || { echo "connections: $connections" >&2; exit 1; }
[ "$(get --head "$reverse/length/4711" | tr -d '\r' | grep -i '^content-length:' | tr -dc 0-9)" = 4711 ]

echo "$compared compared"
