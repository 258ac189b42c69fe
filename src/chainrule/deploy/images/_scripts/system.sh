#!/bin/sh
# System packages, and Python where the base image has none. Arguments: names of packages.
set -eu
trap '[ $? -eq 0 ] || echo "chainrule-build-failed: system packages"' EXIT
# The PATH of a base image may lack the folder of useradd.
export PATH="$PATH:/usr/sbin:/sbin"
# /etc/shadow has the day on which a user was made; a fixed day makes equal builds equal.
export SOURCE_DATE_EPOCH=0

python3 -c 'import ensurepip' 2>/dev/null || set -- "$@" python3 python3-venv
if [ $# -gt 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "$@"
    # Also removes files that depend on when and how often this was run.
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/ldconfig/aux-cache \
        /var/log/apt /var/log/dpkg.log /var/log/alternatives.log
fi

# The component runs as this user; at run time another user can be given, so every user may write to its home.
mkdir -p /component /input /output /home/component /opt/chainrule /opt/python
getent group 10001 >/dev/null || groupadd --gid 10001 component
getent passwd 10001 >/dev/null \
    || useradd --uid 10001 --gid 10001 --home-dir /home/component --shell /usr/sbin/nologin component
chown 10001:10001 /opt/chainrule
chmod 1777 /output /home/component
