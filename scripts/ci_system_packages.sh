#!/usr/bin/env bash
# Gives this machine the system packages that optional tests need: container engines, a registry, Prometheus,
# PostgreSQL, a small Slurm, a browser, a Fortran compiler. Only as root with apt, quietly and within a few
# minutes; the run goes on also when this fails, and tests whose tool is missing say so and are skipped.
set -u

packages=(podman buildah runc mmdebstrap chromium fonts-dejavu-core gfortran)
# docker.io and uidmap would add the tests with docker and without root: some two minutes more.
more=(docker-registry prometheus slurmctld slurmd slurm-client munge shellcheck postgresql)
commands=(podman buildah runc mmdebstrap chromium gfortran)
commands+=(docker-registry promtool slurmctld slurmd munged shellcheck)

missing=0
for command in "${commands[@]}"; do
    command -v "$command" >/dev/null || missing=1
done
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing=1
[ "$missing" -eq 1 ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "no right to install system packages here; tests that need them are skipped"
    exit 0
fi

export DEBIAN_FRONTEND=noninteractive
log="$(mktemp)"
{
    timeout 90 apt-get update -qq
    timeout 300 apt-get install -y -qq --no-install-recommends "${packages[@]}"
    timeout 200 apt-get install -y -qq --no-install-recommends "${more[@]}"
} </dev/null >"$log" 2>&1 || {
    echo "system packages are not available here; tests that need them are skipped:"
    tail -n 3 "$log"
}
rm -f "$log"
exit 0
