#!/bin/sh
# Every figure of docs/speed.md that needs a GPU, the shortest first:  sh benchmarks/gpu.sh [FOLDER]
# What is printed also goes to a file each in the folder (gpu-speed), and a part whose file is whole is not done again.
# Nothing else should run. PYTHON is an interpreter that has polycentric; with POLYCENTRIC_DATA, where unipen62.npz and
# mnist.npz are, also the parts that need real data; with PEERS, a folder that `make peers/.made` has made where there is
# a GPU, also other simulators. Hours of a GPU, and so not part of it: POLYCENTRIC_DATA=FOLDER polycentric reproduce fedmes
# --only "c cifar" --device cuda.
set -u
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}" out="${1:-gpu-speed}"
mkdir -p "$out"
part() {  # NAME SECONDS COMMAND ...
    name="$1" seconds="$2"
    shift 2
    [ -f "$out/$name.txt" ] && return
    printf '\n== %s: %s\n' "$name" "$*"
    timeout "$seconds" "$@" > "$out/$name.part" 2>&1
    echo "exit $?, $(date -u)" >> "$out/$name.part"
    cat "$out/$name.part"
    tail -1 "$out/$name.part" | grep -q "^exit 0," && mv "$out/$name.part" "$out/$name.txt"
}
part laws 240 "$python" -m pytest -q -p no:cacheprovider -p no:benchmark tests/learn tests/laws/test_contract.py -k "gpu or triton or cuda or fused"
part rounds 90 "$python" benchmarks/gpu.py --profile
part vgg 120 "$python" benchmarks/gpu.py --models vgg11 --clients 30 --steps 10 --batch 10 --profile --seconds 20
part steps 180 "$python" benchmarks/steps.py
for precision in bf16 tf32; do
    part "rounds-$precision" 90 "$python" -m polycentric bench --models mlp --models mnist-cnn --steps 10 --device cuda \
        --precision "$precision" --repeats 20
done
if [ -n "${POLYCENTRIC_DATA:-}" ]; then
    part writers 150 "$python" benchmarks/fesem_writers.py --profile
    part six-rounds 90 "$python" -m polycentric run fesem --data unipen62 --model femnist-cnn --set k=4 --rounds 6 \
        --device cuda --out "$out/six-rounds"
    for precision in float32 bf16; do
        part "accuracy-$precision" 200 "$python" -m polycentric run fedavg --data mnist --partition iid --clients 100 \
            --model mnist-cnn --set lr=0.1 --rounds 100 --evaluate-every 20 --device cuda --precision "$precision" \
            --out "$out/accuracy-$precision"
    done
    part two-ranks 150 "$python" -m torch.distributed.run --standalone --nproc-per-node 2 -m polycentric run dpsgd \
        --data unipen62 --model mlp --rounds 5 --device cuda:0 --out "$out/two-ranks"
    part cores-mlp 240 "$python" benchmarks/cores.py
    part cores-cnn 400 "$python" benchmarks/cores.py --model femnist-cnn --rounds 1
    part ranks 200 "$python" -m torch.distributed.run --standalone --nproc-per-node 16 benchmarks/ranks.py
    part end-to-end 400 "$python" benchmarks/end_to_end.py ${PEERS:+--peers "$PEERS"}
fi
if [ -n "${PEERS:-}" ]; then
    part peers 400 "$python" benchmarks/peers.py --device cuda --clients 100 --steps 10 --models mlp mnist-cnn --repeats 5 \
        --python-pfl "$PEERS/pfl/bin/python" --python-fedjax "$PEERS/fedjax/bin/python"
fi
