#!/bin/sh
# get_data.sh - fetches the public data sets the examples can train on, and checks them.
#
#   data/get_data.sh [mnist] [cifar10] [shakespeare] [--to DIR]
#
# Without a name it fetches mnist and shakespeare (11 MB and 1 MB; cifar10 is 170 MB). Files land in
# DIR/mnist, DIR/cifar10 and DIR/text, DIR being data unless said otherwise. What is there and whole is
# left alone, so it can be run again after it was cut off. Exit status: 0 all there, 1 something is missing.
set -u

to=$(dirname "$0")
want=
failed=0

say() { printf '%s\n' "$*" >&2; }

usage() {
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
    mnist | cifar10 | shakespeare) want="$want $1" ;;
    --to)
        [ $# -gt 1 ] || usage
        to=$2
        shift
        ;;
    *)
        say "get_data.sh: $1: no such data set or option"
        usage
        ;;
    esac
    shift
done
[ -n "$want" ] || want="mnist shakespeare"

sha256() {
    if command -v sha256sum >/dev/null 2>&1; then sha256sum; else shasum -a 256; fi | cut -c1-64
}

# sum FILE: the check sum of its contents; of a packed file, of what is in it, since servers repack.
sum() {
    case $1 in
    *-ubyte.gz) gzip -dc "$1" 2>/dev/null | sha256 ;;
    *) sha256 <"$1" ;;
    esac
}

download() { # URL FILE
    if command -v curl >/dev/null 2>&1; then
        curl -fL --retry 2 --connect-timeout 20 -o "$2" "$1"
    elif command -v wget >/dev/null 2>&1; then
        wget -O "$2" "$1"
    else
        say "neither curl nor wget is here: install one of them"
        return 1
    fi
}

# get FILE SHA256 URL...: tries one server after the other.
get() {
    file=$1 expected=$2
    shift 2
    if [ -f "$file" ] && [ "$(sum "$file")" = "$expected" ]; then
        say "$file: already there"
        return 0
    fi
    mkdir -p "$(dirname "$file")" || return 1
    for url in "$@"; do
        say "$file: from $url"
        download "$url" "$file.part" || continue
        case $file in
        *.gz) mv "$file.part" "$file.part.gz" && part=$file.part.gz ;;
        *) part=$file.part ;;
        esac
        case $file in
        *-ubyte.gz) got=$(gzip -dc "$part" 2>/dev/null | sha256) ;;
        *) got=$(sha256 <"$part") ;;
        esac
        if [ "$got" = "$expected" ]; then
            mv "$part" "$file"
            return 0
        fi
        say "$file: what came from there is not the file expected (sha256 $got)"
        rm -f "$part"
    done
    rm -f "$file.part"
    failed=1
    say "$file: could not be fetched. Without a network, copy the file there from another machine"
    say "    (its sha256 is $expected) and run this again."
    return 1
}

get_mnist() {
    for line in \
        train-images-idx3-ubyte.gz:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db \
        train-labels-idx1-ubyte.gz:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5 \
        t10k-images-idx3-ubyte.gz:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7 \
        t10k-labels-idx1-ubyte.gz:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2; do
        name=${line%%:*}
        get "$to/mnist/$name" "${line#*:}" "https://storage.googleapis.com/cvdf-datasets/mnist/$name" \
            "https://ossci-datasets.s3.amazonaws.com/mnist/$name"
    done
}

get_cifar10() {
    file=$to/cifar10/cifar-10-binary.tar.gz
    get "$file" c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd \
        https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz || return
    tar -xzf "$file" -C "$to/cifar10" --strip-components=1 || failed=1
    say "$to/cifar10: build/make_folders $to/cifar10 $to/cifar10-images makes folders of images of it, for build/cifar_resnet"
}

get_shakespeare() {
    get "$to/text/tinyshakespeare.txt" 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed \
        https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
}

for name in $want; do "get_$name"; done
if [ $failed -ne 0 ]; then
    say "Not everything is there. build/mnist_cnn also trains on the digits that are shipped: --data data/digits"
fi
exit $failed
