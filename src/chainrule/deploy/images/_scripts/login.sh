# Read by the scripts that install packages: secrets of the build, and the trap that prints which step failed.
#
# Secrets are files in /run/secrets: one that is named like a variable becomes that variable;
# `credentials` has lines "host user secret", from which a netrc file is made.
netrc=$(mktemp)
trap 'code=$?; rm -f "$netrc"; [ $code -eq 0 ] || echo "chainrule-build-failed: $step"' EXIT

for file in /run/secrets/*; do
    name=${file##*/}
    case $name in
        *[!A-Za-z0-9_]* | [0-9]*) ;;
        *) if [ -f "$file" ]; then export "$name=$(cat "$file")"; fi ;;
    esac
done
while read -r host user secret; do
    echo "machine $host login $user password $(cat "/run/secrets/$secret")" >>"$netrc"
done <"$here/credentials"
export NETRC="$netrc" PIP_CACHE_DIR=/build-cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1
