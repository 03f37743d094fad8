#!/bin/sh
# Every figure of docs/speed.md that needs no GPU, one after another:  sh benchmarks/speed.sh FOLDER-OF-PEERS
# (made by `make peers/.made`). Nothing else should run. PYTHON is an interpreter that has polycentric.
set -e
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}" peers="${1:-peers}"
export OMP_NUM_THREADS=1
say() { printf '\n== %s\n' "$*"; "$@"; }
bench() { say "$python" -m polycentric bench "$@"; }
date -u
bench --models mlp --executors stacked --executors traced --repeats 20 --workers 2
bench --models femnist-cnn --clients 32 --steps 5 --repeats 5
bench --models mnist-cnn --clients 8 --repeats 5
bench --models char-lstm --clients 4 --repeats 5
bench --models vgg11 --clients 2 --repeats 5
for work in "mlp 20" "femnist-cnn 4"; do
    say "$python" benchmarks/peers.py --models ${work% *} --repeats ${work#* } --python-pfl "$peers/pfl/bin/python" \
        --python-fedjax "$peers/fedjax/bin/python" --python-flower "$peers/flower/bin/python"
done
say "$python" benchmarks/unequal.py
say "$python" benchmarks/replay.py
say "$python" benchmarks/scale.py --write docs/results
say env -u OMP_NUM_THREADS "$python" benchmarks/cores.py --data noise
say "$python" benchmarks/million.py
if [ -n "$POLYCENTRIC_DATA" ]; then
    say "$python" benchmarks/million.py --data unipen62
    say "$python" benchmarks/end_to_end.py --peers "$peers"
fi
date -u
