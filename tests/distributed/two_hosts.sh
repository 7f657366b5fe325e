#!/usr/bin/env bash
# two_hosts.sh COMMAND...: runs the command on two hosts at once. The hosts are network namespaces of this machine, connected by one cable,
# with names that do not resolve. NODE_RANK is 0 or 1; MASTER_ADDR is the first host's address. Fails as soon as one host fails. Exits with
# 77, after printing the reason, if the machine does not permit such namespaces.
set -euo pipefail
skip() { echo "$*"; exit 77; }

if [ "${1:-}" != --inside ]; then
  for tool in ip unshare nsenter hostname; do command -v "$tool" >/dev/null || skip "needs the program $tool"; done
  namespaces=(--net --uts --mount-proc --pid --fork --kill-child)
  [ "$(id -u)" = 0 ] || namespaces+=(--user --map-root-user)
  reason=$(unshare "${namespaces[@]}" true 2>&1) || skip "this machine permits no network namespaces: $reason"
  exec unshare "${namespaces[@]}" "$0" --inside "$@"
fi
shift

# The second host ends with this process, and all its children with it.
coproc second { exec unshare --net --uts bash -c 'echo is there && exec sleep infinity'; }
read -r _ <&"${second[0]}"
on_second() { nsenter --target "$second_PID" --net --uts "$@"; }

# join HOST_NAME ADDRESS: sets up the network of a host.
join() { hostname "$1" && ip link set lo up && ip address add "$2/24" dev cable && ip link set cable up; }
reason=$(ip link add cable type veth peer name cable netns "$second_PID" 2>&1) || skip "this machine has no veth devices: $reason"
export MASTER_ADDR=10.77.0.1
join first-host "$MASTER_ADDR"
on_second bash -euc "$(declare -f join); join second-host 10.77.0.2"

NODE_RANK=0 "$@" &
NODE_RANK=1 on_second "$@" &
for _ in first second; do wait -n; done
